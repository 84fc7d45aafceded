//! Results as files that appear whole or not at all, and files that grow until then.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::records::{Format, Table};

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

    /// Writes the results of a command. Of `known`, the names of all files that the command may write, those that it
    /// did not write now are removed: they are results of an earlier one.
    ///
    /// # Errors
    ///
    /// As for [`write_all`](Self::write_all) and [`remove`](Self::remove).
    pub fn replace_all(
        &self,
        files: &[(String, Vec<u8>)],
        known: &[&str],
    ) -> Result<(), OutputError> {
        let is_known = |(name, _): &(String, Vec<u8>)| known.contains(&name.as_str());
        debug_assert!(files.iter().all(is_known), "a file is not in the list");
        self.write_all(files)?;
        let is_old = |known: &&&str| files.iter().all(|(name, _)| name != **known);
        let old: Vec<&str> = known.iter().filter(is_old).copied().collect();
        self.remove(&old)
    }

    /// Writes files of these names: all of them, or none.
    ///
    /// # Errors
    ///
    /// One cannot be written; what was there before is still there.
    pub fn write_all<N, T>(&self, files: &[(N, T)]) -> Result<(), OutputError>
    where
        N: AsRef<str>,
        T: AsRef<[u8]>,
    {
        let part = |name: &str| self.path(&format!(".{name}.{}", std::process::id()));
        let clean = |name: &str, error| {
            for (name, _) in files {
                // Best effort: the error that matters is the first one.
                let _ = fs::remove_file(part(name.as_ref()));
            }
            let path = self.path(name);
            OutputError { path, error }
        };
        for (name, text) in files {
            let name = name.as_ref();
            fs::write(part(name), text).map_err(|error| clean(name, error))?;
        }
        for (name, _) in files {
            let name = name.as_ref();
            fs::rename(part(name), self.path(name)).map_err(|error| clean(name, error))?;
        }
        Ok(())
    }
}

/// What `--out` of a run or comparison says: a folder for all of its results, or a file for its table alone.
#[derive(Debug, Clone)]
pub enum Target {
    /// A folder.
    Folder(Output),
    /// `*.csv` or `*.parquet`.
    Table {
        /// Its folder.
        folder: Output,
        /// Its name.
        name: String,
        /// What it is written as.
        format: Format,
    },
}

impl Target {
    /// By the path's ending; tried, as [`Output::new`] does it.
    ///
    /// # Errors
    ///
    /// It cannot be written, or not in this format by this program.
    pub fn new(path: &Path) -> Result<Self, OutputError> {
        let (Some(format), Some(name)) = (Format::of(path), path.file_name()) else {
            return Output::new(path).map(Self::Folder);
        };
        let error = |error| OutputError {
            path: path.to_owned(),
            error,
        };
        Table::default().encoded(format).map_err(error)?;
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        Ok(Self::Table {
            folder: Output::new(parent.unwrap_or(Path::new(".")))?,
            name: name.to_string_lossy().into_owned(),
            format,
        })
    }

    /// The folder for all results, if they are wanted.
    pub fn folder(&self) -> Option<&Output> {
        match self {
            Self::Folder(folder) => Some(folder),
            Self::Table { .. } => None,
        }
    }

    /// Writes the table, if it alone is wanted; says where.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn write_table(&self, table: &Table) -> Result<Option<PathBuf>, OutputError> {
        let Self::Table {
            folder,
            name,
            format,
        } = self
        else {
            return Ok(None);
        };
        let path = folder.path(name);
        match table.encoded(*format) {
            Ok(bytes) => folder.write(name, bytes).map(Some),
            Err(error) => Err(OutputError { path, error }),
        }
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
