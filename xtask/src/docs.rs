//! `cargo xtask docs`: builds the book and the API documentation without warnings or broken links, and runs every
//! command of the book.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::cargo_tool::MDBOOK;
use crate::machine::{Permission, root};
use crate::{build_ebpf, command, setup, step};

/// Arguments of `docs`.
#[derive(clap::Args)]
pub struct Args {
    /// Only build and check links, without running the commands of the book
    #[arg(long)]
    no_run: bool,
}

/// Pages outside the book whose links are also checked.
const PAGES: [&str; 3] = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"];

/// Runs the verb.
pub fn docs(args: &Args, permission: Permission) -> Result<ExitCode> {
    build()?;
    if !args.no_run {
        commands(permission)?;
    }
    step::print(&format!(
        "the book: {}",
        book().join("index.html").display()
    ));
    Ok(ExitCode::SUCCESS)
}

/// Builds the book and the API documentation, and checks the links of the book.
pub fn build() -> Result<()> {
    let mut mdbook = Command::new(MDBOOK.ensure()?);
    mdbook.arg("build").arg(root().join("docs"));
    let output = mdbook.output().context("could not start mdbook")?;
    let output_text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || output_text.contains("WARN") {
        bail!("mdbook {}:\n{output_text}", output.status);
    }
    // mdbook copies its configuration file into the book.
    let _ = fs::remove_file(book().join("book.toml"));
    let broken = broken_links()?;
    if !broken.is_empty() {
        bail!("broken links:\n    {}", broken.join("\n    "));
    }
    let mut doc = command::cargo_with_profile("doc");
    doc.arg("--no-deps").env("RUSTDOCFLAGS", "-D warnings");
    step::run("documentation of the API", &mut doc)
}

/// Runs the tests that execute the commands of the book and the README.
fn commands(permission: Permission) -> Result<()> {
    build_ebpf::build(&setup::bpf(permission)?, false)?;
    setup::tools(permission)?;
    command::build()?;
    step::run("the commands of the book", &mut command::tests(&["book"])?)
}

/// The folder of the book.
fn book() -> PathBuf {
    root().join("target/book")
}

/// A generated page: its links and anchors.
#[derive(Default)]
struct Html {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

impl Html {
    fn parse(text: &str) -> Self {
        let values = |name: &str| {
            let attribute = format!(" {name}=\"");
            let parts = text.split(&attribute).skip(1);
            let values = parts.filter_map(|part| Some(part.split_once('"')?.0));
            values.map(decoded).collect::<Vec<_>>()
        };
        Self {
            links: [values("href"), values("src")].concat(),
            anchors: values("id").into_iter().collect(),
        }
    }
}

/// Decodes `&amp;` and percent-encoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let text = text.replace("&amp;", "&");
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        let hex = others
            .get(..2)
            .and_then(|hex| std::str::from_utf8(hex).ok());
        let escaped = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let (b'%', Some(byte)) = (first, escaped) {
            bytes.push(byte);
            rest = &others[2..];
        } else {
            bytes.push(*first);
            rest = others;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a link leads out of the project; such links are not checked.
fn is_external(link: &str) -> bool {
    ["http:", "https:", "mailto:", "data:", "javascript:"]
        .iter()
        .any(|scheme| link.starts_with(scheme))
}

/// Broken links of the book, and of the pages outside it.
fn broken_links() -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    for entry in fs::read_dir(book()).context("reading the book")? {
        let path = entry.context("reading the book")?.path();
        // The links of the page for missing pages are relative to a server's root.
        let is_page =
            path.extension().is_some_and(|kind| kind == "html") && !path.ends_with("404.html");
        if is_page {
            let text =
                fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            pages.insert(path, Html::parse(&text));
        }
    }
    if pages.len() < 20 {
        bail!("only {} pages in {}", pages.len(), book().display());
    }
    let mut broken = Vec::new();
    for (path, page) in &pages {
        for link in page.links.iter().filter(|link| !is_external(link)) {
            if !is_resolved(&pages, path, link) {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    for name in PAGES {
        let path = root().join(name);
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        for link in markdown_links(&text).filter(|link| !is_external(link)) {
            // mdbook generates the anchors of chapters, so links to these are checked in the book.
            let in_book = link
                .strip_prefix("docs/")
                .map(|link| link.replacen(".md", ".html", 1));
            let exists = match in_book {
                Some(link) if link.contains(".html") && !link.starts_with("SUMMARY") => {
                    is_resolved(&pages, &book().join("README.html"), &link)
                }
                _ => root()
                    .join(link.split('#').next().unwrap_or_default())
                    .exists(),
            };
            if !exists {
                broken.push(format!("{name}: {link}"));
            }
        }
    }
    Ok(broken)
}

/// Whether the target of a page's link exists.
fn is_resolved(pages: &BTreeMap<PathBuf, Html>, from: &Path, link: &str) -> bool {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = if file.is_empty() {
        from.to_owned()
    } else {
        plain(&from.with_file_name(file))
    };
    if anchor.is_empty() {
        return path.exists();
    }
    pages
        .get(&path)
        .is_some_and(|page| page.anchors.contains(anchor))
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}

/// The targets of the links in a Markdown page.
fn markdown_links(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split("](").skip(1);
    parts.filter_map(|part| Some(part.split_once(')')?.0))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::Cli;

    #[test]
    fn links_and_anchors_are_found() {
        let html =
            Html::parse(r##"<a href="b.html#c%20d">x</a> <h2 id="e">E</h2> <img src="f.svg">"##);
        assert_eq!(html.links, ["b.html#c d", "f.svg"]);
        assert!(html.anchors.contains("e"));
        let pages = BTreeMap::from([(PathBuf::from("/book/a.html"), html)]);
        let resolved = |link: &str| is_resolved(&pages, Path::new("/book/a.html"), link);
        assert!(resolved("#e") && resolved("a.html#e") && resolved("../book/a.html#e"));
        assert!(!resolved("#f") && !resolved("b.html") && !resolved("b.html#e"));
        let links: Vec<_> = markdown_links("[a](b.md#c), [d](e)").collect();
        assert_eq!(links, ["b.md#c", "e"]);
    }

    /// Every `cargo xtask` command on these pages is accepted.
    #[test]
    fn commands_on_pages_are_taken() {
        let mut files: Vec<PathBuf> = PAGES.iter().map(|name| root().join(name)).collect();
        let chapters = fs::read_dir(root().join("docs")).expect("the book");
        files.extend(chapters.map(|entry| entry.expect("a chapter").path()));
        let mut checked = 0;
        for file in files
            .iter()
            .filter(|file| file.extension().is_some_and(|kind| kind == "md"))
        {
            let text = fs::read_to_string(file).expect("a page");
            for part in text.split("cargo xtask ").skip(1) {
                let end = part
                    .find(['`', '\n', '#', '&', '|', '('])
                    .unwrap_or(part.len());
                let words = part[..end].split_whitespace();
                let words = words
                    .take_while(|word| !word.ends_with(['.', ',', ':', ';']))
                    .filter(|word| !word.starts_with('['));
                let taken = Cli::try_parse_from(["cargo xtask"].into_iter().chain(words.clone()));
                let help = |error: &clap::Error| !error.use_stderr();
                let taken = taken.as_ref().map_or_else(help, |_| true);
                assert!(
                    taken,
                    "{}: cargo xtask {:?}",
                    file.display(),
                    words.collect::<Vec<_>>()
                );
                checked += 1;
            }
        }
        assert!(checked > 20, "only {checked}: is the format another?");
    }
}
