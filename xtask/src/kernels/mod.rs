//! `cargo xtask test --kernels 5.10,6.1`: the real-kernel tests on distribution kernels, emulated by qemu.
//!
//! Needs no /dev/kvm, and installs nothing: a kernel is unpacked, boots with an initramfs, runs the test binary, and
//! exits. Emulated code is 3 to 5 times slower; tests detect emulation by `ECN_EMULATED=1`.

mod cpio;
mod fetch;
mod guest;
mod harness;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::machine::{Lacks, Permission, cargo, is_ci, root};
use crate::{command, setup, step};
use fetch::{Kernel, Unavailable};
use guest::{Ended, Guest};
use harness::{Outcome, results};

pub use fetch::mirror;

/// Kernels on which every `cargo xtask test` runs tests: the oldest, with virtual queues only; the oldest on which
/// ports' own queues are watched; the newest; and one in between.
const EVERY_RUN: [&str; 4] = [END_OF_LIFE, "6.1", "6.12", "7.3"];

/// Debian 11's kernel. Mirrors remove a release some time after its end of life: then this kernel is left out.
const END_OF_LIFE: &str = "5.10";

/// The oldest and the newest of [`EVERY_RUN`].
const ENDS: [&str; 2] = [END_OF_LIFE, "7.3"];

/// Tests whose results depend on the kernel, but not on the speed of emulation, and on which of [`EVERY_RUN`]: what its
/// verifier accepts, which hooks, offsets and drop reasons it has, how it handles frames, echoes and flags. The oldest and
/// the newest differ most; those between run what differs there. Other tests, such as those of rates, run on emulated
/// kernels only with `--kernels`.
const DECIDED_BY_KERNEL: [(&str, &[&str]); 20] = [
    ("verifier::every_program_passes", &EVERY_RUN),
    ("attach::tcx_is_used_where_available", &EVERY_RUN),
    ("counters::drops_match_the_kernels", &["6.1", "6.12", "7.3"]),
    (
        "counters::super_packets_count_their_segments",
        &["6.1", "7.3"],
    ),
    ("counters::tagged_packets_leave_unchanged", &["6.1", "7.3"]),
    ("attach::programs_behind_ours_run_too", &["7.3"]),
    (
        "attach::clsact_filters_of_a_killed_agent_are_cleaned",
        &[END_OF_LIFE],
    ),
    (
        "attach::clsact_is_removed_with_the_last_program",
        &[END_OF_LIFE],
    ),
    ("taps::taps_are_left_out_without_tcx", &[END_OF_LIFE]),
    (
        "virtual_queue::overload_does_not_accumulate",
        &[END_OF_LIFE],
    ),
    ("taps::machines_do_not_echo_for_others", &["7.3"]),
    ("backward::udp_over_ipv4_is_slowed", &ENDS),
    ("notifications::bcn_over_ipv4", &ENDS),
    ("echo::udp_over_ipv4_marked", &ENDS),
    ("edt::udp", &ENDS),
    ("forged::giant_frames", &ENDS),
    ("forged::malformed_frames_at_endpoints", &ENDS),
    ("tcp::negotiated", &ENDS),
    ("untouched::at_endpoints", &ENDS),
    ("xdp::echoes_are_consumed", &ENDS),
];

/// Time limit of all tests on a kernel, beyond which it is considered hung.
const LIMIT: Duration = Duration::from_secs(1200);

/// With more failures than this, tests are not rerun.
const ACCIDENTS: usize = 3;

/// A test that failed, and passed in another guest.
#[derive(Debug)]
pub struct Rerun {
    pub name: String,
    /// Its output when it failed.
    pub output: String,
}

/// Test results of one kernel.
#[derive(Default)]
struct Column {
    version: String,
    took: Duration,
    tests: BTreeMap<String, Outcome>,
    /// Why the run as a whole failed.
    broken: Option<String>,
    /// Tests that passed only in a rerun.
    again: Vec<Rerun>,
}

