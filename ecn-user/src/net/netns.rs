//! Network namespaces, by name (`/run/netns/NAME`, as `ip netns` keeps them) or by path.
//!
//! A namespace is a property of a thread. So [`NetNs::run`] uses its own thread and leaves the caller's unchanged;
//! [`NetNs::enter`] moves the calling thread permanently.

use super::{Error, Netlink, Result, errno_of};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Directory of named namespaces.
pub const DIRECTORY: &str = "/run/netns";

/// The namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// An open network namespace. It exists at least as long as this value, whatever happens to its name.
#[derive(Debug)]
pub struct NetNs {
    name: String,
    file: File,
    inum: u32,
}

impl NetNs {
    /// The namespace of the calling thread. Its name is the one it has in `/run/netns`, else `host`.
    pub fn current() -> Result<Self> {
        let mut ns = Self::open_file("host", Path::new(OWN))?;
        let known = Self::list().unwrap_or_default().into_iter().find(|name| {
            fs::metadata(Path::new(DIRECTORY).join(name))
                .is_ok_and(|found| found.ino() as u32 == ns.inum)
        });
        if let Some(name) = known {
            ns.name = name;
        }
        Ok(ns)
    }

    /// The namespace `/run/netns/NAME`.
    pub fn named(name: &str) -> Result<Self> {
        Self::open_checked(name, &path_of(name)?)
    }

