//! Errors of the network layer.

use nix::errno::Errno;

/// An error of the network layer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Unknown namespace.
    #[error(
        "no network namespace {name:?}: {path} does not exist; create it, or name one that does"
    )]
    NoNamespace {
        /// The name or path asked for.
        name: String,
        /// Where it was searched for.
        path: String,
    },
    /// A namespace of that name exists already.
    #[error("network namespace {name:?} exists already; delete it first, or choose another name")]
    NamespaceExists {
        /// The name asked for.
        name: String,
    },
    /// A name that could leave the directory of namespaces, or is empty.
    #[error("invalid network namespace name {name:?}: use 1 to 200 characters without '/'")]
    NamespaceName {
        /// The name asked for.
        name: String,
    },
    /// Opening, entering, creating or deleting a namespace failed.
    #[error("cannot {what} network namespace {name:?}: {errno}{}", hint(*.errno))]
    Namespace {
        /// The operation: open, enter, create, delete, list.
        what: &'static str,
        /// Name or path of the namespace.
        name: String,
        /// The kernel's error.
        errno: Errno,
    },
    /// A netlink request was refused or could not be made.
    #[error("cannot {what} in namespace {netns:?}: {errno}{}{}", kernel_text(.kernel), hint(*.errno))]
    Netlink {
        /// Operation, with the interface.
        what: String,
        /// The namespace of the socket.
        netns: String,
        /// The kernel's error.
        errno: Errno,
        /// The kernel's explanation (extended acknowledgement), if any.
        kernel: Option<String>,
    },
    /// Unknown interface.
    #[error("no interface {name:?} in namespace {netns:?}; `ip link` lists them")]
    NoLink {
        /// The interface asked for.
        name: String,
        /// The namespace searched.
        netns: String,
    },
    /// An interface name that the kernel would refuse or truncate.
    #[error("invalid interface name {name:?}: use 1 to 15 characters without '/' and blanks")]
    LinkName {
        /// The name asked for.
        name: String,
    },
    /// A device feature could not be read or changed.
    #[error("cannot {what} of {link:?} in namespace {netns:?}: {errno}{}", hint(*.errno))]
    Ethtool {
        /// Operation.
        what: String,
        /// The interface.
        link: String,
        /// The namespace.
        netns: String,
        /// The kernel's error.
        errno: Errno,
    },
    /// A file of the kernel (a sysctl, a mount point) could not be read, written or mounted.
    #[error("cannot {what} {path}: {errno}{}", hint(*.errno))]
    File {
        /// Operation.
        what: &'static str,
        /// The file.
        path: String,
        /// The kernel's error.
        errno: Errno,
    },
}

impl Error {
    /// The kernel's error behind this one, if any.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::NoNamespace { .. } => Some(Errno::ENOENT),
            Self::NoLink { .. } => Some(Errno::ENODEV),
            Self::NamespaceExists { .. } => Some(Errno::EEXIST),
            Self::NamespaceName { .. } | Self::LinkName { .. } => None,
            Self::Namespace { errno, .. }
            | Self::Netlink { errno, .. }
            | Self::Ethtool { errno, .. }
            | Self::File { errno, .. } => Some(*errno),
        }
    }
}

/// Result of the network layer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn kernel_text(kernel: &Option<String>) -> String {
    kernel
        .as_ref()
        .map_or_else(String::new, |text| format!(" (kernel: {text})"))
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::EPERM | Errno::EACCES => "; run as root, or with CAP_NET_ADMIN and CAP_SYS_ADMIN",
        Errno::EOPNOTSUPP => "; this kernel or driver has no such feature, see `ecn doctor`",
        Errno::ENOBUFS => "; the kernel's answer did not fit the receive buffer, try again",
        _ => "",
    }
}

/// The errno of an I/O error; `EIO` if it has none.
pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}