/// Parses a series, such as `6.1`.
pub fn series(text: &str) -> Result<String, String> {
    let mut parts = text.split('.');
    let number = |part: Option<&str>| part.is_some_and(|part| part.parse::<u32>().is_ok());
    if number(parts.next()) && number(parts.next()) && parts.next().is_none() {
        Ok(text.to_owned())
    } else {
        Err("must be a kernel series of two numbers, such as 6.1".to_owned())
    }
}

/// Tests to run on a kernel.
#[derive(Clone)]
struct Selection {
    /// Names of tests, or parts of them; if empty, all tests are run.
    tests: Vec<String>,
    /// Whether these are complete names.
    exact: bool,
}

impl Selection {
    /// Those of [`DECIDED_BY_KERNEL`] for a series.
    fn decided_by(series: &str) -> Self {
        let tests = DECIDED_BY_KERNEL.iter();
        let here = tests.filter(|(_, kernels)| kernels.contains(&series));
        Self {
            tests: here.map(|(name, _)| (*name).to_owned()).collect(),
            exact: true,
        }
    }
}

/// The tests that every `cargo xtask test` runs on other kernels. qemu needs no privileges, so any user can run them.
pub fn every_run(permission: Permission) -> Result<Vec<Rerun>> {
    let series = EVERY_RUN.map(str::to_owned);
    let result = run_on(
        &series,
        Unavailable::Newest,
        &Selection::decided_by,
        permission,
    );
    required_in_ci(result, is_ci())
}

/// In continuous integration, a kernel that cannot be tested is an error.
fn required_in_ci<T>(result: Result<T>, ci: bool) -> Result<T> {
    match result {
        Err(error) if error.is::<Lacks>() && ci => bail!("{error:#}"),
        result => result,
    }
}

/// Runs the tests whose names contain one of `names`, or all, on each kernel. Returns those that passed only in a
/// rerun.
pub fn test(series: &[String], names: &[String], permission: Permission) -> Result<Vec<Rerun>> {
    let selection = Selection {
        tests: names.to_vec(),
        exact: false,
    };
    let select = |_: &str| selection.clone();
    run_on(series, Unavailable::Lacks, &select, permission)
}

/// Installs what is missing, runs the tests that `select` returns for each series, and prints a table.
fn run_on(
    series: &[String],
    unavailable: Unavailable,
    select: &dyn Fn(&str) -> Selection,
    permission: Permission,
) -> Result<Vec<Rerun>> {
    // Without qemu, tests are skipped, not failed.
    setup::emulator(permission)
        .map_err(|error| Lacks(format!("no qemu to emulate kernels: {error:#}")))?;
    let kernels = fetch::kernels(series, unavailable)?;
    let binaries = Binaries::build()?;
    let log = root().join("target/log");
    fs::create_dir_all(&log).with_context(|| format!("making {}", log.display()))?;
    let mut lacking = None;
    let mut found = Vec::new();
    for (series, kernel) in series.iter().zip(kernels) {
        match kernel {
            Ok(kernel) => found.push((kernel, select(series))),
            Err(error) => {
                let error = error.context(format!("kernel {series}"));
                step::print(&format!("{error:#}"));
                if unavailable == Unavailable::Lacks || series != END_OF_LIFE {
                    lacking = Some(error);
                }
            }
        }
    }
    let columns = run_all(&found, &binaries, &log);
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
    let mut names = found.iter().flat_map(|(_, selection)| &selection.tests);
    if let Some(name) = names.find(unknown) {
        bail!("no test name contains {name}");
    }
    let again = columns.into_iter().flat_map(|column| column.again);
    lacking.map_or_else(|| Ok(again.collect()), Err)
}

/// Whether a test whose name contains this ran, or no kernel was tested.
fn matches(name: &str, columns: &[Column]) -> bool {
    let mut tests = columns.iter().flat_map(|column| column.tests.keys());
    columns.is_empty() || tests.any(|test| test.contains(name))
}

