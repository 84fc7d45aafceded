//! `cargo xtask test --kernels 5.10,6.1`: the real-kernel tests on distribution kernels, emulated by qemu.
//!
//! No /dev/kvm is needed, and nothing is installed: a kernel is unpacked, boots with an archive for a root, runs the
//! tests' binary, and ends. Emulated code is 3 to 5 times slower: tests know by `ECN_EMULATED=1`.

mod cpio;
mod fetch;
mod guest;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::machine::{Lacks, Permission, cargo, is_ci, root};
use crate::{setup, step};
use fetch::{Gone, Kernel};
pub use guest::TOOLS;
use guest::{Ended, Guest};

/// Kernels that every `cargo xtask test` tests on: the oldest on which ports' own queues are watched, the newest, and
/// one between.
const EVERY_RUN: [&str; 3] = ["6.1", "6.12", "7.3"];

/// What a kernel decides, and what comes out the same however late an emulated kernel is: what its verifier takes,
/// which hooks, offsets and drop reasons it has, what becomes of frames, echoes and flags. Rates are left to
/// `--kernels`, which runs all tests.
const DECIDED_BY_KERNEL: [&str; 20] = [
    "attach::clsact_goes_with_the_last_program",
    "attach::tcx_where_there_is_tcx",
    "attach::what_a_killed_agent_leaves_on_clsact_is_cleaned",
    "attach::what_is_behind_ours_runs_too",
    "counters::a_counted_number_of_packets",
    "counters::drops_are_the_kernels",
    "counters::super_packets_count_their_segments",
    "counters::tagged_packets_leave_as_they_came",
    "echo::udp_over_ipv4_marked",
    "echo::udp_over_ipv6_marked",
    "edt::udp",
    "forged::giant_frames",
    "forged::malformed_frames_at_endpoints",
    "parsed::changed_frames",
    "tcp::negotiated",
    "untouched::at_endpoints",
    "untouched::at_ports",
    "verifier::every_program_passes",
    "virtual_queue::overload_does_not_pile_up",
    "xdp::echoes_are_taken",
];

/// A kernel that takes longer for all tests hangs.
const LIMIT: Duration = Duration::from_secs(1200);

/// How a test ended on a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Skipped(String),
    Failed(String),
}

impl Outcome {
    fn word(&self) -> &'static str {
        match self {
            Self::Passed => "pass",
            Self::Skipped(_) => "skip",
            Self::Failed(_) => "FAIL",
        }
    }
}

/// The tests of one kernel.
#[derive(Default)]
struct Column {
    version: String,
    took: Duration,
    tests: BTreeMap<String, Outcome>,
    /// Why the run as a whole failed.
    broken: Option<String>,
}

/// A series as people write it: `6.1`.
pub fn series(text: &str) -> Result<String, String> {
    let mut parts = text.split('.');
    let number = |part: Option<&str>| part.is_some_and(|part| part.parse::<u32>().is_ok());
    if number(parts.next()) && number(parts.next()) && parts.next().is_none() {
        Ok(text.to_owned())
    } else {
        Err("a series of kernels is two numbers, such as 6.1".to_owned())
    }
}

/// What is asked for.
struct Wanted {
    series: Vec<String>,
    gone: Gone,
    /// Names of tests, or parts of them; if there are none, all tests.
    tests: Vec<String>,
    /// They are whole names.
    exact: bool,
}

/// What every `cargo xtask test` runs on other kernels. Qemu needs no rights, so it is for everybody.
pub fn every_run(permission: Permission) -> Result<()> {
    let wanted = Wanted {
        series: EVERY_RUN.map(str::to_owned).to_vec(),
        gone: Gone::Newest,
        tests: DECIDED_BY_KERNEL.map(str::to_owned).to_vec(),
        exact: true,
    };
    seen(run_on(&wanted, permission), is_ci())
}

/// Where nobody looks, a kernel that is not tested is a fault.
fn seen(result: Result<()>, ci: bool) -> Result<()> {
    match result {
        Err(error) if error.is::<Lacks>() && ci => bail!("{error:#}"),
        result => result,
    }
}

/// Runs the tests whose names contain one of `names`, or all, on each kernel.
pub fn test(series: &[String], names: &[String], permission: Permission) -> Result<()> {
    let wanted = Wanted {
        series: series.to_vec(),
        gone: Gone::Lacks,
        tests: names.to_vec(),
        exact: false,
    };
    run_on(&wanted, permission)
}

