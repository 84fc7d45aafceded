//! The unsafe code of the system calls: an ioctl, operations on values of maps, and one hook between fork and exec.
//!
//! Each function is safe to call; the reasons are at its `unsafe` block.

use crate::net::error::{Error, Result, errno_of};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::signal::Signal;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Mount point of bpffs.
pub const BPFFS: &str = "/sys/fs/bpf";

/// One `SIOCETHTOOL` request: `data` is an ethtool structure of the kernel as 32-bit words, its first
/// word the command.
pub(crate) fn ethtool_ioctl<const WORDS: usize>(
    socket: BorrowedFd<'_>,
    link: &str,
    data: &mut [u32; WORDS],
) -> nix::Result<()> {
    /// `SIOCETHTOOL` of linux/sockios.h.
    const SIOCETHTOOL: libc::Ioctl = 0x8946;

    // SAFETY: `ifreq` is plain data for which all zeroes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if link.len() >= request.ifr_name.len() {
        return Err(Errno::ENODEV);
    }
    for (to, from) in request.ifr_name.iter_mut().zip(link.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = data.as_mut_ptr().cast();
    // SAFETY: the descriptor is open for the length of the borrow; `request` is an `ifreq` whose name
    // ends in a zero byte and whose data points to `data`, which outlives the call. The callers of
    // this module-private function pass a structure as large as the command in its first word needs.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) })
        .map(drop)
}

/// The part of `union bpf_attr` for operations on an element of a map.
#[repr(C)]
struct Element {
    map_fd: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// One operation on a value of an array map, whose length must be the map's.
fn map_element(
    command: libc::c_int,
    map: BorrowedFd<'_>,
    index: u32,
    value: *mut u8,
) -> nix::Result<()> {
    let mut attr = Element {
        map_fd: map.as_raw_fd() as u32,
        _pad: 0,
        key: (&raw const index) as u64,
        value: value as u64,
        flags: 0,
    };
    // SAFETY: the descriptor is open for the length of the borrow; key and, by the contract of this
    // private function's callers, value are as long as the map's and outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            &raw mut attr,
            size_of::<Element>() as libc::c_uint,
        )
    };
    Errno::result(done).map(drop)
}

/// The value of an array map at an index, allocated on the heap, for values too large for a stack. `value_size` must be
/// the map's: callers have checked it.
pub(crate) fn map_value(
    map: BorrowedFd<'_>,
    value_size: usize,
    index: u32,
) -> nix::Result<Vec<u8>> {
    const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
    let mut value = vec![0; value_size];
    map_element(BPF_MAP_LOOKUP_ELEM, map, index, value.as_mut_ptr())?;
    Ok(value)
}

/// Sets the value of an array map at an index to zeros, except for a lock in it.
pub(crate) fn clear_map_value(
    map: BorrowedFd<'_>,
    value_size: usize,
    index: u32,
) -> nix::Result<()> {
    const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
    let mut value = vec![0; value_size];
    map_element(BPF_MAP_UPDATE_ELEM, map, index, value.as_mut_ptr())
}

/// The part of `union bpf_attr` for operations on many elements of a map.
#[repr(C)]
struct Batch {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// Position at which [`map_batch`] continues in a hash.
#[derive(Debug, Default)]
pub(crate) struct Cursor(Option<u32>);

/// Reads the next entries of a hash, whole buckets at a time: as many as fit into `keys` and `values`, which are
/// multiples of the map's sizes (callers have checked them). Each value is copied under its spin lock. Returns their
/// number, and whether they were the last; then the cursor is reset.
pub(crate) fn map_batch(
    map: BorrowedFd<'_>,
    cursor: &mut Cursor,
    keys: &mut [u8],
    key_size: usize,
    values: &mut [u8],
    value_size: usize,
) -> nix::Result<(usize, bool)> {
    const BPF_MAP_LOOKUP_BATCH: libc::c_int = 24;
    const BPF_F_LOCK: u64 = 4;
    let places = (keys.len() / key_size.max(1)).min(values.len() / value_size.max(1));
    let start = cursor.0.unwrap_or(0);
    let mut next = 0u32;
    let mut attr = Batch {
        in_batch: match cursor.0 {
            Some(_) => (&raw const start) as u64,
            None => 0,
        },
        out_batch: (&raw mut next) as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: places as u32,
        map_fd: map.as_raw_fd() as u32,
        elem_flags: BPF_F_LOCK,
        flags: 0,
    };
    // SAFETY: the descriptor is open for the length of the borrow; the slices have room for as many keys and values as
    // `count` says, by the contract of this function's callers; all outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_MAP_LOOKUP_BATCH,
            &raw mut attr,
            size_of::<Batch>() as libc::c_uint,
        )
    };
    match Errno::result(done) {
        Ok(_) => {
            cursor.0 = Some(next);
            Ok((attr.count as usize, false))
        }
        Err(Errno::ENOENT) => {
            cursor.0 = None;
            Ok((attr.count as usize, true))
        }
        Err(errno) => Err(errno),
    }
}