/// Default rows and controls of `bench bridge` on an emulated kernel: what that can handle.
const BENCH: [(&str, &str); 3] = [
    ("--rate", "10mbit"),
    ("--row", "udp-2,udp-10,cubic-2,cubic-10"),
    (
        "--control",
        "none,ecn,htb,fq-codel,fq-codel-ecn,cake,dctcp-red",
    ),
];
/// A run takes some 20 s, and three times as long emulated.
const BENCH_LIMIT: Duration = Duration::from_secs(7200);

/// Runs the benchmark of congestion control on a bridge on one kernel; its output is printed to stdout.
pub fn bench(series: &str, words: &[String], permission: Permission) -> Result<()> {
    setup::emulator(permission)
        .map_err(|error| Lacks(format!("no qemu to emulate kernels: {error:#}")))?;
    let kernel = fetch::kernels(&[series.to_owned()], Unavailable::Lacks)?.pop();
    let kernel = kernel.context("no kernel")??;
    let build = || {
        let mut build = cargo();
        build.args(["bench", "-p", "ecn-tests", "--bench", "bridge", "--no-run"]);
        build
    };
    step::run("the benchmark", &mut build())?;
    let messages = step::asked(build().arg("--message-format=json"));
    let messages = messages.context("asking cargo for the benchmark's binary")?;
    let bridge = executable(&messages).context("cargo reports no binary of the benchmark")?;
    let log = root().join("target/log");
    fs::create_dir_all(&log).with_context(|| format!("making {}", log.display()))?;
    let mut all = words.to_vec();
    for (name, value) in BENCH {
        let given = |word: &String| word == name || word.starts_with(&format!("{name}="));
        if !words.iter().any(given) {
            all.extend([name.to_owned(), value.to_owned()]);
        }
    }
    let quoted: Vec<String> = all.iter().map(|word| format!("'{word}'")).collect();
    let command = format!(
        "export ECN_EMULATED=1\nexec ./bridge --ecn /test/ecn {}\n",
        quoted.join(" ")
    );
    let mut guest = Guest::new(&kernel)?;
    guest.add(&root().join("target/release/ecn"), "ecn")?;
    guest.add(&bridge, "bridge")?;
    step::print(&format!("kernel {}: booting", kernel.version));
    let log = log.join(format!("bench-{series}.log"));
    let ended = guest.run(&command, BENCH_LIMIT, &log, |line| {
        if !line.starts_with("guest: ") {
            print!("{line}");
        }
    })?;
    match ended.exit {
        Some(0) => Ok(()),
        Some(code) => bail!("the benchmark exited with code {code}"),
        None => bail!(
            "the guest did not end in time, or died; see {}",
            log.display()
        ),
    }
}

/// The binaries that run in the guest.
struct Binaries {
    command: PathBuf,
    tests: PathBuf,
}

impl Binaries {
    fn build() -> Result<Self> {
        command::build()?;
        let messages = command::kernel_tests();
        let messages = messages.context("asking cargo for the tests' binary")?;
        let tests = executable(&messages).context("cargo reports no binary of the tests")?;
        Ok(Self {
            command: command::path(),
            tests,
        })
    }
}

/// The last executable in Cargo's messages.
fn executable(messages: &str) -> Option<PathBuf> {
    let key = "\"executable\":\"";
    let path = messages.lines().rev().find_map(|line| {
        let (_, rest) = line.split_once(key)?;
        rest.split('"').next()
    });
    path.map(PathBuf::from)
}

/// Tests all kernels, one guest per processor at a time: more disturb each other, and take longer in all. Those with most
/// tests come first, so that no processor is idle for long at the end.
fn run_all(kernels: &[(Kernel, Selection)], binaries: &Binaries, log: &Path) -> Vec<Column> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let mut jobs: Vec<_> = kernels.iter().enumerate().collect();
    jobs.sort_by_key(|(_, (_, selection))| Reverse(selection.tests.len()));
    let next = Mutex::new(jobs.iter());
    let done: Mutex<BTreeMap<usize, Column>> = Mutex::new(BTreeMap::new());
    let worker = || {
        loop {
            let job = next.lock().ok().and_then(|mut next| next.next());
            let Some((number, (kernel, selection))) = job else {
                break;
            };
            let column = run(kernel, binaries, selection, log);
            if let Ok(mut done) = done.lock() {
                done.insert(*number, column);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..processors.min(jobs.len()) {
            scope.spawn(worker);
        }
    });
    done.into_inner()
        .map(BTreeMap::into_values)
        .map_or_else(|_| Vec::new(), Iterator::collect)
}

