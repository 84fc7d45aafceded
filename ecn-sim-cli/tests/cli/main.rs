//! Tests of the simulator as a program: one binary, since each compiles what it uses of the library again.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod commands;
mod fabric;
mod golden;
mod matrix;
mod recipes;
mod reproduce;
mod sweep;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The crate's folder of scenario files.
fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ecn-sim/scenarios")
}

/// A temporary folder, in which commands are run.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        let path = self.path(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The names of the files in a folder below this one, sorted and separated by spaces.
    fn files(&self, name: &str) -> String {
        let files = fs::read_dir(self.path(name)).unwrap();
        let mut names: Vec<String> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names.join(" ")
    }

    /// `ecn-sim` with these words; `SCENARIOS` stands for [`scenarios`].
    fn command(&self, words: &str) -> Command {
        let scenarios = scenarios().display().to_string();
        let words = words.split_whitespace();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ecn-sim"));
        command
            .current_dir(&self.0)
            .args(words.map(|word| word.replace("SCENARIOS", &scenarios)));
        command
    }

    fn sim(&self, words: &str) -> Ran {
        let output = self.command(words).output().unwrap();
        Ran {
            words: words.to_owned(),
            code: output.status.code().unwrap(),
            printed: String::from_utf8(output.stdout).unwrap(),
            error: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Runs a command that writes no files, or whose files do not matter.
fn sim(words: &str) -> Ran {
    Folder::new().sim(words)
}

/// A command that has ended.
struct Ran {
    words: String,
    code: i32,
    printed: String,
    error: String,
}

impl Ran {
    /// What a successful command printed.
    #[track_caller]
    fn done(self) -> String {
        assert_eq!(self.code, 0, "{}: {}", self.words, self.error);
        self.printed
    }

    /// The JSON document that a successful command printed.
    #[track_caller]
    fn json(self) -> Value {
        serde_json::from_str(&self.done()).expect("one JSON document")
    }

    /// Asserts that the command was refused with one line that contains `needed`.
    #[track_caller]
    fn refused(&self, needed: &str) {
        self.failed(2, needed);
        assert!(self.printed.is_empty(), "{}: {}", self.words, self.printed);
    }

    /// Asserts that the command failed with this exit code and one line that contains `needed`.
    #[track_caller]
    fn failed(&self, code: i32, needed: &str) {
        let Self { words, error, .. } = self;
        assert_eq!(self.code, code, "{words}: {error}");
        assert_eq!(error.lines().count(), 1, "{words}: {error}");
        assert!(error.contains(needed), "{words}: {error}");
    }
}

/// The cases of a table: a line each, with ` => ` before what is expected. `\n` stands for a line break.
fn cases(table: &str) -> impl Iterator<Item = (String, &str)> {
    let lines = table.lines().filter(|line| !line.is_empty());
    lines.map(|line| {
        let (case, expected) = line.split_once(" => ").expect(line);
        (case.replace("\\n", "\n"), expected)
    })
}
