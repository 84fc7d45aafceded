//! What Rust's test harness says, and tests that are run again.
//!
//! Tests with real traffic share the machine with others, who can make any of them late. One that fails is run again,
//! alone; if it passes then, the summary names it, with what it said first. Where many fail, nothing is run again.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Error, Result, anyhow, bail};

use crate::step;

/// How often failed tests are run again.
pub const RERUNS: usize = 2;

/// More failures than these are no accident.
const ACCIDENTS: usize = 3;

/// Whether these failed for a reason that another run does not take away.
pub fn too_many(failed: &[String]) -> bool {
    failed.len() > ACCIDENTS
}

/// A test that failed, and passed when it was run again.
#[derive(Debug)]
pub struct Again {
    pub name: String,
    /// What it said as it failed.
    pub said: String,
}

/// Runs tests by a command that ends with arguments for the harness, and those that fail again.
pub fn run(why: &str, tests: impl Fn() -> Command) -> Result<Vec<Again>> {
    let (result, output) = step::captured(why, &mut tests());
    let mut failed = failures(&output);
    let Err(error) = result else {
        return Ok(Vec::new());
    };
    if failed.is_empty() {
        return Err(error);
    }
    let again = failed.iter().map(|name| Again {
        name: name.clone(),
        said: panic_of(&output, name),
    });
    let again: Vec<_> = again.collect();
    if too_many(&failed) {
        return Err(with_tests(&error, &again));
    }
    let mut result = Err(error);
    for _ in 0..RERUNS {
        let mut command = tests();
        command.arg("--exact").args(&failed);
        let output;
        (result, output) = step::captured("what failed, again", &mut command);
        let (outcomes, _) = results(&output);
        if let Some(name) = failed.iter().find(|name| !outcomes.contains_key(*name)) {
            bail!("{name} failed, and was not found when it was to be run again");
        }
        failed.retain(|name| matches!(outcomes[name], Outcome::Failed(_)));
        if result.is_ok() || failed.is_empty() {
            break;
        }
    }
    match result {
        Ok(()) => Ok(again),
        Err(error) => {
            let still: Vec<_> = again
                .into_iter()
                .filter(|one| failed.contains(&one.name))
                .collect();
            Err(with_tests(&error, &still))
        }
    }
}

/// The error, and a line for each test that failed.
fn with_tests(error: &Error, failed: &[Again]) -> Error {
    let lines = failed
        .iter()
        .map(|Again { name, said }| format!("\n    {name}: {said}"));
    anyhow!("{error:#}{}", lines.collect::<String>())
}

/// The names of failed tests, as each program's harness lists them at its end.
fn failures(output: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut listed = false;
    for line in output.lines() {
        listed = line == "failures:" || listed && line.starts_with("    ");
        if let Some(name) = line.strip_prefix("    ").filter(|_| listed) {
            names.push(name.to_owned());
        }
    }
    names
}

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Skipped(String),
    Failed(String),
}

impl Outcome {
    /// In a table.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Passed => "pass",
            Self::Skipped(_) => "skip",
            Self::Failed(_) => "FAIL",
        }
    }
}

/// The tests' outcomes, and the test that had not ended.
pub fn results(output: &str) -> (BTreeMap<String, Outcome>, Option<String>) {
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

#[cfg(test)]
pub mod tests {
    use super::*;
    use tempfile::TempDir;

    pub const OUTPUT: &str = "\nrunning 4 tests\n\
        test a::passes ... ok\n\
        test a::talks ... \nverifier: ecn_drop 5 instructions\nok\n\
        test b::skips ... \nskipped b::skips: needs fq\nok\n\
        test c::fails ... FAILED\n\
        test d::hangs ... \nsomething\n\n\
        failures:\n\n---- c::fails stdout ----\n\nthread 'c' panicked at x.rs:1:2:\nno echo\n\
        note: run with `RUST_BACKTRACE=1`\n\n\nfailures:\n    c::fails\n";

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
    fn failures_are_listed_at_the_end() {
        assert_eq!(failures(OUTPUT), ["c::fails"]);
        let two = format!("{OUTPUT}\ntest result: FAILED.\n    note\n{OUTPUT}");
        assert_eq!(failures(&two), ["c::fails", "c::fails"]);
        assert!(failures("test a ... ok\n\ntest result: ok.\n").is_empty());
    }

    /// Tests by a script that speaks as the harness does and writes to `$RUNS` each time.
    fn script(text: &str) -> (TempDir, impl Fn() -> Command + use<>) {
        let folder = tempfile::tempdir().expect("a folder");
        let runs = folder.path().join("runs");
        let text = format!("echo >> $RUNS; runs=$(wc -l < $RUNS); {text}");
        let tests = move || {
            let mut command = Command::new("sh");
            command.args(["-c", &text, "harness"]).env("RUNS", &runs);
            command
        };
        (folder, tests)
    }

    #[test]
    fn what_passes_in_another_run_is_named() {
        for (passes, named) in [(1, 0), (2, 1), (3, 1)] {
            let (_folder, tests) = script(&fails_before(passes));
            let again = run("test", tests).expect("it passes in the end");
            assert_eq!(again.len(), named, "{passes}");
            assert!(
                again
                    .iter()
                    .all(|one| one.name == "made_up" && one.said == "late")
            );
        }
        let (_folder, tests) = script(&fails_before(4));
        let error = run("test", tests).expect_err("it never passed");
        assert!(error.to_string().contains("\n    made_up: late"), "{error}");
    }

    fn fails_before(run: usize) -> String {
        format!(
            "if [ $runs -ge {run} ]; then echo 'test made_up ... ok'; exit 0; fi; printf '%s\\n' \
             'test a ... ok' 'test made_up ... FAILED' '' 'failures:' '' '---- made_up stdout ----' late '' \
             'failures:' '    made_up' ''; exit 101"
        )
    }

    #[test]
    fn many_failures_are_not_run_again() {
        let (folder, tests) =
            script("printf '%s\\n' failures: '    a' '    made_up' '    c' '    d'; exit 101");
        let error = run("test", tests).expect_err("four failed").to_string();
        assert!(error.contains("\n    made_up: "), "{error}");
        let runs = std::fs::read_to_string(folder.path().join("runs")).expect("what was counted");
        assert_eq!(runs.lines().count(), 1);
    }

    #[test]
    fn a_test_that_is_not_run_again_has_not_passed() {
        let (_folder, tests) =
            script("[ $runs = 1 ] || exit 0; printf '%s\\n' failures: '    gone'; exit 101");
        run("test", tests).expect_err("nothing ran again");
    }
}
