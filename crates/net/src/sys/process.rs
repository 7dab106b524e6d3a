//! Processes and their namespaces: what the machine and a pod's init call.
//!
//! Everything here is for a process that was just executed and still has one thread (`ambit
//! lab-pod-init`); [`fork`] refuses to run in any other, because a forked child of a threaded
//! process may not allocate.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::check;

/// A set of kernel namespaces, combined with `|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespaces(libc::c_int);

impl Namespaces {
    /// Network devices, addresses, routes, sockets.
    pub const NET: Self = Self(libc::CLONE_NEWNET);
    /// Process identifiers; takes effect for the children of the caller.
    pub const PID: Self = Self(libc::CLONE_NEWPID);
    /// System V IPC and POSIX queues.
    pub const IPC: Self = Self(libc::CLONE_NEWIPC);
    /// Mounts.
    pub const MOUNT: Self = Self(libc::CLONE_NEWNS);
    /// Host and domain name.
    pub const UTS: Self = Self(libc::CLONE_NEWUTS);
    /// Users: gives every capability inside, none outside.
    pub const USER: Self = Self(libc::CLONE_NEWUSER);

    /// Whether all of `other` is in `self`.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Namespaces {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Which side of a [`fork`] this is.
#[derive(Debug)]
pub enum Fork {
    /// The new process.
    Child,
    /// The caller; holds the child's process id.
    Parent(Pid),
}

/// A process id, as this process' PID namespace numbers it.
pub type Pid = i32;

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this status.
    Code(i32),
    /// Killed by this signal.
    Signal(i32),
}

/// A child that ended, as reported by [`wait_any`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// Which.
    pub pid: Pid,
    /// How.
    pub exit: Exit,
}

/// Signals that the machine sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Please end.
    Term,
    /// End now.
    Kill,
    /// The terminal went away; by custom: reload.
    Hangup,
    /// Ctrl-C.
    Interrupt,
    /// Stop until continued.
    Stop,
    /// Go on after a stop.
    Continue,
    /// Any other, by number.
    Number(i32),
}

impl Signal {
    fn number(self) -> libc::c_int {
        match self {
            Self::Term => libc::SIGTERM,
            Self::Kill => libc::SIGKILL,
            Self::Hangup => libc::SIGHUP,
            Self::Interrupt => libc::SIGINT,
            Self::Stop => libc::SIGSTOP,
            Self::Continue => libc::SIGCONT,
            Self::Number(number) => number,
        }
    }
}

/// Moves the calling thread into new namespaces.
///
/// [`Namespaces::USER`] needs a process with one thread. After [`Namespaces::PID`] the next child
/// is process 1.
pub fn unshare(namespaces: Namespaces) -> io::Result<()> {
    // SAFETY: unshare takes an integer and touches no memory of ours.
    check(unsafe { libc::unshare(namespaces.0) }).map(drop)
}

/// Moves the calling thread into the namespace (or, with a pidfd, the namespaces) of `target`.
///
/// The kernel refuses when `target` is of another kind than `namespaces`.
pub fn enter(target: impl AsFd, namespaces: Namespaces) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed for the call; setns touches no memory of ours.
    check(unsafe { libc::setns(target.as_fd().as_raw_fd(), namespaces.0) }).map(drop)
}

/// Duplicates this process. Refused while it has more than one thread.
pub fn fork() -> io::Result<Fork> {
    let threads = fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!(
            "fork needs a process with one thread, this has {threads}"
        )));
    }
    // SAFETY: there is no other thread, so the child may allocate and take locks as the parent may.
    match check(unsafe { libc::fork() })? {
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid)),
    }
}

/// Makes `command` start in new namespaces, as root inside when these include [`Namespaces::USER`].
///
/// The new process keeps its own PID namespace: `PID` concerns its children only. The caller's user
/// and group become 0 inside; `setgroups` is denied there, as the kernel demands of unprivileged
/// callers.
pub fn start_in_namespaces(command: &mut Command, namespaces: Namespaces) {
    // SAFETY: geteuid and getegid cannot fail and touch no memory.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let uid_map = format!("0 {uid} 1\n");
    let gid_map = format!("0 {gid} 1\n");
    let maps = [
        (c"/proc/self/setgroups", "deny".to_owned()),
        (c"/proc/self/uid_map", uid_map),
        (c"/proc/self/gid_map", gid_map),
    ];
    // SAFETY: between fork and exec the closure makes system calls only, on memory that was
    // prepared before.
    unsafe {
        command.pre_exec(move || {
            unshare(namespaces)?;
            if namespaces.contains(Namespaces::USER) {
                for (path, content) in &maps {
                    write_raw(path, content.as_bytes())?;
                }
            }
            Ok(())
        });
    }
}

