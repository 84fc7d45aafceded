//! Sections and keys of the file, and where they are in it.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::notifications::{BCN_KEYS, QCN_KEYS};
use super::{Problem, suggestion};

/// A section of the file and the keys it takes.
pub(super) struct Section {
    pub(super) name: &'static str,
    /// Written `[[name]]`, any number of times.
    pub(super) is_list: bool,
    pub(super) required: &'static [&'static str],
    pub(super) keys: &'static [&'static str],
}

impl Section {
    pub(super) fn header(&self) -> String {
        if self.is_list {
            format!("[[{}]]", self.name)
        } else {
            format!("[{}]", self.name)
        }
    }
}

pub(super) const SECTIONS: [Section; 9] = [
    Section {
        name: "bridge",
        is_list: true,
        required: &["name"],
        keys: &[
            "name",
            "netns",
            "marking",
            "buffer",
            "threshold",
            "mark_at",
            "feedback",
            "messages_per_s",
            "severe_threshold",
            "shares",
            "unmarkable",
            "drop_threshold",
            "peers",
            "ports",
            "queue",
            "queue_rate",
            "queue_rates",
        ],
    },
    Section {
        name: "endpoint",
        is_list: true,
        required: &["device"],
        keys: &[
            "device",
            "netns",
            "link_rate",
            "enforcement",
            "hook",
            "tcp",
            "feedback",
            "limit_by",
        ],
    },
    Section {
        name: "response",
        is_list: false,
        required: &[],
        keys: &["function", "rmin", "m", "round"],
    },
    Section {
        name: "echo",
        is_list: false,
        required: &[],
        keys: &["protocol", "every", "key", "also_accept"],
    },
    Section {
        name: "bcn",
        is_list: false,
        required: &[],
        keys: BCN_KEYS,
    },
    Section {
        name: "qcn",
        is_list: false,
        required: &[],
        keys: QCN_KEYS,
    },
    Section {
        name: "flow",
        is_list: false,
        required: &[],
        keys: &["idle", "max"],
    },
    Section {
        name: "agent",
        is_list: false,
        required: &[],
        keys: &["period", "heartbeat", "keep", "pin", "cgroup"],
    },
    Section {
        name: "metrics",
        is_list: false,
        required: &[],
        keys: &["listen", "top_flows"],
    },
];

pub(super) const TOP_KEYS: [&str; 10] = [
    "version", "bridge", "endpoint", "response", "echo", "bcn", "qcn", "flow", "agent", "metrics",
];

/// The value of the file that a problem is about.
#[derive(Clone, Copy)]
pub(super) struct Location {
    pub(super) section: &'static str,
    /// Index among the sections of this name, for `[[section]]`.
    pub(super) index: usize,
    pub(super) key: &'static str,
}

/// A text and its parsed form, to locate keys and values.
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
    pub(super) table: DeTable<'a>,
}

