//! Reproducible tar archives: all files belong to root and have the same date.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;

use anyhow::Result;
use flate2::{Compression, GzBuilder};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

/// A tar archive under construction.
pub struct Archive {
    tar: Builder<Vec<u8>>,
    epoch: u32,
    folders: BTreeSet<String>,
}

impl Archive {
    pub fn new(epoch: u32) -> Self {
        Self {
            tar: Builder::new(Vec::new()),
            epoch,
            folders: BTreeSet::new(),
        }
    }

    /// Adds a file, preceded by its parent folders.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        let path = path.trim_start_matches('/');
        let above = Path::new(path).ancestors().skip(1);
        let above: Vec<_> = above.filter_map(Path::to_str).collect();
        for folder in above.into_iter().rev().filter(|folder| !folder.is_empty()) {
            if self.folders.insert(folder.to_owned()) {
                self.entry(EntryType::Directory, &format!("{folder}/"), 0o755, &[])?;
            }
        }
        self.entry(EntryType::Regular, path, mode, content)
    }

    fn entry(&mut self, kind: EntryType, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        header.set_mtime(self.epoch.into());
        header.set_uid(0);
        header.set_gid(0);
        header.set_username("root")?;
        header.set_groupname("root")?;
        Ok(self.tar.append_data(&mut header, path, content)?)
    }

    pub fn tar(self) -> Result<Vec<u8>> {
        Ok(self.tar.into_inner()?)
    }

    pub fn gzip(self) -> Result<Vec<u8>> {
        gzip(&self.tar()?)
    }
}

/// Compresses by gzip, without file name or date in the header.
pub fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut gzip = GzBuilder::new().write(Vec::new(), Compression::best());
    gzip.write_all(content)?;
    Ok(gzip.finish()?)
}

pub fn sha256(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_first_and_once_and_the_same_gives_the_same() {
        let make = || {
            let mut archive = Archive::new(1);
            archive.file("/a/b/c", 0o644, b"text").expect("a file");
            archive.file("/a/b/d", 0o755, b"").expect("a file");
            archive.tar().expect("an archive")
        };
        let bytes = make();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entries = archive.entries().expect("entries");
        let paths: Vec<_> = entries
            .map(|entry| {
                let entry = entry.expect("an entry");
                entry.path().expect("a path").display().to_string()
            })
            .collect();
        assert_eq!(paths, ["a/", "a/b/", "a/b/c", "a/b/d"]);
        assert_eq!(gzip(&bytes).expect("gzip"), gzip(&make()).expect("gzip"));
    }
}
