//! Checks of pages that run nothing.

use std::{
    fs,
    process::{Command, Stdio},
};

use clap::{Parser as _, error::ErrorKind};
use ecn_user::{cli::Cli, config::Config};

use crate::blocks::{Block, MARKS, Page, root};

/// Lines of one page.
const README_LINES: usize = 150;
const README_BYTES: usize = 9_000;

#[test]
fn the_readme_is_one_page() {
    let readme = fs::read_to_string(root().join("README.md")).expect("the README");
    assert!(
        readme.lines().count() <= README_LINES,
        "{} lines",
        readme.lines().count()
    );
    assert!(readme.len() <= README_BYTES, "{} bytes", readme.len());
}

#[test]
fn blocks_have_known_languages_and_marks() {
    for page in Page::all() {
        for block in &page.blocks {
            let at = format!("{}:{}", page.path.display(), block.lines.0);
            let known = ["console", "csv", "python", "sh", "text", "toml", "yaml"];
            assert!(
                known.contains(&&block.language[..]),
                "{at}: {:?}",
                block.language
            );
            for mark in &block.marks {
                let is_known = MARKS.contains(&&mark[..]) || mark.starts_with("file=");
                assert!(is_known, "{at}: {mark:?}");
            }
            if block.language == "console" {
                let starts = ["$ ", "^C"]
                    .iter()
                    .any(|start| block.text.starts_with(start));
                assert!(starts, "{at}: no command");
            }
        }
        // Commands in indented blocks would not be run by any test.
        let outside = page.text.lines().find(|line| {
            let line = line.strip_prefix("    ").unwrap_or_default();
            ["ecn ", "cargo ", "$ "]
                .iter()
                .any(|start| line.starts_with(start))
        });
        assert!(
            outside.is_none_or(|line| in_a_block(&page, line)),
            "{:?}: {outside:?}",
            page.path
        );
    }
}

fn in_a_block(page: &Page, line: &str) -> bool {
    page.blocks
        .iter()
        .any(|block| block.text.lines().any(|other| other == line))
}

#[test]
fn configurations_are_valid() {
    let mut checked = 0;
    for page in Page::all() {
        for block in page.blocks.iter().filter(|block| block.language == "toml") {
            let at = format!("{}:{}", page.path.display(), block.lines.0);
            if block.is("agent") {
                let config = Config::parse(&block.text, &at);
                let config = config.unwrap_or_else(|error| panic!("{error}"));
                config
                    .validate()
                    .unwrap_or_else(|error| panic!("{at}: {error}"));
                checked += 1;
            }
            let value = block.text.parse::<toml::Table>();
            assert!(value.is_ok(), "{at}: {value:?}");
        }
    }
    assert!(checked > 4, "only {checked}: are they marked?");
}

/// The error that `bash -n` reports for a script, if any.
fn syntax_error(script: &str) -> Option<String> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(&file, script).expect("a script");
    let mut bash = Command::new("bash");
    let output = bash
        .arg("-n")
        .arg(file.path())
        .stdin(Stdio::null())
        .output();
    let output = output.expect("bash");
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn scripts_are_accepted_by_the_shell() {
    for page in Page::all() {
        let scripts = ["console", "sh"];
        for block in page
            .blocks
            .iter()
            .filter(|block| scripts.contains(&&block.language[..]))
        {
            let error = syntax_error(&block.script());
            assert!(
                error.is_none(),
                "{:?}:{}: {error:?}",
                page.path,
                block.lines.0
            );
        }
    }
}

/// Whether the command line accepts these words: a whole command, or the beginning of one.
fn accepted(words: &str, whole: bool) -> Result<(), String> {
    let words = words.split_whitespace().map(|word| word.trim_matches('\''));
    let words = words.take_while(|word| !["&&", "|", ">", "&", "#", ";"].contains(word));
    match Cli::try_parse_from(words) {
        Ok(_) => Ok(()),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(()),
            ErrorKind::MissingRequiredArgument
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::MissingSubcommand
            | ErrorKind::WrongNumberOfValues
                if !whole =>
            {
                Ok(())
            }
            // A placeholder, as in `--out DIR`.
            ErrorKind::InvalidValue | ErrorKind::ValueValidation if !whole => Ok(()),
            _ => Err(error.to_string()),
        },
    }
}

#[test]
fn the_command_line_takes_what_pages_show() {
    let mut checked = 0;
    for page in Page::all() {
        for block in page
            .blocks
            .iter()
            .filter(|block| ["console", "sh"].contains(&&block.language[..]))
        {
            let script = block.script().replace("\\\n", "");
            for line in script.lines().filter_map(ecn_command) {
                // Values of shell variables are unknown.
                let taken = accepted(line, !line.contains('$'));
                assert!(
                    taken.is_ok(),
                    "{:?}:{}: {taken:?}",
                    page.path,
                    block.lines.0
                );
                checked += 1;
            }
        }
        for quoted in quoted(&page).filter(|quoted| quoted.starts_with("ecn ")) {
            let taken = accepted(quoted, false);
            assert!(taken.is_ok(), "{:?}: `{quoted}`: {taken:?}", page.path);
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked}: is the format another?");
}

/// The call of `ecn` in a line, without what precedes it.
fn ecn_command(line: &str) -> Option<&str> {
    let line = line.trim();
    let line = line.strip_prefix("exec ").unwrap_or(line);
    line.starts_with("ecn ").then_some(line)
}

/// Inline code of a page.
fn quoted(page: &Page) -> impl Iterator<Item = &str> {
    let in_block = |number: usize| {
        let of = |block: &Block| (block.lines.0 - 1..=block.lines.1).contains(&number);
        page.blocks.iter().any(of)
    };
    let lines = page.text.lines().enumerate();
    let lines = lines.filter(move |(number, _)| !in_block(*number));
    lines.flat_map(|(_, line)| line.split('`').skip(1).step_by(2))
}
