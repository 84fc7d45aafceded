//! `docs/scenarios.md`: each command is run, and its output compared.

use std::fs;
use std::path::Path;
use std::process::Command;

/// The times that runs took are this machine's.
fn without_times(text: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in text.trim_end().lines() {
        let took = line.rsplit_once(" in ").filter(|(_, time)| {
            let seconds = time
                .strip_suffix(" s")
                .and_then(|time| time.parse::<f64>().ok());
            seconds.is_some()
        });
        lines.push(took.map_or(line, |(what, _)| what).trim_end());
    }
    lines.join("\n")
}

/// Commands, which are indented, and what they print, in the block of `text` behind them.
fn examples(page: &str) -> Vec<(String, String)> {
    let mut examples = Vec::new();
    let mut blocks = page.split("```text\n");
    let mut before = blocks.next().unwrap_or_default();
    for block in blocks {
        let (output, after) = block.split_once("```").expect("the end of a block");
        let command = before
            .lines()
            .rev()
            .find(|line| line.starts_with("    ecn sim "));
        let command = command.expect("a command before each output").trim();
        examples.push((command.to_owned(), output.to_owned()));
        before = after;
    }
    examples
}

/// The same lines; `...` stands for any others.
fn says(printed: &str, expected: &str) -> bool {
    let mut left: Vec<&str> = printed.lines().collect();
    let parts = expected.lines().collect::<Vec<_>>();
    let mut parts = parts.split(|line| *line == "...").peekable();
    let first = parts.next().unwrap_or_default();
    if !left.starts_with(first) {
        return false;
    }
    left.drain(..first.len());
    if parts.peek().is_none() {
        return left.is_empty();
    }
    while let Some(part) = parts.next() {
        let at = match parts.peek() {
            Some(_) => left.windows(part.len()).position(|lines| lines == part),
            None => Some(left.len().saturating_sub(part.len())).filter(|_| left.ends_with(part)),
        };
        let Some(at) = at else { return false };
        left.drain(..at + part.len());
    }
    true
}

#[test]
fn dots_stand_for_lines() {
    for (expected, same) in [
        ("a\nb\nc", true),
        ("a\n...\nc", true),
        ("a\n...\nb\n...\nc", true),
        ("a\nc", false),
        ("a\n...\nb", false),
        ("a\n...\nd\n...\nc", false),
    ] {
        assert_eq!(says("a\nb\nc", expected), same, "{expected}");
    }
}

#[test]
fn the_page_says_what_the_commands_print() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(root.join("docs/scenarios.md")).expect("the page");
    let commands = page.lines().filter(|line| line.starts_with("    ecn sim "));
    let examples = examples(&page);
    assert_eq!(
        examples.len(),
        commands.count(),
        "an output for each command"
    );
    assert!(examples.len() >= 6);
    let folder = tempfile::tempdir().expect("a folder");
    for (command, expected) in examples {
        let words = command.split_whitespace().skip(2);
        let words = words.map(|word| match word {
            "network.svg" => folder.path().join(word).display().to_string(),
            word => word.to_owned(),
        });
        let output = Command::new(env!("CARGO_BIN_EXE_ecn-sim"))
            .args(words)
            .current_dir(&root)
            .output()
            .expect("ecn-sim runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {error}");
        let printed = String::from_utf8_lossy(&output.stdout);
        let printed = printed.replace(&format!("{}/", folder.path().display()), "");
        let (printed, expected) = (without_times(&printed), without_times(&expected));
        assert!(says(&printed, &expected), "{command} prints\n{printed}");
    }
}