/// Runs tests on a kernel, in one guest, and those that fail in a second one.
fn run(kernel: &Kernel, binaries: &Binaries, wanted: &Selection, log: &Path) -> Column {
    step::print(&format!("kernel {}: booting", kernel.version));
    // A separate log for each guest: that of a crashed one shows the reason.
    let log = |turn: usize| log.join(format!("kernel-{}-{turn}.log", kernel.series));
    let first = boot(kernel, binaries, &wanted.tests, wanted.exact, &log(1));
    let mut column = first.unwrap_or_else(|error| Column {
        version: kernel.version.clone(),
        broken: Some(format!("{error:#}")),
        ..Column::default()
    });
    // As nextest does, once: emulated kernels crash, too.
    let names = column.to_run_again(wanted);
    if !names.is_empty() {
        let shown = names.join(" ");
        step::print(&format!(
            "kernel {}: running again: {shown}",
            kernel.version
        ));
        if let Ok(again) = boot(kernel, binaries, &names, true, &log(2)) {
            column.take(again);
        }
    }
    step::print(&format!(
        "kernel {}: {}, {:.0} s",
        kernel.version,
        column.count(),
        column.took.as_secs_f64()
    ));
    column
}

/// Runs the tests with these names, or all if there are none, in a separate guest.
fn boot(
    kernel: &Kernel,
    binaries: &Binaries,
    tests: &[String],
    exact: bool,
    log: &Path,
) -> Result<Column> {
    let exact = if exact { "--exact" } else { "" };
    let command = format!(
        "export ECN_BIN=/test/ecn ECN_EMULATED=1 RUST_BACKTRACE=0\n\
         exec ./kernel --test-threads=1 {exact} {}\n",
        tests.join(" ")
    );
    let mut guest = Guest::new(kernel)?;
    guest.add(&binaries.command, "ecn")?;
    guest.add(&binaries.tests, "kernel")?;
    let ended = guest.run(&command, LIMIT, log, |_| ())?;
    Ok(Column::read(&kernel.version, &ended))
}

impl Column {
    /// Parses the output of the test harness.
    fn read(version: &str, ended: &Ended) -> Self {
        let (mut tests, current) = results(&ended.output);
        let broken = match ended.exit {
            Some(0 | 101) => None,
            Some(code) => Some(format!("the tests exited with code {code}")),
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
            again: Vec::new(),
        }
    }

    fn failed(&self) -> Vec<String> {
        let failed = |outcome: &Outcome| matches!(outcome, Outcome::Failed(_));
        let tests = self.tests.iter().filter(|(_, outcome)| failed(outcome));
        tests.map(|(name, _)| name.clone()).collect()
    }

    /// The tests to rerun in another guest: those that failed and, if this guest died, those that it did not reach.
    /// Emulated kernels have crashed with values that are impossible on a real processor.
    fn to_run_again(&self, wanted: &Selection) -> Vec<String> {
        let mut names = self.failed();
        if names.len() > ACCIDENTS || self.broken.is_some() && self.took >= LIMIT {
            return Vec::new();
        }
        if self.broken.is_some() {
            if !wanted.exact || self.tests.is_empty() {
                return Vec::new();
            }
            let left = |name: &&String| !self.tests.contains_key(*name);
            names.extend(wanted.tests.iter().filter(left).cloned());
        }
        names
    }

