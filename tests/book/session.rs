//! The shell in which a chapter's blocks are run, one after the other, as a reader would type them.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use ecn_tests::{eventually, s};
use ecn_user::sys::calls as sys;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::{
    blocks::{Block, Page, root},
    compare::is_shown,
};

/// Time limit of a chapter, seconds.
const PATIENCE_S: &str = "900";

pub struct Session {
    folder: TempDir,
    shell: Child,
    commands: ChildStdin,
    results: BufReader<ChildStdout>,
    /// The command in the second terminal.
    second: Option<Child>,
}

impl Session {
    /// A shell in an empty folder, in which `ecn` is the command under test.
    pub fn new(ecn: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for sub in ["bin", "output", "work"] {
            fs::create_dir(folder.path().join(sub)).expect("a folder");
        }
        symlink(ecn, folder.path().join("bin/ecn")).expect("a link");
        let scenarios = root().join("ecn-sim").canonicalize().expect("a path");
        symlink(scenarios, folder.path().join("work/ecn-sim")).expect("a link");
        let mut shell = command(folder.path(), "timeout");
        shell.args([PATIENCE_S, "bash"]);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().expect("a shell");
        Self {
            commands: shell.stdin.take().expect("a pipe"),
            results: BufReader::new(shell.stdout.take().expect("a pipe")),
            folder,
            shell,
            second: None,
        }
    }

    /// Writes a file into the folder.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.file("work").join(name), text).expect("a file");
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs commands; returns their exit code and output.
    pub fn run(&mut self, commands: &str) -> (i32, String) {
        let (script, output) = (self.file("script"), self.file("output/first"));
        fs::write(&script, commands).expect("a script");
        let (script, target) = (script.display(), output.display());
        writeln!(self.commands, "source {script} > {target} 2>&1; echo $?").expect("a shell");
        let mut code = String::new();
        self.results.read_line(&mut code).expect("a shell");
        let printed = fs::read(&output).unwrap_or_default();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        let code = code.trim().parse();
        (
            code.unwrap_or_else(|_| panic!("{commands} ended the shell: {printed}")),
            printed,
        )
    }

    /// Starts a command beside those that follow, and waits until it has printed all expected lines.
    pub fn start(&mut self, words: &str, expected: &str) {
        let output = self.file("output/second");
        let file = || fs::File::create(&output).expect("a file");
        let mut second = command(self.folder.path(), "bash");
        second
            .args(["-c", &format!("exec {words}")])
            .stdin(Stdio::null());
        second.stdout(file()).stderr(file());
        self.second = Some(second.spawn().expect("a shell"));
        let printed = || fs::read_to_string(&output).unwrap_or_default();
        let missing = || -> Option<String> {
            let printed = printed();
            let line = |line: &str| {
                // It starts with a time, and ends with how rates are enforced on this kernel.
                let line = line.trim_start_matches("... ");
                line.split_once(" by ")
                    .map_or(line, |(line, _)| line)
                    .to_owned()
            };
            expected
                .lines()
                .map(line)
                .find(|line| !printed.contains(line))
        };
        let all = || missing().is_none();
        assert!(
            eventually(s(60), all),
            "no {:?} in\n{}",
            missing(),
            printed()
        );
    }

    /// Ctrl-C in the second terminal.
    pub fn interrupt(&mut self) {
        let mut second = self.second.take().expect("a second terminal");
        kill(Pid::from_raw(second.id() as i32), Signal::SIGINT).expect("a signal");
        let mut status = None;
        let ended = eventually(s(30), || {
            status = second.try_wait().expect("wait");
            status.is_some()
        });
        assert!(ended, "it does not end");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for process in [Some(&mut self.shell), self.second.as_mut()]
            .into_iter()
            .flatten()
        {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A process in the folder, killed when this one ends.
fn command(folder: &Path, program: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command
        .current_dir(folder.join("work"))
        .env("PATH", format!("{}:{path}", folder.join("bin").display()))
        .env("LC_ALL", "C.UTF-8")
        .env_remove("ECN_LOG");
    sys::die_with_parent(&mut command);
    command
}

/// Runs the blocks of a page, and compares their output; with `INSTA_UPDATE=always`, as for snapshots, writes it into
/// the page instead, except where lines are left out.
pub fn run(page: &str, ecn: &Path) {
    let page = Page::read(page);
    let update = std::env::var_os("INSTA_UPDATE").is_some_and(|how| how == "always");
    let mut session = Session::new(ecn);
    let mut changed: Vec<(Block, String)> = Vec::new();
    for block in &page.blocks {
        if let Some(file) = block.file() {
            session.write(file, &block.text);
        }
        if !block.is_run() {
            continue;
        }
        let at = format!("{}:{}", page.path.display(), block.lines.0 + 1);
        if block.language == "sh" {
            let (code, printed) = session.run(&block.text);
            assert_eq!(code, 0, "{at}: {printed}");
            continue;
        }
        if block.is("second-terminal") {
            if block.is_interrupt() {
                session.interrupt();
            } else {
                for example in block.examples() {
                    session.start(&example.command, &example.output);
                }
            }
            continue;
        }
        let mut shown = String::new();
        for example in block.examples() {
            let (code, printed) = session.run(&example.command);
            let fails = printed.starts_with("ecn: ");
            assert_eq!(
                code != 0,
                fails,
                "{at}: {} ends with {code}: {printed}",
                example.command
            );
            let same = is_shown(&printed, &example.output, block.is("varies"));
            let elided = example.output.lines().any(|line| line == "...");
            assert!(
                same || update && !elided,
                "{at}: {} prints\n{printed}",
                example.command
            );
            let output = if same { example.output } else { printed };
            let command = example.command.replace('\n', "\n> ");
            shown += &format!("$ {command}\n{}", output.trim_end());
            shown += if output.trim_end().is_empty() {
                ""
            } else {
                "\n"
            };
        }
        if shown != block.text {
            changed.push((block.clone(), shown));
        }
    }
    if update {
        write(&page, &changed);
    }
}

/// Writes the page with changed blocks.
fn write(page: &Page, changed: &[(Block, String)]) {
    let lines: Vec<_> = page.text.lines().collect();
    let mut text = String::new();
    let mut at = 0;
    for (block, shown) in changed {
        let (from, to) = block.lines;
        text.extend(lines[at..from].iter().map(|line| format!("{line}\n")));
        text += shown;
        at = to;
    }
    text.extend(lines[at..].iter().map(|line| format!("{line}\n")));
    fs::write(&page.path, text).expect("the page is written");
}
