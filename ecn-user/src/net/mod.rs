//! Network plumbing of the agent and the rig: namespaces, links, queueing and device features.
//!
//! Everything here uses the kernel directly (netlink, `setns`, ioctl), since a small machine has none of `ip`, `tc` and
//! `ethtool`. All calls are synchronous and may be made from any thread: a socket belongs to the namespace in which it
//! was opened, whichever thread uses it later.

pub mod diag;
pub(crate) mod error;
pub mod ethtool;
pub mod filter;
pub mod htb;
pub mod netlink;
pub mod netns;
mod queueing;
pub use crate::sys::calls as sys;
mod wire;

pub(crate) use error::errno_of;
pub use error::{Error, Result};
pub use netlink::{Link, LinkChanges, LinkEvent, Netlink, VethEnd, Watch};
pub use netns::NetNs;
pub use queueing::{ClassStats, FqDrops, HtbRate, Qdisc, ROOT};

#[cfg(test)]
pub(crate) mod testing {
    //! Shared by the tests against the kernel.

    use super::NetNs;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// Skips the test, with a message, without root. With root, such tests run one at a time: some measure rates.
    macro_rules! require_root {
        () => {
            if !nix::unistd::geteuid().is_root() {
                eprintln!("skipped: needs root");
                return;
            }
            let _turn = $crate::net::testing::turn();
        };
    }
    pub(crate) use require_root;

    pub(crate) fn turn() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A namespace that is deleted with the test, even if that panics.
    pub(crate) struct TempNs(NetNs);

    impl TempNs {
        pub(crate) fn new(tag: &str) -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let next = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("ecntest-{}-{next}-{tag}", std::process::id());
            Self(NetNs::create(&name).expect("create a namespace"))
        }
    }

    impl std::ops::Deref for TempNs {
        type Target = NetNs;
        fn deref(&self) -> &NetNs {
            &self.0
        }
    }

    impl Drop for TempNs {
        fn drop(&mut self) {
            let _ = NetNs::delete(self.0.name());
        }
    }
}
