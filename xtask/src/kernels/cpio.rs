//! The archive that a kernel unpacks as its initial root (initramfs): "newc" of cpio(5), described in the kernel's
//! Documentation/driver-api/early-userspace/buffer-format.rst.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// An archive under construction. Paths are absolute, as in the guest.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<PathBuf>,
}

impl Archive {
    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        let inode = self.names.len() as u32 + 1;
        let fields = [
            inode,
            mode,
            0, // user
            0, // group
            1, // links
            0, // time
            content.len() as u32,
            0, // device
            0,
            0, // rdev
            0,
            name.len() as u32 + 1,
            0, // checksum
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Adds an entry, and the folders above it. False if the path already exists.
    fn add(&mut self, path: &Path, mode: u32, content: &[u8]) -> bool {
        if path == Path::new("/") || !self.names.insert(path.to_owned()) {
            return false;
        }
        if let Some(parent) = path.parent() {
            self.folder(parent);
        }
        let name = path.to_string_lossy();
        self.entry(name.trim_start_matches('/'), mode, content);
        true
    }

    /// Adds a folder, unless it exists.
    pub fn folder(&mut self, path: impl AsRef<Path>) {
        self.add(path.as_ref(), 0o40_755, &[]);
    }

    /// Adds an executable file, unless the path exists.
    pub fn file(&mut self, path: impl AsRef<Path>, content: &[u8]) {
        self.add(path.as_ref(), 0o100_755, content);
    }

    /// Adds a symbolic link, unless the path exists.
    pub fn link(&mut self, path: impl AsRef<Path>, to: &str) {
        self.add(path.as_ref(), 0o120_777, to.as_bytes());
    }

    /// Adds a copy of a file of this machine, unless the path exists.
    pub fn copy(&mut self, from: &Path, to: impl AsRef<Path>) -> Result<()> {
        if self.names.contains(to.as_ref()) {
            return Ok(());
        }
        let content = fs::read(from).with_context(|| format!("reading {}", from.display()))?;
        self.file(to, &content);
        Ok(())
    }

    /// The complete archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_before_what_is_in_them_and_once() {
        let mut archive = Archive::default();
        archive.file("/a/b/c", b"12345");
        archive.file("/a/d", b"");
        archive.file("/a/d", b"not this");
        archive.link("/e", "a/d");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        let at = |what: &str| text.find(what).expect("an entry");
        assert!(at("a\0") < at("a/b\0") && at("a/b\0") < at("a/b/c\0"));
        assert_eq!(text.matches("070701").count(), 6);
        assert!(!text.contains("not this"));
        // cpio(5): the header of 110 bytes and the name, then the content, each padded to 4.
        let file = at("a/b/c\0") - 110;
        assert_eq!(file % 4, 0);
        assert_eq!(text.get(file + 54..file + 62), Some("00000005"));
        assert_eq!(text.get(file + 116..file + 121), Some("12345"));
    }
}
