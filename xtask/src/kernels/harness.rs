//! Parses the output of Rust's test harness in a guest. Nextest, which runs all other tests, needs more than a kernel
//! and an initramfs.

use std::collections::BTreeMap;

/// Result of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Skipped(String),
    Failed(String),
}

impl Outcome {
    /// The word in tables.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Passed => "pass",
            Self::Skipped(_) => "skip",
            Self::Failed(_) => "FAIL",
        }
    }
}

/// The tests' results, and the test that was still running when the output ended.
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
        // A test's output is between its name and its result.
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

/// The output of a failed test, including its panic message, as one line, truncated.
fn panic_of(output: &str, name: &str) -> String {
    let begin = format!("---- {name} stdout ----");
    let lines = output.lines().skip_while(|line| *line != begin).skip(1);
    let lines = lines.take_while(|line| !line.starts_with("---- ") && *line != "failures:");
    let output: Vec<_> = lines
        .filter(|line| !line.trim().is_empty() && !line.starts_with("note: "))
        .collect();
    output.join(" | ").chars().take(600).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub const OUTPUT: &str = "\nrunning 4 tests\n\
        test a::passes ... ok\n\
        test a::talks ... \nverifier: ecn_drop 5 instructions\nok\n\
        test b::skips ... \nskipped b::skips: needs fq\nok\n\
        test c::fails ... FAILED\n\
        test d::hangs ... \nsomething\n\n\
        failures:\n\n---- c::fails stdout ----\n\nthread 'c' panicked at x.rs:1:2:\nno echo\n\
        note: run with `RUST_BACKTRACE=1`\n\n\nfailures:\n    c::fails\n";

    #[test]
    fn harness_output_is_parsed() {
        let (tests, current) = results(OUTPUT);
        assert_eq!(tests["a::passes"], Outcome::Passed);
        assert_eq!(tests["a::talks"], Outcome::Passed);
        assert_eq!(tests["b::skips"], Outcome::Skipped("needs fq".into()));
        let output = "thread 'c' panicked at x.rs:1:2: | no echo";
        assert_eq!(tests["c::fails"], Outcome::Failed(output.into()));
        assert_eq!(current.as_deref(), Some("d::hangs"));
    }
}
