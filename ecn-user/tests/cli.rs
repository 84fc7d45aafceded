//! The command as people and scripts use it: exit codes, stdout and stderr.

use std::process::{Command, Output, Stdio};

use nix::unistd::geteuid;

const ECN: &str = env!("CARGO_BIN_EXE_ecn");

/// A directory in which nothing is pinned.
const NO_PIN: &str = "/nowhere/ecn";

fn run(words: &[&str]) -> Output {
    Command::new(ECN)
        .args(words)
        .env_remove("ECN_LOG")
        .output()
        .expect("run ecn")
}

/// Runs it where it can neither find nor harm anything of this machine; without the rights not at all.
fn run_alone(script: &str) -> Option<Output> {
    if !geteuid().is_root() {
        eprintln!("skipped: needs root");
        return None;
    }
    // In a chroot, `/` is not a mount point.
    let script = format!(
        "{{ mount --make-rprivate / 2> /dev/null || mount --make-rprivate /run; }} \
         && {{ mount --make-rprivate /sys 2> /dev/null || true; }} \
         && mount -t proc proc /proc && mount -t tmpfs none /run \
         && mount -t bpf bpf /sys/fs/bpf && {script}"
    );
    let output = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "unchanged",
            "--net",
            "--pid",
            "--fork",
            "sh",
            "-c",
            &script,
        ])
        .env("ECN", ECN)
        .output();
    match output {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("skipped: no unshare ({error})");
            None
        }
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts the exit code, these words on stderr, and an empty stdout.
#[track_caller]
fn refused(words: &[&str], code: i32, expected: &str) {
    let output = run(words);
    let stderr = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {stderr}");
    assert!(stderr.contains(expected), "{words:?}: {stderr}");
    assert!(!stderr.contains("panicked"), "{words:?}: {stderr}");
    assert_eq!(stdout(&output), "", "{words:?}");
}

#[test]
fn bad_usage_is_2() {
    let flow = "10.0.0.1:1>10.0.1.1:2/udp";
    for (words, expected) in [
        (&["prot", "show"][..], "port"),
        (&["port"], "Usage"),
        (
            &["port", "show", "--sort", "color"],
            "cannot sort by `color`",
        ),
        (&["port", "show", "dev"], "a value is missing after `dev`"),
        (&["port", "show", "--watch", "0"], "between 0.05 and 86400"),
        (
            &["flow", "show", "protocl", "udp"],
            "did you mean `protocol`?",
        ),
        (
            &["flow", "set", flow, "--rate", "20apples"],
            "is not a rate",
        ),
        (&["flow", "set", flow, "--rate", "0"], "less than one byte"),
        (&["flow", "set", flow], "--rate"),
        (
            &["flow", "set", "10.0.0.1:1", "--rate", "1mbit"],
            "is not a flow",
        ),
        (
            &["flow", "unset", "10.0.0.1:1>10.0.1.1:2/ucp"],
            "unknown protocol `ucp`",
        ),
        (&["rig", "run", "--rmin", "2/1"], "`rmin`"),
        (
            &["rig", "run", "--marking", "all"],
            "expected one of none, naive, input, input-output",
        ),
        (
            &["design", "--decrease", "2*r"],
            "`2*r` is not a decrease function: fdec(",
        ),
        (
            &["design", "--decrease", "-x"],
            "unknown name `x` at column 2; expected r, numbers",
        ),
        (&["design", "--rmin", "2"], "rmin = 2 is not usable"),
        (
            &["design", "--out", "/dev/null/x"],
            "cannot write /dev/null/x",
        ),
        (
            &["run", "--config", "/nowhere/ecn.toml"],
            "cannot read the configuration file",
        ),
    ] {
        refused(words, 2, expected);
    }
}

#[test]
fn bad_configurations_are_2_with_a_line_for_each_problem() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "colour = 1\n[agnet]\n").expect("write");
    let path = file.path().to_str().expect("a name");
    let output = run(&["run", "--config", path]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = stderr(&output);
    assert!(stderr.lines().count() >= 2, "{stderr}");
    assert!(
        stderr.lines().all(|line| line.starts_with("ecn: ")),
        "{stderr}"
    );
}

