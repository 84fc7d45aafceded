//! Results as files that appear whole or not at all.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A file or folder that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {error}", path.display())]
pub struct OutputError {
    path: PathBuf,
    error: io::Error,
}

/// A folder for results.
#[derive(Debug, Clone)]
pub struct Output {
    folder: PathBuf,
}

impl Output {
    /// The folder, made if it is not there, and tried: a run is not to end with nowhere to write.
    ///
    /// # Errors
    ///
    /// It cannot be made or written in.
    pub fn new(folder: &Path) -> Result<Self, OutputError> {
        let error = |error| OutputError {
            path: folder.to_owned(),
            error,
        };
        fs::create_dir_all(folder).map_err(error)?;
        let trial = folder.join(format!(".ecn-{}", std::process::id()));
        fs::write(&trial, "")
            .and_then(|()| fs::remove_file(&trial))
            .map_err(error)?;
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    /// The path of a file here.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes a file of this name.
    ///
    /// # Errors
    ///
    /// It cannot be written; what was there before is still there.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> Result<PathBuf, OutputError> {
        let path = self.path(name);
        let part = self.path(&format!(".{name}.{}", std::process::id()));
        fs::write(&part, text)
            .and_then(|()| fs::rename(&part, &path))
            .map_err(|error| {
                // Best effort: the error that matters is the first one.
                let _ = fs::remove_file(&part);
                OutputError {
                    path: path.clone(),
                    error,
                }
            })?;
        Ok(path)
    }
}