impl Source<'_> {
    fn line(&self, offset: usize) -> usize {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    pub(super) fn problem(&self, offset: Option<usize>, message: String) -> Problem {
        Problem {
            message,
            path: Some(self.path.to_owned()),
            line: offset.map(|offset| self.line(offset)),
        }
    }

    /// Sections of this name as (offset of the header, keys and values).
    pub(super) fn sections(&self, name: &str) -> Vec<(usize, &DeTable<'_>)> {
        let Some(value) = self.table.get(name) else {
            return Vec::new();
        };
        match value.get_ref() {
            DeValue::Table(table) => vec![(value.span().start, table)],
            DeValue::Array(array) => array
                .iter()
                .filter_map(|item| match item.get_ref() {
                    DeValue::Table(table) => Some((item.span().start, table)),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Offset of a value, or of its section's beginning if the value is not in the file.
    pub(super) fn locate(&self, at: Location) -> Option<usize> {
        if at.section.is_empty() {
            return self.table.get(at.key).map(|value| value.span().start);
        }
        let sections = self.sections(at.section);
        let (header, table) = sections.get(at.index)?;
        Some(
            table
                .get(at.key)
                .map_or(*header, |value| value.span().start),
        )
    }

    /// Names the key whose value covers `offset`: `` `marking` in [[bridge]] ``.
    pub(super) fn name_at(&self, offset: usize) -> Option<String> {
        for section in &SECTIONS {
            for (_, table) in self.sections(section.name) {
                for (key, value) in table.iter() {
                    if value.span().contains(&offset) {
                        return Some(format!("`{}` in {}", key.get_ref(), section.header()));
                    }
                }
            }
        }
        let (key, _) = self
            .table
            .iter()
            .find(|(_, value)| value.span().contains(&offset))?;
        Some(format!("`{}`", key.get_ref()))
    }

    /// Unknown and missing keys, and unknown sections, whatever their values.
    pub(super) fn unknown_and_missing(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (key, value) in self.table.iter() {
            let name = key.get_ref().as_ref();
            if !TOP_KEYS.contains(&name) {
                problems.push(self.problem(Some(key.span().start), unknown_top(name, value)));
                continue;
            }
            let Some(section) = SECTIONS.iter().find(|section| section.name == name) else {
                continue;
            };
            let fits = match value.get_ref() {
                DeValue::Table(_) => !section.is_list,
                DeValue::Array(array) => {
                    section.is_list && array.iter().all(|item| item.get_ref().is_table())
                }
                _ => false,
            };
            if !fits {
                let header = section.header();
                let message = format!("`{name}` is a section: write {header}");
                problems.push(self.problem(Some(key.span().start), message));
                continue;
            }
            for (header, table) in self.sections(name) {
                for (key, _) in table.iter() {
                    let name = key.get_ref().as_ref();
                    if !section.keys.contains(&name) {
                        let hint = suggestion(name, section.keys);
                        let message =
                            format!("unknown key `{name}` in {}: {hint}", section.header());
                        problems.push(self.problem(Some(key.span().start), message));
                    }
                }
                for required in section.required {
                    if !table.contains_key(*required) {
                        let message = format!("`{required}` is missing in {}", section.header());
                        problems.push(self.problem(Some(header), message));
                    }
                }
            }
        }
        problems.sort_by_key(|problem| problem.line);
        problems
    }
}

/// The message for an unknown key or section at the top level.
fn unknown_top(name: &str, value: &toml::Spanned<DeValue<'_>>) -> String {
    let is_section = match value.get_ref() {
        DeValue::Table(_) => true,
        DeValue::Array(array) => array.iter().all(|item| item.get_ref().is_table()),
        _ => false,
    };
    if is_section {
        return format!(
            "unknown section `{name}`: {}",
            suggestion(name, &TOP_KEYS[1..])
        );
    }
    // A key that belongs in a section but precedes its header.
    match SECTIONS.iter().find(|section| section.keys.contains(&name)) {
        Some(section) => {
            format!(
                "unknown key `{name}` outside of any section: it belongs in {}",
                { section.header() }
            )
        }
        None => format!("unknown key `{name}`: {}", suggestion(name, &TOP_KEYS)),
    }
}

/// A syntax error in one line.
pub(super) fn syntax(message: &str) -> String {
    format!("not valid TOML: {}", message.trim().replace('\n', ", "))
}

/// A message of serde, with the names of Rust's types replaced.
pub(super) fn plain(message: &str) -> String {
    let mut message = message.trim().replace('\n', ", ");
    for (rust, words) in [
        ("expected u8", "expected a whole number from 0 to 255"),
        (
            "expected u32",
            "expected a whole number from 0 to 4294967295",
        ),
        ("expected f64", "expected a number such as 2.0"),
        ("expected a string", "expected text in quotes"),
        ("expected path string", "expected a path in quotes"),
        (
            "invalid socket address syntax",
            "expected an IP address and a port such as \"127.0.0.1:9433\" or \"[::1]:9433\"",
        ),
        ("expected a sequence", "expected a list such as [\"veth1\"]"),
    ] {
        if message.ends_with(rust) {
            message.truncate(message.len() - rust.len());
            message.push_str(words);
            break;
        }
    }
    message
}