/// Writes `content` in one system call, without allocating.
fn write_raw(path: &std::ffi::CStr, content: &[u8]) -> io::Result<()> {
    // SAFETY: path is NUL-terminated; the returned descriptor is ours alone.
    let file = unsafe {
        OwnedFd::from_raw_fd(check(libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC))?)
    };
    // SAFETY: pointer and length are those of a live slice.
    super::check_len(unsafe {
        libc::write(file.as_raw_fd(), content.as_ptr().cast(), content.len())
    })
    .map(drop)
}

/// Has the kernel send `signal` to this process when its parent thread dies.
///
/// The parent may already be gone: compare [`parent_pid`] with the expected one afterwards.
pub fn set_parent_death_signal(signal: Signal) -> io::Result<()> {
    prctl(libc::PR_SET_PDEATHSIG, signal.number() as libc::c_ulong)
}

/// Makes orphaned descendants children of this process, so that it can wait for them.
pub fn set_child_subreaper() -> io::Result<()> {
    prctl(libc::PR_SET_CHILD_SUBREAPER, 1)
}

/// Forbids this process and its descendants to gain privileges by executing files. Cannot be
/// undone.
pub fn set_no_new_privileges() -> io::Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)
}

/// Forbids other processes of the same user to trace this one or read its memory, and forbids core
/// dumps.
pub fn set_not_dumpable() -> io::Result<()> {
    prctl(libc::PR_SET_DUMPABLE, 0)
}

pub(super) fn prctl(option: libc::c_int, argument: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the options used here take integers; unused arguments must be zero.
    check(unsafe {
        libc::prctl(option, argument, 0 as libc::c_ulong, 0 as libc::c_ulong, 0 as libc::c_ulong)
    })
    .map(drop)
}

/// Sets the host name of the current UTS namespace.
pub fn set_hostname(name: &str) -> io::Result<()> {
    // SAFETY: pointer and length are those of a live slice.
    check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }).map(drop)
}

/// Gives up the current user: supplementary groups first, then group, then user, each irrevocably.
pub fn become_user(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    // SAFETY: pointer and length are those of a live slice of gid_t (u32).
    check(unsafe { libc::setgroups(groups.len(), groups.as_ptr()) })?;
    // SAFETY: integers only.
    check(unsafe { libc::setresgid(gid, gid, gid) })?;
    // SAFETY: integers only.
    check(unsafe { libc::setresuid(uid, uid, uid) }).map(drop)
}

/// Starts a session of its own, so that signals for the caller's terminal do not reach this
/// process.
pub fn new_session() -> io::Result<()> {
    // SAFETY: takes nothing.
    check(unsafe { libc::setsid() }).map(drop)
}

/// Gives this process, and those that it will start, a session keyring of their own, so that keys
/// of the caller's session are not at hand. A kernel without keys has none to hide.
pub fn new_session_keyring() -> io::Result<()> {
    let anonymous = std::ptr::null::<libc::c_char>();
    // SAFETY: without a name the call takes integers and a null pointer only.
    let result =
        unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, anonymous) };
    match check(result as libc::c_int) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        other => other.map(drop),
    }
}

/// Gives every signal its default action, before a program is executed: otherwise ignored signals
/// stay ignored, such as Ctrl-C in what a shell script started in the background.
pub fn default_signals() -> io::Result<()> {
    for signal in 1..libc::SIGRTMIN() {
        if matches!(signal, libc::SIGKILL | libc::SIGSTOP | 32 | 33) {
            continue;
        }
        // SAFETY: the default meaning is no handler of ours, and runs no code of this process.
        if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The process id of the parent; 0 when that is outside of this PID namespace, 1 when it died.
pub fn parent_pid() -> Pid {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::getppid() }
}

/// The effective user id.
pub fn effective_uid() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() }
}

/// The effective group id.
pub fn effective_gid() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::getegid() }
}

/// Lets the process, and those it will start, open as many files as the kernel allows it without
/// privileges.
///
/// The usual 1,024 exists for programs that call `select(2)`; each connection takes a descriptor.
/// Returns the limit.
pub fn raise_open_files_limit() -> io::Result<u64> {
    set_open_files_limit(u64::MAX)
}

/// Starts `command` with a limit of open files, or as many as it may have, whatever this process
/// may open.
pub fn start_with_open_files(command: &mut Command, files: usize) {
    let files = u64::try_from(files).unwrap_or(u64::MAX);
    // SAFETY: between fork and exec the closure makes system calls only, and its error has no heap.
    unsafe {
        command.pre_exec(move || set_open_files_limit(files).map(drop));
    }
}

/// Sets the limit of this process, within what it may have; returns it.
fn set_open_files_limit(files: u64) -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the struct, which lives as long as the call.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    limit.rlim_cur = limit.rlim_max.min(files);
    // SAFETY: the struct is initialised and only read.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    Ok(limit.rlim_cur)
}

/// Where a container with a memory limit finds it (cgroup v2, in a namespace of its own).
const MEMORY_LIMIT: &str = "/sys/fs/cgroup/memory.max";

/// The container's memory limit in bytes, if it has one: without one there is no file, or it says
/// `max`.
pub fn memory_limit() -> Option<usize> {
    fs::read_to_string(MEMORY_LIMIT).ok()?.trim().parse().ok()
}

