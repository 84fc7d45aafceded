//! Text files that users name.

use std::path::Path;
use std::{fs, io};

/// Maximum size, bytes: more flows than a run can have.
const MOST_BYTES: u64 = 1 << 30;

/// Reads a text file.
///
/// # Errors
///
/// It cannot be read, is too large, or is a pipe or device, which may have no end.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let found = fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if found.len() > MOST_BYTES {
        return Err(io::Error::other("larger than 1 GiB"));
    }
    fs::read_to_string(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_a_limited_size_are_read() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let reason = |path: &Path| read(path).map_err(|error| error.to_string());
        let refused = Err("not a regular file".to_owned());
        assert_eq!(reason(folder.path()), refused);
        assert_eq!(reason(Path::new("/dev/zero")), refused);
        let path = folder.path().join("file");
        fs::write(&path, "text")?;
        assert_eq!(reason(&path), Ok("text".to_owned()));
        // Sparse: it takes no space.
        fs::File::options()
            .write(true)
            .open(&path)?
            .set_len(MOST_BYTES + 1)?;
        assert_eq!(reason(&path), Err("larger than 1 GiB".to_owned()));
        Ok(())
    }
}
