//! Results as files that appear whole or not at all, and files that grow until then.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// A file or folder that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {error}", path.display())]
pub struct OutputError {
    path: PathBuf,
    error: io::Error,
}

impl OutputError {
    /// There is no room left.
    pub fn is_full(&self) -> bool {
        self.error.kind() == io::ErrorKind::StorageFull
    }
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

    /// Begins a file of this name, empty.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn grow(&self, name: &str) -> Result<Growing, OutputError> {
        let path = self.path(name);
        match fs::File::create(&path) {
            Ok(file) => Ok(Growing { path, file }),
            Err(error) => Err(OutputError { path, error }),
        }
    }

    /// Removes files of these names, if they are there.
    ///
    /// # Errors
    ///
    /// One is there and cannot be removed.
    pub fn remove(&self, names: &[&str]) -> Result<(), OutputError> {
        for name in names {
            let path = self.path(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(OutputError { path, error });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes a file of this name.
    ///
    /// # Errors
    ///
    /// It cannot be written; what was there before is still there.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> Result<PathBuf, OutputError> {
        self.write_all(&[(name, text.as_ref())])?;
        Ok(self.path(name))
    }

    /// Writes files of these names: all of them, or none.
    ///
    /// # Errors
    ///
    /// One cannot be written; what was there before is still there.
    pub fn write_all(&self, files: &[(&str, &[u8])]) -> Result<(), OutputError> {
        let part = |name: &str| self.path(&format!(".{name}.{}", std::process::id()));
        let clean = |name: &str, error| {
            for (name, _) in files {
                // Best effort: the error that matters is the first one.
                let _ = fs::remove_file(part(name));
            }
            let path = self.path(name);
            OutputError { path, error }
        };
        for (name, text) in files {
            fs::write(part(name), text).map_err(|error| clean(name, error))?;
        }
        for (name, _) in files {
            fs::rename(part(name), self.path(name)).map_err(|error| clean(name, error))?;
        }
        Ok(())
    }
}

/// A file that grows while work goes on.
#[derive(Debug)]
pub struct Growing {
    path: PathBuf,
    file: fs::File,
}

impl Growing {
    /// Adds whole lines, which are there for readers at once.
    ///
    /// # Errors
    ///
    /// They cannot be written.
    pub fn push(&mut self, lines: &str) -> Result<(), OutputError> {
        let written = self.file.write_all(lines.as_bytes());
        written.map_err(|error| OutputError {
            path: self.path.clone(),
            error,
        })
    }
}

/// A table as CSV (RFC 4180, but lines end in a line feed only).
pub fn csv<R>(rows: impl IntoIterator<Item = R>) -> String
where
    R: IntoIterator<Item: AsRef<[u8]>>,
{
    let mut writer = csv::WriterBuilder::new()
        .flexible(true)
        .from_writer(Vec::new());
    for row in rows {
        // Into memory nothing fails.
        let _ = writer.write_record(row);
    }
    let bytes = writer.into_inner().unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}