/// Gets what is missing, runs the tests, and prints a table.
fn run_on(wanted: &Wanted, permission: Permission) -> Result<()> {
    // Without a mirror, say, nothing was tested, and nothing failed.
    setup::emulator(permission)
        .map_err(|error| Lacks(format!("no qemu to emulate kernels: {error:#}")))?;
    let kernels = fetch::kernels(&wanted.series, wanted.gone)?;
    let binaries = Binaries::build()?;
    let log = root().join("target/log");
    fs::create_dir_all(&log).with_context(|| format!("making {}", log.display()))?;
    let mut lacking = None;
    let mut found = Vec::new();
    for (series, kernel) in wanted.series.iter().zip(kernels) {
        match kernel {
            Ok(kernel) => found.push(kernel),
            Err(error) => {
                let error = error.context(format!("kernel {series}"));
                step::say(&format!("{error:#}"));
                lacking = Some(error);
            }
        }
    }
    let columns = run_all(&found, &binaries, wanted, &log);
    if !columns.is_empty() {
        println!("{}", table(&columns));
    }
    let failed: Vec<_> = columns
        .iter()
        .filter(|column| !column.is_good())
        .map(|column| column.version.as_str())
        .collect();
    if !failed.is_empty() {
        bail!(
            "tests failed on {}; see {}",
            failed.join(", "),
            log.join("kernel-*.out").display()
        );
    }
    let unknown = |name: &&String| !matches(name, &columns);
    if let Some(name) = wanted.tests.iter().find(unknown) {
        bail!("no test's name contains {name}");
    }
    lacking.map_or(Ok(()), Err)
}

/// Whether the name is of a test that ran, or nothing ran.
fn matches(name: &str, columns: &[Column]) -> bool {
    let mut tests = columns.iter().flat_map(|column| column.tests.keys());
    columns.is_empty() || tests.any(|test| test.contains(name))
}

/// What runs in the guest.
struct Binaries {
    command: PathBuf,
    tests: PathBuf,
}

impl Binaries {
    fn build() -> Result<Self> {
        let mut build = cargo();
        build.args(["build", "--release", "--package", "ecn-user"]);
        build.args(["--target-dir", "target"]);
        step::run("the command", &mut build)?;
        let tests = || {
            let mut build = cargo();
            build.args(["test", "--release", "--package", "ecn-tests", "--test"]);
            build.args(["kernel", "--no-run", "--target-dir", "target"]);
            build
        };
        step::run("the tests", &mut tests())?;
        let messages = step::asked(tests().arg("--message-format=json"));
        let messages = messages.context("asking cargo for the tests' binary")?;
        let tests = executable(&messages).context("cargo names no binary of the tests")?;
        Ok(Self {
            command: root().join("target/release/ecn"),
            tests,
        })
    }
}

/// The last program that cargo says it has built.
fn executable(messages: &str) -> Option<PathBuf> {
    let key = "\"executable\":\"";
    let path = messages.lines().rev().find_map(|line| {
        let (_, rest) = line.split_once(key)?;
        rest.split('"').next()
    });
    path.map(PathBuf::from)
}

/// All kernels, three per two processors at a time: a guest waits for a third of its time.
fn run_all(kernels: &[Kernel], binaries: &Binaries, wanted: &Wanted, log: &Path) -> Vec<Column> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let at_once = (processors * 3 / 2).min(kernels.len());
    let next = Mutex::new(kernels.iter().enumerate());
    let done = Mutex::new(BTreeMap::new());
    let worker = || {
        loop {
            let kernel = next.lock().ok().and_then(|mut next| next.next());
            let Some((number, kernel)) = kernel else {
                break;
            };
            let column = run(kernel, binaries, wanted, log);
            if let Ok(mut done) = done.lock() {
                done.insert(number, column);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(worker);
        }
    });
    done.into_inner()
        .map(BTreeMap::into_values)
        .map_or_else(|_| Vec::new(), Iterator::collect)
}

fn run(kernel: &Kernel, binaries: &Binaries, wanted: &Wanted, log: &Path) -> Column {
    step::say(&format!("kernel {}: booting", kernel.version));
    let exact = if wanted.exact { "--exact" } else { "" };
    let command = format!(
        "export ECN_BIN=/test/ecn ECN_EMULATED=1 RUST_BACKTRACE=0\n\
         exec ./kernel --test-threads=1 {exact} {}\n",
        wanted.tests.join(" ")
    );
    let log = log.join(format!("kernel-{}.log", kernel.series));
    let ended = Guest::new(kernel).and_then(|mut guest| {
        guest.add(&binaries.command, "ecn")?;
        guest.add(&binaries.tests, "kernel")?;
        guest.run(&command, LIMIT, &log)
    });
    let column = match ended {
        Ok(ended) => Column::read(&kernel.version, &ended),
        Err(error) => Column {
            version: kernel.version.clone(),
            broken: Some(format!("{error:#}")),
            ..Column::default()
        },
    };
    step::say(&format!(
        "kernel {}: {}, {:.0} s",
        kernel.version,
        column.count(),
        column.took.as_secs_f64()
    ));
    column
}

