//! Follows the entries of directories.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd, RawFd},
};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

struct Descriptor(Inotify);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Follows the entries of directories.
pub struct Names {
    inotify: AsyncFd<Descriptor>,
    directories: &'static [&'static str],
}

impl Names {
    /// Starts to follow directories. Needs a tokio runtime.
    ///
    /// # Errors
    ///
    /// The user has too many inotify instances (inotify(7)).
    pub fn follow(directories: &'static [&'static str]) -> io::Result<Self> {
        let flags = InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC;
        let descriptor = Descriptor(Inotify::init(flags)?);
        // SAFETY: it owns its descriptor, which is the same as long as it lives.
        let inotify = unsafe { AsyncFd::register(descriptor)? };
        let names = Self {
            inotify,
            directories,
        };
        names.find_directories();
        Ok(names)
    }

    /// Also follows directories that were created in the meantime.
    pub fn find_directories(&self) {
        let changes = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVE;
        for directory in self.directories {
            // Fails if the directory does not exist, and then it has no entries.
            let _ = self.inotify.get_ref().0.add_watch(*directory, changes);
        }
    }

    /// Waits until an entry has been added or removed.
    ///
    /// # Errors
    ///
    /// The runtime has ended.
    pub async fn changed(&self) -> io::Result<()> {
        let mut ready = self.inotify.readable().await?;
        while self.inotify.get_ref().0.read_events().is_ok() {}
        ready.clear_ready();
        Ok(())
    }
}