/// Makes the kernel kill the command's process when the *thread* that starts it ends.
///
/// The kernel ties this to the thread, not to the process: start the command from a thread that
/// lives as long as the child should.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    let parent = nix::unistd::getpid();
    // SAFETY: between fork and exec the closure makes two system calls (prctl, getppid) and neither
    // allocates nor takes a lock.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
            // The parent may have ended before the request was made.
            if nix::unistd::getppid() == parent {
                Ok(())
            } else {
                Err(std::io::Error::from_raw_os_error(libc::ESRCH))
            }
        })
    }
}

/// Gives the calling thread priority over ordinary ones: nice -20. False without the privilege.
pub fn prefer_this_thread() -> bool {
    // SAFETY: takes numbers; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) == 0 }
}

/// Gives the calling thread priority over ordinary ones until dropped.
pub struct Preferred {
    before: libc::c_int,
    // Bound to its thread: another one must not drop it.
    _here: std::marker::PhantomData<*const ()>,
}

impl Preferred {
    /// Raises the calling thread's priority. `None` without the privilege.
    pub fn begin() -> Option<Self> {
        // SAFETY: takes numbers; 0 is the calling thread, for which it cannot fail.
        let before = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        prefer_this_thread().then(|| Self {
            before,
            _here: std::marker::PhantomData,
        })
    }
}

impl Drop for Preferred {
    fn drop(&mut self) {
        // SAFETY: takes numbers; 0 is the calling thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, self.before) };
    }
}

/// Keeps later mounts within the calling thread's mount namespace. In a chroot, `/` is not a mount point; there this is
/// done for the mount points that are used here.
pub fn keep_mounts_private() -> nix::Result<()> {
    let private = |at: &str| {
        let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, at, None::<&str>, flags, None::<&str>)
    };
    match private("/") {
        Err(Errno::EINVAL) => ["/run", "/sys"].into_iter().try_for_each(private),
        done => done,
    }
}

/// Whether a path is on a BPF file system, or would be if it existed.
pub fn is_bpffs(path: &Path) -> bool {
    let there = path.ancestors().find_map(|path| statfs(path).ok());
    there.is_some_and(|at| at.filesystem_type() == BPF_FS_MAGIC)
}

/// Mounts bpffs on `/sys/fs/bpf` unless it is mounted; true if this call mounted it.
pub fn mount_bpffs() -> Result<bool> {
    let file = |what, errno| Error::File {
        what,
        path: BPFFS.to_owned(),
        errno,
    };
    match statfs(BPFFS) {
        Ok(at) if at.filesystem_type() == BPF_FS_MAGIC => return Ok(false),
        Ok(_) => {}
        Err(Errno::ENOENT) => std::fs::create_dir_all(BPFFS)
            .map_err(|error| file("create the directory", errno_of(&error)))?,
        Err(errno) => return Err(file("look at", errno)),
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("bpf"), BPFFS, Some("bpf"), flags, Some("mode=700"))
        .map_err(|errno| file("mount bpffs on", errno))?;
    Ok(true)
}

/// Makes all threads allocate from one heap. glibc gives each thread its own, and one that does some work for the first
/// time then takes 1 to 2 MB more. Before other threads start.
pub fn share_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes numbers only.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Returns memory to the kernel that the allocator retains after a burst: glibc does so by itself only at the top of
/// its heap.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number only.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::testing::require_root;

    #[test]
    fn bpffs_is_mounted_once() {
        require_root!();
        mount_bpffs().expect("mount bpffs");
        assert!(!mount_bpffs().expect("look again"));
    }

    #[test]
    fn a_child_dies_with_the_thread_that_started_it() {
        let mut child = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            die_with_parent(command.arg("60"))
                .spawn()
                .expect("start sleep")
        })
        .join()
        .expect("the starting thread");
        let status = child.wait().expect("wait");
        assert!(!status.success(), "{status}");
    }
}