/// How many files this process may have open; the usual 1,024 if the kernel does not say.
pub fn open_files_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the struct, which lives as long as the call.
    let got = check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) });
    got.map_or(1024, |_| usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX))
}

/// Sends a signal. Prefer [`send_signal`] with a pidfd where the process may already have been
/// reaped.
pub fn kill(pid: Pid, signal: Signal) -> io::Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::kill(pid, signal.number()) }).map(drop)
}

/// Sends a signal to every process that this one may signal in its PID namespace (not to itself).
pub fn kill_all(signal: Signal) -> io::Result<()> {
    kill(-1, signal)
}

/// Lets no descriptor from `first` on survive the next exec: a caller may have left some open
/// without meaning to.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: integers only; with CLOSE_RANGE_CLOEXEC nothing is closed now, so that no owner is
    // cheated.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    check(result as libc::c_int).map(drop)
}

/// Lets `command` inherit nothing but its standard input, output and error.
pub fn start_with_standard_only(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call; its error has no heap.
    unsafe { command.pre_exec(|| close_on_exec_from(3)) };
}

/// Lets a descriptor survive every later exec of this process' children, under the same number.
/// They must end that themselves: [`close_on_exec_from`].
pub fn let_inherit(fd: impl AsFd) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed for the call, which takes integers only.
    check(unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_SETFD, 0) }).map(drop)
}

/// Takes over the descriptor of this number, which this process inherited and nothing else in it
/// knows. The number comes from its own command line.
pub fn take_inherited(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: integers only; a number without a descriptor is an error.
    check(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: the call above proved that it is open; by contract nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// A descriptor for a process: becomes readable when it ends, and never means another process.
pub fn pidfd_open(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: integers only; the returned descriptor is ours alone.
    unsafe {
        let fd = check(libc::syscall(libc::SYS_pidfd_open, pid, 0) as libc::c_int)?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Sends a signal to the process behind a pidfd.
pub fn send_signal(pidfd: impl AsFd, signal: Signal) -> io::Result<()> {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is borrowed for the call; a null siginfo is allowed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_fd().as_raw_fd(),
            signal.number(),
            none,
            0,
        )
    };
    check(result as libc::c_int).map(drop)
}

/// Waits for the end of the process behind a pidfd, without reaping it. Needs a tokio runtime.
/// Cancel safe.
pub async fn ended(pidfd: OwnedFd) -> io::Result<()> {
    let pidfd = super::watch(pidfd)?;
    // Readable is all that a pidfd ever becomes.
    pidfd.readable().await.map(drop)
}

/// Waits for this child to end.
pub fn wait(pid: Pid) -> io::Result<Exit> {
    loop {
        match wait_raw(pid, 0) {
            Ok(reaped) => return Ok(reaped.expect("waitpid without WNOHANG returns a child").exit),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Collects any child that ended; `None` when none did. An init calls it until it says so.
///
/// With no child at all the answer is `None` as well. Never mix with `std::process::Child`, whose
/// children it takes.
pub fn wait_any() -> io::Result<Option<Reaped>> {
    match wait_raw(-1, libc::WNOHANG) {
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        other => other,
    }
}

/// Waits for any child to end; `None` when there is no child.
pub fn wait_any_blocking() -> io::Result<Option<Reaped>> {
    loop {
        match wait_raw(-1, 0) {
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn wait_raw(pid: Pid, options: libc::c_int) -> io::Result<Option<Reaped>> {
    let mut status: libc::c_int = 0;
    // SAFETY: status outlives the call.
    let pid = check(unsafe { libc::waitpid(pid, &mut status, options) })?;
    if pid == 0 {
        return Ok(None);
    }
    let exit = if libc::WIFSIGNALED(status) {
        Exit::Signal(libc::WTERMSIG(status))
    } else {
        Exit::Code(libc::WEXITSTATUS(status))
    };
    Ok(Some(Reaped { pid, exit }))
}

/// Replaces this process by a program. Returns only when that failed.
pub fn exec(
    program: &std::ffi::OsStr,
    arguments: &[std::ffi::OsString],
    environment: &[(String, String)],
) -> io::Error {
    Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .exec()
}

/// A path as the kernel wants it.
pub(super) fn c_path(path: &std::path::Path) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_may_open_fewer_files_than_who_starts_it() {
        let limit = |files| {
            let mut command = Command::new("sh");
            command.args(["-c", "ulimit -Sn"]);
            start_with_open_files(&mut command, files);
            let said = command.output().expect("it runs").stdout;
            String::from_utf8_lossy(&said).trim().to_owned()
        };
        assert_eq!(limit(77), "77");
        // Not more than it may.
        let mut command = Command::new("sh");
        let hard = command.args(["-c", "ulimit -Hn"]).output().expect("it runs").stdout;
        assert_eq!(limit(usize::MAX), String::from_utf8_lossy(&hard).trim());
    }
}