#[test]
fn no_datapath_is_3_with_what_to_do() {
    let flow = "10.0.0.1:1>10.0.1.1:2/udp";
    for words in [
        &["port", "show", "--pin", NO_PIN][..],
        &["port", "show", "--pin", NO_PIN, "-j", "--watch"],
        &["flow", "show", "--pin", NO_PIN, "-j"],
        &["flow", "set", flow, "--rate", "20mbit", "--pin", NO_PIN],
        &["flow", "unset", flow, "--pin", NO_PIN],
    ] {
        refused(words, 3, "start `ecn run` or `ecn rig run` first");
    }
}

#[test]
fn help_is_0_and_a_closed_pipe_is_silent() {
    assert_eq!(run(&["--help"]).status.code(), Some(0));
    let mut child = Command::new(ECN)
        .args(["doctor", "-j"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("run ecn");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("wait");
    let stderr = stderr(&output);
    assert!(
        !stderr.contains("panicked") && !stderr.contains("roken pipe"),
        "{stderr}"
    );
}

#[test]
fn doctor_prints_one_document_and_leaves_nothing() {
    let output = run(&["doctor", "-j"]);
    let document: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("one JSON document");
    let ready = document["ready"].as_bool().expect("ready");
    assert_eq!(
        output.status.code(),
        Some(if ready { 0 } else { 3 }),
        "{}",
        stderr(&output)
    );
    for missing in document["missing"].as_array().expect("missing") {
        assert!(stderr(&output).contains(missing.as_str().expect("a name")));
    }
    let Some(output) = run_alone(
        "before=$(ls -R /run /sys/fs/bpf; ls /sys/class/net); $ECN doctor > /dev/null; \
         test \"$before\" = \"$(ls -R /run /sys/fs/bpf; ls /sys/class/net)\"",
    ) else {
        return;
    };
    assert!(
        output.status.success(),
        "{}{}",
        stdout(&output),
        stderr(&output)
    );
}

#[test]
fn clean_without_leftovers_does_nothing() {
    let Some(output) = run_alone("$ECN clean && $ECN clean -j") else {
        return;
    };
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        "nothing to remove\n{\"dry_run\":false,\"removed\":[]}\n"
    );
}

#[test]
fn clean_removes_what_was_left_and_says_so() {
    let Some(output) = run_alone(
        "mkdir -p /run/ecn /sys/fs/bpf/ecn/v1/maps && echo 1 > /run/ecn/lock && \
         $ECN rig up --local 1 --remote 1 > /dev/null && $ECN clean -n | grep -c 'would remove' && \
         $ECN clean && ls /run/netns /run/ecn /sys/fs/bpf/ecn; $ECN clean",
    ) else {
        return;
    };
    let printed = stdout(&output);
    if printed.is_empty() {
        eprintln!("skipped: no rig here ({})", stderr(&output));
        return;
    }
    for line in [
        "removed pinned maps /sys/fs/bpf/ecn",
        "removed namespace ecn-rig-sw",
        "removed file /run/ecn/lock",
    ] {
        assert!(printed.contains(line), "{printed}");
    }
    assert!(printed.ends_with("nothing to remove\n"), "{printed}");
}

#[test]
fn clean_refuses_while_an_agent_runs() {
    let held = "mkdir -p /run/ecn; flock --close /run/ecn/lock sleep 30 >&- & sleep 0.3; ";
    let Some(output) = run_alone(&format!("{held} $ECN clean; echo $?; $ECN clean --force")) else {
        return;
    };
    let (printed, errors) = (stdout(&output), stderr(&output));
    assert!(
        printed.starts_with("3\n") && errors.contains("is running (process"),
        "{printed}{errors}"
    );
    assert!(errors.contains("stopped process"), "{errors}");
    assert!(
        printed.contains("removed file /run/ecn/lock"),
        "{printed}{errors}"
    );
}
