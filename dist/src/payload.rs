//! The files of a package.

use anyhow::Result;
use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_mangen::Man;
use ecn_user::{cli::Cli, config::EXAMPLE};

use crate::about;
use crate::archive::gzip;

/// Packaging conventions of a family of distributions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Deb,
    Rpm,
}

/// A file of a package.
pub struct File {
    pub path: String,
    pub mode: u32,
    pub content: Vec<u8>,
}

impl File {
    /// A configuration file, which upgrades do not replace.
    pub fn is_configuration(&self) -> bool {
        self.path.starts_with("/etc/")
    }
}

/// All files.
pub struct Payload {
    pub files: Vec<File>,
}

impl Payload {
    pub fn new(command: &[u8], bom: &[u8], style: Style) -> Result<Self> {
        let mut payload = Self { files: Vec::new() };
        payload.add("/usr/bin/ecn", 0o755, command);
        let unit = include_bytes!("../ecn.service");
        payload.add("/usr/lib/systemd/system/ecn.service", 0o644, unit);
        let example = EXAMPLE.as_bytes();
        payload.add("/etc/ecn/ecn.toml.example", 0o644, example);
        payload.documents(bom);
        payload.completions(style);
        payload.manual(Cli::command())?;
        Ok(payload)
    }

    fn add(&mut self, path: impl Into<String>, mode: u32, content: &[u8]) {
        self.files.push(File {
            path: path.into(),
            mode,
            content: content.to_vec(),
        });
    }

    fn documents(&mut self, bom: &[u8]) {
        for (name, text) in [
            ("copyright", include_str!("../copyright")),
            ("LICENSE-MIT", include_str!("../../LICENSE-MIT")),
            ("LICENSE-APACHE", include_str!("../../LICENSE-APACHE")),
        ] {
            self.add(format!("/usr/share/doc/ecn/{name}"), 0o644, text.as_bytes());
        }
        self.add("/usr/share/doc/ecn/ecn.cdx.json", 0o644, bom);
    }

    fn completions(&mut self, style: Style) {
        let zsh = match style {
            Style::Deb => "vendor-completions",
            Style::Rpm => "site-functions",
        };
        for (shell, path) in [
            (Shell::Bash, "bash-completion/completions/ecn"),
            (Shell::Zsh, &format!("zsh/{zsh}/_ecn")),
            (Shell::Fish, "fish/vendor_completions.d/ecn.fish"),
        ] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "ecn", &mut script);
            self.add(format!("/usr/share/{path}"), 0o644, &script);
        }
    }

    /// A manual page for each command: ecn(1), ecn-flow-set(1).
    fn manual(&mut self, command: clap::Command) -> Result<()> {
        let mut command = command.disable_help_subcommand(true);
        command.build();
        self.page(command)
    }

    fn page(&mut self, command: clap::Command) -> Result<()> {
        let shown = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        for verb in shown.cloned() {
            self.page(verb)?;
        }
        let version = format!("ecn {}", about::VERSION);
        let page = Man::new(command).source(version);
        let mut text = Vec::new();
        page.render(&mut text)?;
        let path = format!("/usr/share/man/man1/{}.gz", page.get_filename());
        self.add(path, 0o644, &gzip(&text)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_verb_has_its_page_and_each_file_its_own_path() {
        for style in [Style::Deb, Style::Rpm] {
            let files = Payload::new(b"", b"{}", style).expect("files").files;
            let paths: BTreeSet<_> = files.iter().map(|file| file.path.as_str()).collect();
            assert_eq!(paths.len(), files.len());
            for page in ["ecn", "ecn-run", "ecn-flow-set", "ecn-sim-run"] {
                let path = format!("/usr/share/man/man1/{page}.1.gz");
                assert!(paths.contains(path.as_str()), "{path}");
            }
            let hidden = paths.iter().find(|path| path.contains("traffic"));
            assert_eq!(hidden, None);
            assert!(
                files
                    .iter()
                    .all(|file| !file.content.is_empty() || file.path == "/usr/bin/ecn")
            );
        }
    }
}
