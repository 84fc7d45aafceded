//! Result files: written atomically, or streamed while a run is in progress.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::table::{Format, Table};

/// A file or folder that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {error}", path.display())]
pub struct OutputError {
    path: PathBuf,
    error: io::Error,
}

impl OutputError {
    /// For an error with this file or folder.
    fn at(path: &Path) -> impl Fn(io::Error) -> Self {
        move |error| Self {
            path: path.to_owned(),
            error,
        }
    }

    /// Whether the file system is full.
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
    /// Creates the folder if needed and checks that it is writable, so that a long run cannot fail at the end.
    ///
    /// # Errors
    ///
    /// It cannot be created or written.
    pub fn new(folder: &Path) -> Result<Self, OutputError> {
        let trial = folder.join(format!(".ecn-{}", std::process::id()));
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&trial, ""))
            .and_then(|()| fs::remove_file(&trial))
            .map_err(OutputError::at(folder))?;
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    /// The path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Creates an empty file of this name, to which lines can be appended.
    ///
    /// # Errors
    ///
    /// It cannot be created.
    pub fn grow(&self, name: &str) -> Result<Growing, OutputError> {
        let path = self.path(name);
        let file = fs::File::create(&path).map_err(OutputError::at(&path))?;
        Ok(Growing { path, file })
    }

    /// Removes files of these names, if they exist.
    ///
    /// # Errors
    ///
    /// A file exists and cannot be removed.
    pub fn remove(&self, names: &[&str]) -> Result<(), OutputError> {
        for name in names {
            let path = self.path(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(OutputError::at(&path))?,
            }
        }
        Ok(())
    }

    /// Writes a file of this name.
    ///
    /// # Errors
    ///
    /// It cannot be written; an existing file of this name is kept.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> Result<PathBuf, OutputError> {
        self.write_all(&[(name, text.as_ref())])?;
        Ok(self.path(name))
    }

    /// Writes the results of a command. `known`: the names of all files that the command may write; those not among
    /// `files` are removed, because they are from an earlier run.
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

    /// Writes files of these names: first all of them to temporary files, which then replace existing ones, so that no
    /// file is ever incomplete.
    ///
    /// # Errors
    ///
    /// A file cannot be written; no existing file has been replaced, unless the failure is that of a later rename.
    pub fn write_all<N, T>(&self, files: &[(N, T)]) -> Result<(), OutputError>
    where
        N: AsRef<str>,
        T: AsRef<[u8]>,
    {
        let part = |name: &str| self.path(&format!(".{name}.{}", std::process::id()));
        let clean = |name: &str, error| {
            for (name, _) in files {
                // Best effort: the original error is more useful.
                let _ = fs::remove_file(part(name.as_ref()));
            }
            OutputError::at(&self.path(name))(error)
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

/// Target of `--out`: a folder for all results of a run or comparison, or a file `*.csv` or `*.parquet` for its table
/// only.
#[derive(Debug, Clone)]
pub struct Target {
    folder: Output,
    /// Name and format of the file.
    table: Option<(String, Format)>,
}

impl Target {
    /// Chooses by the file extension, and checks that the target is writable, as [`Output::new`] does.
    ///
    /// # Errors
    ///
    /// It cannot be written, or this program was built without support for the format.
    pub fn new(path: &Path) -> Result<Self, OutputError> {
        let (Some(format), Some(name)) = (Format::of(path), path.file_name()) else {
            let folder = Output::new(path)?;
            return Ok(Self {
                folder,
                table: None,
            });
        };
        let unsupported = OutputError::at(path);
        Table::default().encoded(format).map_err(unsupported)?;
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        Ok(Self {
            folder: Output::new(parent.unwrap_or(Path::new(".")))?,
            table: Some((name.to_string_lossy().into_owned(), format)),
        })
    }

    /// The folder for all results, unless the target is a file for the table.
    pub fn folder(&self) -> Option<&Output> {
        self.table.is_none().then_some(&self.folder)
    }

    /// Writes the table, if the target is a file for it; returns its path.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn write_table(&self, table: &Table) -> Result<Option<PathBuf>, OutputError> {
        let Some((name, format)) = &self.table else {
            return Ok(None);
        };
        let path = self.folder.path(name);
        let bytes = table.encoded(*format).map_err(OutputError::at(&path))?;
        self.folder.write(name, bytes).map(Some)
    }
}

/// A file to which lines are appended while a run is in progress.
#[derive(Debug)]
pub struct Growing {
    path: PathBuf,
    file: fs::File,
}

impl Growing {
    /// Appends whole lines, which readers see at once.
    ///
    /// # Errors
    ///
    /// They cannot be written.
    pub fn push(&mut self, lines: &str) -> Result<(), OutputError> {
        let written = self.file.write_all(lines.as_bytes());
        written.map_err(OutputError::at(&self.path))
    }
}
