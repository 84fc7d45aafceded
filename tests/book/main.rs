//! The README and the book, `docs/`: every command is run, or parsed where it says so, and its output is compared.
//!
//! | block | what is tested |
//! |---|---|
//! | `console` | `$ ` commands are run, and their output is that shown; `...` stands for any lines |
//! | `console varies` | likewise, but figures are not compared |
//! | `console second-terminal` | runs beside the blocks that follow, until `^C` |
//! | `sh` | is run, and succeeds |
//! | `console norun`, `sh norun` | is a script that the shell and the command line of `ecn` accept |
//! | `toml agent` | a configuration of `ecn run` |
//! | `toml`, `... file=NAME` | TOML; what the file that later commands name has in it |
//!
//! `INSTA_UPDATE=always cargo test -p ecn-tests --test book` writes the current output into the pages.

mod blocks;
mod compare;
mod generated;
mod readme;
mod session;
mod static_checks;

use std::process::Command;

use ecn_tests::{ecn_or_skip, kernel_test};

/// A test per chapter with commands that need no kernel.
macro_rules! chapters {
    ($($name:ident $file:literal)+) => {
        const CHAPTERS: &[&str] = &[$($file),+];

        $(#[test]
        fn $name() {
            session::run(concat!("docs/", $file, ".md"), &ecn_or_skip!());
        })+
    };
}

chapters! {
    bridges "bridges"
    compare_schemes "compare"
    data_centres "data-centres"
    networks "networks"
    reproduce "reproduce"
    results "results"
    scenarios "scenarios"
    schemes "schemes"
    simulator "simulator"
    sweeps "sweeps"
    testbed "testbed"
}

/// Removes the tutorial's namespaces and what still runs in them, if it failed.
struct Namespaces;

impl Drop for Namespaces {
    fn drop(&mut self) {
        let kill = "for n in a b c; do ip netns pids demo-$n | xargs -r kill; done";
        let _ = Command::new("sh").args(["-c", kill]).output();
    }
}

/// The tutorial creates its own namespaces, and runs the agent.
#[test]
fn tutorial() {
    kernel_test!();
    let _namespaces = Namespaces;
    session::run("docs/tutorial.md", &ecn_or_skip!());
}

#[test]
fn every_chapter_with_commands_is_run() {
    for chapter in blocks::chapters() {
        let page = blocks::Page::read(&format!("docs/{chapter}.md"));
        let runs = page.blocks.iter().any(blocks::Block::is_run);
        let is_listed = chapter == "tutorial" || CHAPTERS.contains(&&chapter[..]);
        assert_eq!(runs, is_listed, "{chapter}");
    }
}