impl Column {
    /// Reads what the tests' harness said.
    fn read(version: &str, ended: &Ended) -> Self {
        let (mut tests, current) = results(&ended.output);
        let broken = match ended.exit {
            Some(0 | 101) => None,
            Some(code) => Some(format!("the tests ended with {code}")),
            None => {
                let reason = match &current {
                    Some(test) => format!("the guest did not end in time, or died, in {test}"),
                    None => "the guest did not end in time, or died".to_owned(),
                };
                Some(reason)
            }
        };
        if let (Some(test), Some(reason)) = (current, &broken) {
            tests.insert(test, Outcome::Failed(reason.clone()));
        }
        Self {
            version: version.to_owned(),
            took: ended.took,
            tests,
            broken,
        }
    }

    fn number(&self, word: &str) -> usize {
        let tests = self.tests.values();
        tests.filter(|outcome| outcome.word() == word).count()
    }

    fn count(&self) -> String {
        let [passed, skipped, failed] = ["pass", "skip", "FAIL"].map(|word| self.number(word));
        format!("{passed} passed, {skipped} skipped, {failed} failed")
    }

    /// Something ran, and nothing failed.
    fn is_good(&self) -> bool {
        self.broken.is_none() && self.number("FAIL") == 0 && self.number("pass") > 0
    }
}

/// The tests' outcomes, and the test that had not ended.
fn results(output: &str) -> (BTreeMap<String, Outcome>, Option<String>) {
    let mut tests = BTreeMap::new();
    let mut current: Option<String> = None;
    let mut skipped: BTreeMap<&str, &str> = BTreeMap::new();
    for line in output.lines() {
        let mut end = line;
        if let Some((name, rest)) = line
            .strip_prefix("test ")
            .and_then(|line| line.split_once(" ... "))
        {
            current = Some(name.to_owned());
            end = rest;
        }
        if let Some((name, reason)) = line
            .strip_prefix("skipped ")
            .and_then(|line| line.split_once(": "))
        {
            skipped.insert(name, reason);
        }
        // The notes of a test stand between its name and its end.
        let outcome = match end {
            "ok" => Outcome::Passed,
            "FAILED" => Outcome::Failed(String::new()),
            end if end.starts_with("ignored") => Outcome::Skipped(end.to_owned()),
            _ => continue,
        };
        if let Some(name) = current.take() {
            tests.insert(name, outcome);
        }
    }
    for (name, reason) in skipped {
        if let Some(outcome @ Outcome::Passed) = tests.get_mut(name) {
            *outcome = Outcome::Skipped(reason.to_owned());
        }
    }
    for (name, outcome) in &mut tests {
        if let Outcome::Failed(reason) = outcome {
            *reason = panic_of(output, name);
        }
    }
    (tests, current)
}

/// What a failed test said as it panicked.
fn panic_of(output: &str, name: &str) -> String {
    let begin = format!("---- {name} stdout ----");
    let lines = output.lines().skip_while(|line| *line != begin).skip(1);
    let lines = lines.take_while(|line| !line.starts_with("---- ") && *line != "failures:");
    let said: Vec<_> = lines
        .filter(|line| !line.trim().is_empty() && !line.starts_with("note: "))
        .collect();
    said.join(" | ").chars().take(600).collect()
}

/// Tests down, kernels across; then the reasons of what did not pass.
fn table(columns: &[Column]) -> String {
    let names: BTreeMap<&str, ()> = columns
        .iter()
        .flat_map(|column| column.tests.keys())
        .map(|name| (name.as_str(), ()))
        .collect();
    let width = names
        .keys()
        .map(|name| name.len())
        .max()
        .unwrap_or(0)
        .max(4);
    let mut text = format!("{:<width$}", "test");
    let line = |text: &mut String, cells: &[&str]| {
        for (cell, column) in cells.iter().zip(columns) {
            text.push_str(&format!("  {cell:<at$}", at = column.heading().len()));
        }
        while text.ends_with(' ') {
            text.pop();
        }
        text.push('\n');
    };
    let headings: Vec<_> = columns.iter().map(Column::heading).collect();
    let headings: Vec<_> = headings.iter().map(String::as_str).collect();
    line(&mut text, &headings);
    for name in names.keys() {
        text.push_str(&format!("{name:<width$}"));
        let word = |column: &Column| column.tests.get(*name).map_or("-", Outcome::word);
        line(&mut text, &columns.iter().map(word).collect::<Vec<_>>());
    }
    let mut reasons: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for column in columns {
        for (name, outcome) in &column.tests {
            if let Outcome::Skipped(reason) | Outcome::Failed(reason) = outcome {
                let kernels = reasons.entry((name, reason)).or_default();
                kernels.push(format!("{} on {}", outcome.word(), column.heading()));
            }
        }
        text.push_str(&format!("{}: {}", column.version, column.count()));
        text.push_str(&format!(", {:.0} s", column.took.as_secs_f64()));
        if let Some(reason) = &column.broken {
            text.push_str(&format!("; {reason}"));
        }
        text.push('\n');
    }
    for ((name, reason), kernels) in reasons {
        text.push_str(&format!("{name}: {}: {reason}\n", kernels.join(", ")));
    }
    text.pop();
    text
}

