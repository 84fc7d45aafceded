//! Checks the wording: phrases and names that readers would not guess, each with a replacement.

use std::fs;
use std::process::Command;

use anyhow::{Result, bail};

use crate::machine::root;
use crate::step;

/// Files that are checked: code, help (which is in code), and docs.
const FILES: [&str; 4] = ["*.rs", "*.md", "*.toml", "*.py"];
/// This file, which contains the phrases.
const OWN: &str = "xtask/src/words.rs";

/// Lower-case phrases, as whole words in any file, and their replacements.
const PHRASES: [(&str, &str); 19] = [
    ("is allowed", "must be between ... and ..."),
    ("are allowed", "must be between ... and ..."),
    ("allowed are", "must be between ... and ..."),
    ("allowed is", "must be ..."),
    ("has no meaning", "does not apply to"),
    ("have no meaning", "do not apply to"),
    ("` is no", "unknown or invalid `...`, is not a"),
    ("flows are free", "rate limits lapse, fail open"),
    ("are gone", "are removed, detached, closed"),
    ("is told", "is notified of, gets, takes"),
    ("are told", "are notified of, get, take"),
    ("told by class", "reported per class"),
    ("there is none", "none exists, is not available"),
    ("is there twice", "duplicate"),
    ("begins anew", "restarts"),
    ("begin anew", "restart"),
    ("are there while", "are streamed"),
    ("/// padding.", "#[doc(hidden)] and no comment"),
    ("likewise.", "what it is"),
];

/// Parts of names in Rust code, and their replacements.
const NAMES: [(&str, &str); 6] = [
    ("stir", "new_feedback"),
    ("stirred", "feedback_generation"),
    ("hurry", "set_psh"),
    ("unsaid", "pending"),
    ("sayable", "max_encodable"),
    ("strange", "inapplicable"),
];

/// Fails if a tracked file contains any of them.
pub fn check() -> Result<()> {
    let mut list = Command::new("git");
    list.args(["ls-files", "--"])
        .args(FILES)
        .current_dir(root());
    let Some(files) = step::asked(&mut list) else {
        step::print("not a git checkout: words are not checked");
        return Ok(());
    };
    let mut found = Vec::new();
    for file in files.lines().filter(|file| *file != OWN) {
        // A file that was deleted but is still tracked.
        let Ok(text) = fs::read_to_string(root().join(file)) else {
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            for (word, instead) in in_line(line, file.ends_with(".rs")) {
                found.push(format!("{file}:{}: `{word}`: write {instead}", number + 1));
            }
        }
    }
    if !found.is_empty() {
        bail!(
            "{} phrases to replace:\n    {}",
            found.len(),
            found.join("\n    ")
        );
    }
    Ok(())
}

/// The phrases and names in a line, with their replacements.
fn in_line(line: &str, is_rust: bool) -> Vec<(&'static str, &'static str)> {
    let line = line.to_lowercase();
    let contains = |word: &str, is_letter: fn(char) -> bool| {
        line.match_indices(word).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + word.len()..].chars().next();
            let inside = |neighbour: Option<char>, edge: Option<char>| {
                edge.is_some_and(is_letter) && neighbour.is_some_and(is_letter)
            };
            !inside(before, word.chars().next()) && !inside(after, word.chars().next_back())
        })
    };
    let phrases = PHRASES
        .into_iter()
        .filter(|(word, _)| contains(word, |c| c.is_alphanumeric() || c == '_'));
    // Names consist of words with underscores between them.
    let names = NAMES
        .into_iter()
        .filter(|(word, _)| is_rust && contains(word, char::is_alphanumeric));
    phrases.chain(names).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_are_found_as_whole_words() {
        let found = |line: &str| {
            in_line(line, true)
                .into_iter()
                .map(|(word, _)| word)
                .collect::<Vec<_>>()
        };
        assert_eq!(found("    // 1us to 1s is allowed."), ["is allowed"]);
        assert_eq!(found("`x` is no scenario"), ["` is no"]);
        assert_eq!(
            found("let unsaid_marks = a.stirred;"),
            ["stirred", "unsaid"]
        );
        assert!(found("this allowed area, a stirrup").is_empty());
        assert!(in_line("unsaid", false).is_empty());
    }
}
