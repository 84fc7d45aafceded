//! The fenced blocks of a page, and the commands in them.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Attributes of a block, after its language.
pub const MARKS: [&str; 5] = ["agent", "norun", "partial", "second-terminal", "varies"];

/// A page of Markdown.
pub struct Page {
    pub path: PathBuf,
    pub text: String,
    pub blocks: Vec<Block>,
}

/// A fenced block.
#[derive(Clone)]
pub struct Block {
    /// Lines of the page between the fences: first, and one past the last.
    pub lines: (usize, usize),
    pub language: String,
    /// Marks, and `file=NAME`.
    pub marks: Vec<String>,
    pub text: String,
}

/// A command and its output.
pub struct Example {
    /// Several lines if it continues with `> `.
    pub command: String,
    pub output: String,
}

/// The project's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

impl Page {
    /// Reads a page by its path in the project.
    pub fn read(path: &str) -> Self {
        let path = root().join(path);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for (number, line) in text.lines().enumerate() {
            match (&mut open, line.strip_prefix("```")) {
                (None, Some(info)) => {
                    let mut words = info.split(' ').map(str::to_owned);
                    open = Some(Block {
                        lines: (number + 1, number + 1),
                        language: words.next().unwrap_or_default(),
                        marks: words.collect(),
                        text: String::new(),
                    });
                }
                (Some(_), Some(_)) => blocks.extend(open.take().map(|mut block| {
                    block.lines.1 = number;
                    block
                })),
                (Some(block), None) => block.text += &format!("{line}\n"),
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{path:?}: a block has no end");
        Self { path, text, blocks }
    }

    /// Every page: the README, and the chapters of the book.
    pub fn all() -> Vec<Self> {
        let mut names = vec!["README.md".to_owned()];
        names.extend(chapters().into_iter().map(|name| format!("docs/{name}.md")));
        names.iter().map(|name| Self::read(name)).collect()
    }
}

/// The names of the chapters, in the order of the files.
pub fn chapters() -> Vec<String> {
    let files = fs::read_dir(root().join("docs")).expect("the book");
    let names = files.map(|file| file.expect("a file").file_name());
    let names = names.filter_map(|name| Some(name.to_str()?.strip_suffix(".md")?.to_owned()));
    let mut names: Vec<_> = names.filter(|name| name != "SUMMARY").collect();
    names.sort();
    names
}

impl Block {
    pub fn is(&self, mark: &str) -> bool {
        self.marks.iter().any(|other| other == mark)
    }

    /// The file whose content the block is.
    pub fn file(&self) -> Option<&str> {
        self.marks
            .iter()
            .find_map(|mark| mark.strip_prefix("file="))
    }

    /// Whether a test runs it.
    pub fn is_run(&self) -> bool {
        ["console", "sh"].contains(&self.language.as_str()) && !self.is("norun")
    }

    /// The commands of a `console` block.
    pub fn examples(&self) -> Vec<Example> {
        let mut examples: Vec<Example> = Vec::new();
        for line in self.text.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                examples.push(Example {
                    command: command.to_owned(),
                    output: String::new(),
                });
                continue;
            }
            let example = examples.last_mut().expect("a command before its output");
            match line.strip_prefix("> ") {
                Some(more) if example.output.is_empty() => {
                    example.command += &format!("\n{more}");
                }
                _ => example.output += &format!("{line}\n"),
            }
        }
        examples
    }

    /// Whether it interrupts the command in the second terminal.
    pub fn is_interrupt(&self) -> bool {
        self.text == "^C\n"
    }

    /// Its commands as a script.
    pub fn script(&self) -> String {
        if self.is_interrupt() {
            return String::new();
        }
        if self.language == "sh" {
            return self.text.clone();
        }
        let examples = self.examples().into_iter();
        examples.map(|example| example.command + "\n").collect()
    }
}