impl Column {
    /// The version without what all of them have.
    fn heading(&self) -> String {
        let version = self.version.split(['+', '-']).next();
        version.unwrap_or(&self.version).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\nrunning 4 tests\n\
        test a::passes ... ok\n\
        test a::talks ... \nverifier: ecn_drop 5 instructions\nok\n\
        test b::skips ... \nskipped b::skips: needs fq\nok\n\
        test c::fails ... FAILED\n\
        test d::hangs ... \nsomething\n\n\
        failures:\n\n---- c::fails stdout ----\n\nthread 'c' panicked at x.rs:1:2:\nno echo\n\
        note: run with `RUST_BACKTRACE=1`\n\n\nfailures:\n    c::fails\n";

    fn ended(exit: Option<i32>) -> Ended {
        Ended {
            exit,
            output: OUTPUT.to_owned(),
            took: Duration::from_secs(7),
        }
    }

    #[test]
    fn what_the_harness_says_is_understood() {
        let (tests, current) = results(OUTPUT);
        assert_eq!(tests["a::passes"], Outcome::Passed);
        assert_eq!(tests["a::talks"], Outcome::Passed);
        assert_eq!(tests["b::skips"], Outcome::Skipped("needs fq".into()));
        let said = "thread 'c' panicked at x.rs:1:2: | no echo";
        assert_eq!(tests["c::fails"], Outcome::Failed(said.into()));
        assert_eq!(current.as_deref(), Some("d::hangs"));
    }

    #[test]
    fn a_guest_that_dies_has_failed_in_the_test_it_was_in() {
        let column = Column::read("6.1.0-56-cloud-amd64", &ended(None));
        assert!(!column.is_good());
        assert_eq!(column.count(), "2 passed, 1 skipped, 2 failed");
        let text = table(&[column]);
        assert!(text.contains("\nb::skips   skip\n"), "{text}");
        assert!(text.contains("d::hangs: FAIL on 6.1.0: the guest did not end"));
    }

    #[test]
    fn only_skipped_tests_are_a_failure() {
        let output = "test b ... \nskipped b: needs root\nok\n".to_owned();
        let took = Duration::ZERO;
        let exit = Some(0);
        assert!(!Column::read("6.1", &Ended { exit, output, took }).is_good());
        let output = "test b ... ok\n".to_owned();
        assert!(Column::read("6.1", &Ended { exit, output, took }).is_good());
    }

    #[test]
    fn without_kernels_only_ci_fails() {
        let lacks = || Err(anyhow::Error::from(Lacks("no mirror".into())).context("kernel 6.1"));
        let skipped = seen(lacks(), false).expect_err("nothing was tested");
        assert!(skipped.is::<Lacks>());
        let failed = seen(lacks(), true).expect_err("nothing was tested");
        assert!(!failed.is::<Lacks>());
        assert_eq!(failed.to_string(), "kernel 6.1: no mirror");
        assert!(seen(Ok(()), true).is_ok());
    }

    #[test]
    fn a_name_that_no_test_has_is_noticed() {
        let columns = [Column::read("6.1", &ended(Some(101)))];
        assert!(matches("a::passes", &columns));
        assert!(!matches("a::renamed", &columns));
        assert!(matches("a::renamed", &[]));
    }

    #[test]
    fn series_are_two_numbers() {
        assert_eq!(series("5.10").as_deref(), Ok("5.10"));
        for wrong in ["5", "5.10.1", "new", "5.x", ""] {
            assert!(series(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_binary_is_the_last_one_named() {
        let messages = "{\"executable\":null}\n{\"a\":1,\"executable\":\"/t/kernel-1\",\"b\":2}\n";
        assert_eq!(executable(messages), Some(PathBuf::from("/t/kernel-1")));
    }
}