    /// The namespace behind a path, such as `/proc/PID/ns/net`.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::open_checked(&path.display().to_string(), path)
    }

    /// A namespace as spelled in the configuration: `None` is the current one, with a `/` a path, else a name.
    pub fn open(spec: Option<&str>) -> Result<Self> {
        match spec {
            None => Self::current(),
            Some(path) if path.contains('/') => Self::from_path(path),
            Some(name) => Self::named(name),
        }
    }

    /// Creates a named namespace, as `ip netns add` does, and sets its `lo` up.
    pub fn create(name: &str) -> Result<Self> {
        let path = path_of(name)?;
        let error = |errno| Error::Namespace {
            what: "create",
            name: name.to_owned(),
            errno,
        };
        prepare_directory().map_err(error)?;
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o444)
            .open(&path)
            .map_err(|io| match io.kind() {
                ErrorKind::AlreadyExists => Error::NamespaceExists {
                    name: name.to_owned(),
                },
                _ => error(errno_of(&io)),
            })?;
        let made = on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            mount(
                Some(OWN),
                &path,
                None::<&str>,
                MsFlags::MS_BIND,
                None::<&str>,
            )
        });
        if let Err(errno) = made {
            let _ = fs::remove_file(&path);
            return Err(error(errno));
        }
        let finish = || {
            let ns = Self::named(name)?;
            Netlink::open(&ns)?.set_up(1)?;
            Ok(ns)
        };
        finish().inspect_err(|_| {
            let _ = Self::delete(name);
        })
    }

    /// Removes the name. The namespace itself ends with its last user.
    pub fn delete(name: &str) -> Result<()> {
        let path = path_of(name)?;
        let error = |errno| Error::Namespace {
            what: "delete",
            name: name.to_owned(),
            errno,
        };
        match umount2(&path, MntFlags::MNT_DETACH) {
            // Not mounted: left by a creation that was interrupted.
            Ok(()) | Err(Errno::EINVAL) => {}
            Err(Errno::ENOENT) => {
                return Err(Error::NoNamespace {
                    name: name.to_owned(),
                    path: path.display().to_string(),
                });
            }
            Err(errno) => return Err(error(errno)),
        }
        fs::remove_file(&path).map_err(|io| error(errno_of(&io)))
    }

    /// The names in `/run/netns`, sorted.
    pub fn list() -> Result<Vec<String>> {
        let error = |io: &std::io::Error| Error::Namespace {
            what: "list",
            name: DIRECTORY.to_owned(),
            errno: errno_of(io),
        };
        let entries = match fs::read_dir(DIRECTORY) {
            Ok(entries) => entries,
            Err(io) if io.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(io) => return Err(error(&io)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|io| error(&io))?;
            names.extend(entry.file_name().into_string().ok());
        }
        names.sort();
        Ok(names)
    }

    /// The kernel's number of the namespace: `net->ns.inum`, the inode of its file.
    pub fn inum(&self) -> u32 {
        self.inum
    }

    /// Name or path, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Another handle of the same namespace.
    pub fn clone_of(other: &Self) -> Result<Self> {
        let file = other.file.try_clone().map_err(|io| Error::Namespace {
            what: "open",
            name: other.name.clone(),
            errno: errno_of(&io),
        })?;
        Ok(Self {
            name: other.name.clone(),
            file,
            inum: other.inum,
        })
    }

    /// Runs `f` inside the namespace, on its own thread.
    ///
    /// # Panics
    ///
    /// If `f` panics, or if the kernel no longer lets this process enter, although it did when the namespace was
    /// opened: running `f` in the wrong namespace would be worse.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        on_a_thread(|| {
            if let Err(error) = self.enter() {
                panic!("{error}");
            }
            f()
        })
    }

    /// Moves the calling thread into the namespace, permanently. Its child processes start there too.
    pub fn enter(&self) -> Result<()> {
        // The thread's own namespace needs no privileges.
        if fs::metadata(OWN).is_ok_and(|own| own.ino() as u32 == self.inum) {
            return Ok(());
        }
        setns(&self.file, CloneFlags::CLONE_NEWNET).map_err(|errno| Error::Namespace {
            what: "enter",
            name: self.name.clone(),
            errno,
        })
    }

    fn open_file(name: &str, path: &Path) -> Result<Self> {
        let open = || {
            let file = File::open(path)?;
            let inum = file.metadata()?.ino() as u32;
            Ok::<_, std::io::Error>((file, inum))
        };
        match open() {
            Ok((file, inum)) => Ok(Self {
                name: name.to_owned(),
                file,
                inum,
            }),
            Err(io) if io.kind() == ErrorKind::NotFound => Err(Error::NoNamespace {
                name: name.to_owned(),
                path: path.display().to_string(),
            }),
            Err(io) => {
                let errno = errno_of(&io);
                Err(Error::Namespace {
                    what: "open",
                    name: name.to_owned(),
                    errno,
                })
            }
        }
    }

    /// Opens a namespace and enters it once, so that [`NetNs::run`] need not fail later.
    fn open_checked(name: &str, path: &Path) -> Result<Self> {
        let ns = Self::open_file(name, path)?;
        on_a_thread(|| ns.enter())?;
        Ok(ns)
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn path_of(name: &str) -> Result<PathBuf> {
    let good = !matches!(name, "" | "." | "..") && name.len() <= 200 && !name.contains(['/', '\0']);
    if good {
        Ok(Path::new(DIRECTORY).join(name))
    } else {
        Err(Error::NamespaceName {
            name: name.to_owned(),
        })
    }
}

/// Makes `/run/netns` a shared mount point, so that a name is visible in every mount namespace and can be removed from
/// any (as in iproute2, under the same lock).
fn prepare_directory() -> nix::Result<()> {
    fs::create_dir_all(DIRECTORY).map_err(|io| errno_of(&io))?;
    let directory = File::open(DIRECTORY).map_err(|io| errno_of(&io))?;
    let _lock = Flock::lock(directory, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
    let share = || {
        let flags = MsFlags::MS_SHARED | MsFlags::MS_REC;
        mount(None::<&str>, DIRECTORY, None::<&str>, flags, None::<&str>)
    };
    match share() {
        // Not a mount point yet: a bind mount on itself makes it one.
        Err(Errno::EINVAL) => {
            let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(
                Some(DIRECTORY),
                DIRECTORY,
                None::<&str>,
                flags,
                None::<&str>,
            )?;
            share()
        }
        other => other,
    }
}

fn on_a_thread<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(f).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::testing::{TempNs, require_root};

    #[test]
    fn a_namespace_is_created_and_removed() {
        require_root!();
        let host = NetNs::current().expect("current");
        let ns = TempNs::new("life");
        assert!(NetNs::list().expect("list").contains(&ns.name().to_owned()));
        assert_ne!(ns.inum(), host.inum());
        let inside = ns.run(|| NetNs::current().expect("current inside"));
        assert_eq!((inside.inum(), inside.name()), (ns.inum(), ns.name()));
        assert_eq!(NetNs::current().expect("current").inum(), host.inum());
        assert!(matches!(
            NetNs::create(ns.name()),
            Err(Error::NamespaceExists { .. })
        ));
        let lo = Netlink::open(&ns).expect("open").link("lo").expect("lo");
        assert!(lo.up);
        let name = ns.name().to_owned();
        drop(ns);
        assert!(matches!(
            NetNs::named(&name),
            Err(Error::NoNamespace { .. })
        ));
        assert!(matches!(
            NetNs::delete(&name),
            Err(Error::NoNamespace { .. })
        ));
    }

    #[test]
    fn a_specification_is_a_name_or_a_path_or_nothing() {
        require_root!();
        let ns = TempNs::new("spec");
        let path = format!("{DIRECTORY}/{}", ns.name());
        assert_eq!(
            NetNs::open(Some(ns.name())).expect("name").inum(),
            ns.inum()
        );
        assert_eq!(NetNs::open(Some(&path)).expect("path").inum(), ns.inum());
        let own = NetNs::open(None).expect("own").inum();
        assert_eq!(
            NetNs::open(Some("/proc/self/ns/net")).expect("own").inum(),
            own
        );
        assert!(NetNs::open(Some("/etc/hostname")).is_err());
    }

    #[test]
    fn names_stay_inside_the_directory() {
        for name in ["", ".", "..", "a/b", "../x"] {
            assert!(
                matches!(NetNs::create(name), Err(Error::NamespaceName { .. })),
                "{name:?}"
            );
        }
    }

    #[test]
    fn a_panic_inside_is_passed_on() {
        let ns = NetNs::current().expect("current");
        let caught = std::panic::catch_unwind(|| ns.run(|| panic!("inside")));
        assert_eq!(
            caught.expect_err("a panic").downcast_ref::<&str>(),
            Some(&"inside")
        );
    }
}
