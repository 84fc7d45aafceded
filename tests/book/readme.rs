//! The README's commands, each in the environment that it needs.

use std::{fs, path::Path, process::Command, thread};

use ecn_tests::{ecn_or_skip, kernel_test};
use nix::sched::{CloneFlags, unshare};

use crate::{
    blocks::{Block, Page, root},
    session::Session,
};

/// A bridge with a port and a host, in the test's network namespace.
const BRIDGE: &str = "
ip link set lo up
ip link add br0 type bridge && ip link set br0 up
ip netns add host
ip link add port type veth peer name eth0 netns host
ip link set port up master br0 && ip -n host link set eth0 up
";

/// The command, without the remark after it.
fn typed(command: &str) -> &str {
    command.split(" #").next().unwrap_or_default().trim()
}

fn commands(page: &Page, language: &str) -> Vec<String> {
    let blocks = page
        .blocks
        .iter()
        .filter(|block| block.language == language);
    let scripts = blocks.map(Block::script).collect::<String>();
    let lines = scripts.lines().map(|line| typed(line).to_owned());
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect()
}

/// Commands of `console` blocks are run.
#[test]
fn readme_commands() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    // A network namespace is per thread, and other tests keep theirs.
    let run = || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
        run_commands(&ecn);
    };
    thread::scope(|scope| scope.spawn(run).join()).expect("the README holds");
}

fn run_commands(ecn: &Path) {
    let page = Page::read("README.md");
    let mut session = Session::new(ecn);
    let (code, printed) = session.run(BRIDGE);
    assert_eq!(code, 0, "{printed}");
    let config = page.blocks.iter().find(|block| block.is("agent"));
    session.write("ecn.toml", &config.expect("a configuration").text);

    for command in commands(&page, "console") {
        let arguments = command.strip_prefix("cargo run --release -p ecn-sim-cli -- ");
        let mut run = |command: &str| {
            let (code, printed) = session.run(command);
            assert_eq!(code, 0, "{command}: {printed}");
            printed
        };
        match (&command[..], arguments) {
            // This test itself runs it.
            ("cargo xtask test", _) => {
                let ci = fs::read_to_string(root().join(".ci/run")).expect("CI");
                assert!(ci.contains(&command));
            }
            ("cargo xtask run", _) => rig(&page),
            ("ecn run", _) => {
                session.start("ecn run --config ecn.toml", "running");
                let (code, ports) = session.run("ecn port show && ecn flow show");
                assert!(code == 0 && ports.contains("port"), "{ports}");
                session.interrupt();
            }
            ("ecn run --check", _) => {
                let printed = run("ecn run --check --config ecn.toml");
                assert!(printed.contains("bridge br0"), "{printed}");
            }
            // The same code; all seeds of all papers take a minute.
            (_, Some(arguments)) if arguments.starts_with("reproduce") => {
                run(&format!("ecn sim {arguments} --quick --seeds 2"));
            }
            (_, Some(arguments)) => {
                run(&format!("ecn sim {arguments}"));
            }
            ("ecn doctor", _) => {
                run(&command);
            }
            _ => panic!("no test runs {command:?}"),
        }
    }
}

/// `cargo xtask run`, shortened: the table has the lines that the README shows.
fn rig(page: &Page) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut run = Command::new("cargo");
    run.args([
        "xtask",
        "run",
        "--",
        "--seconds",
        "2",
        "--warm-up",
        "2",
        "--out",
    ]);
    let output = run.arg(folder.path()).current_dir(root()).output();
    let output = output.expect("cargo");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let printed = String::from_utf8_lossy(&output.stdout);
    let table = page.blocks.iter().find(|block| block.language == "text");
    for line in table.expect("a table").text.lines() {
        let label = line.trim().split("  ").next().unwrap_or_default();
        assert!(printed.contains(label), "no {label:?} in {printed}");
    }
}

/// Commands of `sh` blocks install the output of `cargo xtask dist`, whose `--check` tests that; the files have this
/// version.
#[test]
fn readme_installs_this_version() {
    let commands = commands(&Page::read("README.md"), "sh");
    assert!(commands.len() >= 5, "{commands:?}");
    for command in commands {
        let files = command
            .split_whitespace()
            .filter(|word| word.contains("ecn_") || word.contains("ecn-0"));
        for file in files {
            assert!(
                file.contains(env!("CARGO_PKG_VERSION")),
                "{file} of {command:?}"
            );
        }
    }
}