    /// Merges a rerun: tests that failed before and passed now, and tests that had not run before.
    fn take(&mut self, again: Self) {
        self.took += again.took;
        self.broken = again.broken;
        for (name, outcome) in again.tests {
            match self.tests.get(&name) {
                None => {
                    self.tests.insert(name, outcome);
                }
                Some(Outcome::Failed(output)) if outcome == Outcome::Passed => {
                    self.again.push(Rerun {
                        name: format!("{name} on {}", self.heading()),
                        output: output.clone(),
                    });
                    self.tests.insert(name, outcome);
                }
                _ => {}
            }
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

    /// Whether any test passed, and none failed.
    fn is_good(&self) -> bool {
        self.broken.is_none() && self.number("FAIL") == 0 && self.number("pass") > 0
    }
}

/// Tests as rows, kernels as columns; then the reasons for tests that did not pass.
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
    /// The version without the suffix common to all kernels.
    fn heading(&self) -> String {
        let version = self.version.split(['+', '-']).next();
        version.unwrap_or(&self.version).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::harness::tests::OUTPUT;
    use super::*;

    fn ended(exit: Option<i32>) -> Ended {
        Ended {
            exit,
            output: OUTPUT.to_owned(),
            took: Duration::from_secs(7),
        }
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
    fn a_test_that_passes_in_another_run_is_named() {
        let mut column = Column::read("6.1.0-56-cloud-amd64", &ended(Some(101)));
        assert_eq!(column.failed(), ["c::fails"]);
        column.take(Column::read("6.1.0-56-cloud-amd64", &ended(Some(101))));
        assert!(!column.is_good() && column.again.is_empty());
        let passes = Ended {
            output: "test c::fails ... ok\n".to_owned(),
            ..ended(Some(0))
        };
        column.take(Column::read("6.1.0-56-cloud-amd64", &passes));
        assert!(column.is_good());
        assert_eq!(column.again[0].name, "c::fails on 6.1.0");
        assert!(column.again[0].output.contains("no echo"));
    }

    #[test]
    fn tests_not_reached_by_a_dead_guest_are_rerun() {
        let wanted = |exact| Selection {
            tests: ["a::passes", "d::hangs", "e::later"]
                .map(str::to_owned)
                .to_vec(),
            exact,
        };
        let mut column = Column::read("6.1", &ended(None));
        assert_eq!(
            column.to_run_again(&wanted(true)),
            ["c::fails", "d::hangs", "e::later"]
        );
        assert!(column.to_run_again(&wanted(false)).is_empty());
        let passes = |names: &[&str]| Ended {
            output: names
                .iter()
                .map(|name| format!("test {name} ... ok\n"))
                .collect(),
            ..ended(Some(0))
        };
        column.take(Column::read(
            "6.1",
            &passes(&["c::fails", "d::hangs", "e::later"]),
        ));
        assert!(column.is_good() && column.to_run_again(&wanted(true)).is_empty());
        assert_eq!(column.again.len(), 2);
        assert!(column.again[1].output.contains("died, in d::hangs"));
        let mut late = Column::read("6.1", &ended(None));
        late.took = LIMIT;
        assert!(late.to_run_again(&wanted(true)).is_empty());
    }

    #[test]
    fn every_kernel_has_tests_to_decide() {
        let tests = |series| Selection::decided_by(series).tests;
        for series in EVERY_RUN {
            assert!(tests(series).contains(&"verifier::every_program_passes".to_owned()));
        }
        let known = |(_, kernels): &(_, &[&str])| kernels.iter().all(|k| EVERY_RUN.contains(k));
        assert!(DECIDED_BY_KERNEL.iter().all(known));
        assert!(tests("5.10").len() > tests("6.12").len());
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
        let lacks =
            || Err::<(), _>(anyhow::Error::from(Lacks("no mirror".into())).context("kernel 6.1"));
        let skipped = required_in_ci(lacks(), false).expect_err("nothing was tested");
        assert!(skipped.is::<Lacks>());
        let failed = required_in_ci(lacks(), true).expect_err("nothing was tested");
        assert!(!failed.is::<Lacks>());
        assert_eq!(failed.to_string(), "kernel 6.1: no mirror");
        assert!(required_in_ci(Ok(()), true).is_ok());
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
