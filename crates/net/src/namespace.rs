//! Network namespaces: creating, opening, entering and keeping them.
//!
//! A [`NetNs`] is a descriptor, so it stays the same namespace while paths and process ids are
//! reused. A socket belongs to the namespace in which it was created, so [`NetNs::run`] is needed
//! only to create one, never to use it. It must never leave a thread in the wrong namespace: see
//! [`NetNs::run`].

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use socket2::{Domain, Socket, Type};

use crate::sys::process::{self, Namespaces};
use crate::sys::{mount, socket_option};

/// The calling thread's own namespace.
const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace, kept alive by a descriptor.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
    inode: u64,
}

impl NetNs {
    /// Makes a new, empty namespace with its loopback interface down.
    pub fn create() -> io::Result<Self> {
        // A thread of its own: it ends in the new namespace, so nobody has to find the way back.
        let maker = std::thread::Builder::new().name("new-netns".to_owned()).spawn(|| {
            process::unshare(Namespaces::NET)?;
            Self::current()
        })?;
        maker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// The namespace of the calling thread.
    pub fn current() -> io::Result<Self> {
        Self::open(OWN)
    }

    /// Opens the namespace at a path, such as `/proc/1/ns/net` or a pinned file.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::from_fd(File::open(path)?.into())
    }

    /// The namespace of a process. Check afterwards that the process is still the one meant: ids
    /// are reused.
    pub fn of_pid(pid: process::Pid) -> io::Result<Self> {
        Self::open(format!("/proc/{pid}/ns/net"))
    }

    /// Takes over a descriptor, which must be a network namespace.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let other_kind = || io::Error::new(io::ErrorKind::InvalidInput, "not a network namespace");
        let kind = socket_option::namespace_kind(&fd).map_err(|_| other_kind())?;
        if kind != libc::CLONE_NEWNET {
            return Err(other_kind());
        }
        let file = File::from(fd);
        let inode = file.metadata()?.ino();
        Ok(Self { fd: file.into(), inode })
    }

    /// Runs `work` on this thread inside the namespace, and brings the thread back also when `work`
    /// panics.
    ///
    /// `work` must not await, nor spawn a thread that must run outside: threads inherit the
    /// namespace. A thread that cannot come back would act for the wrong pod, so the whole process
    /// aborts then.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let way_back = WayBack::here()?;
        process::enter(&self.fd, Namespaces::NET)?;
        let result = work();
        drop(way_back);
        Ok(result)
    }

    /// Whether the loopback interface is up. It goes down when the last process or path lets go of
    /// the namespace, though sockets keep it.
    pub fn is_loopback_up(&self) -> io::Result<bool> {
        let socket = self.run(|| Socket::new(Domain::IPV4, Type::DGRAM, None))??;
        socket_option::is_interface_up(&socket, "lo")
    }

    /// Moves the calling thread into the namespace for good.
    pub fn enter(&self) -> io::Result<()> {
        HOME.set(None);
        process::enter(&self.fd, Namespaces::NET)
    }

    /// Keeps the namespace alive at `path`, without any process, until [`unpin`] or the end of the
    /// mount namespace.
    ///
    /// Replaces a namespace that was pinned there before.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        unpin(path)?;
        File::create(path)?;
        mount::bind_one(&PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd())), path)
    }

    /// The kernel's number for the namespace; two that are equal at the same time are the same
    /// namespace.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Another descriptor for the same namespace.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, inode: self.inode })
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<NetNs> for OwnedFd {
    fn from(namespace: NetNs) -> Self {
        namespace.fd
    }
}

thread_local! {
    /// Where this thread is, if it said so and is not inside [`NetNs::run`].
    static HOME: Cell<Option<NetNs>> = const { Cell::new(None) };
}

/// For a thread that often runs work in other namespaces: remembers where it is, so that
/// [`NetNs::run`] need not ask each time. The thread must not move but through [`NetNs`].
pub fn remember_home() -> io::Result<()> {
    HOME.set(Some(NetNs::current()?));
    Ok(())
}

/// Returns the thread to the namespace it came from.
struct WayBack {
    /// Taken when the way back is gone.
    to: Option<NetNs>,
    is_home: bool,
}

impl WayBack {
    fn here() -> io::Result<Self> {
        match HOME.take() {
            Some(home) => Ok(Self { to: Some(home), is_home: true }),
            // Also for work inside of work, which is not at home.
            None => Ok(Self { to: Some(NetNs::current()?), is_home: false }),
        }
    }
}

impl Drop for WayBack {
    fn drop(&mut self) {
        let Some(to) = self.to.take() else { return };
        if let Err(error) = process::enter(&to.fd, Namespaces::NET) {
            tracing::error!(%error, "cannot leave a network namespace again, aborting");
            std::process::abort();
        }
        if self.is_home {
            HOME.set(Some(to));
        }
    }
}

/// Removes a path made by [`NetNs::pin`]. The namespace ends when nothing else uses it. A missing
/// path is fine.
pub fn unpin(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    match mount::unmount(path) {
        // EINVAL: a plain file, nothing is mounted there.
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
        _ => fs::remove_file(path),
    }
}

/// Sets a kernel parameter such as `net.ipv4.ip_forward` or `net/ipv4/conf/eth0.5/rp_filter`.
///
/// `net.*` is that of the calling thread's namespace, so call it inside [`NetNs::run`].
pub fn set_sysctl(name: &str, value: &str) -> io::Result<()> {
    open_sysctl(name)?.write_all(value.as_bytes())
}

/// Opens a kernel parameter for [`set_sysctl`]; an error says that it cannot be set.
///
/// A container sees `/proc/sys` read-only, whatever its rights are. With `SYS_ADMIN` over the PID
/// namespace it can still be opened, on a mount that only this call sees.
pub fn open_sysctl(name: &str) -> io::Result<File> {
    let relative = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
    let plain = Path::new(&relative).components().all(|part| matches!(part, Component::Normal(_)));
    if !plain || relative.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not the name of a kernel parameter",
        ));
    }
    let open = |proc: &Path| File::options().write(true).open(proc.join("sys").join(&relative));
    match open(Path::new("/proc")) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            let Ok(detached) = mount::detached_proc() else { return Err(error) };
            open(Path::new(&format!("/proc/self/fd/{}", detached.as_raw_fd())))
        }
        opened => opened,
    }
}
