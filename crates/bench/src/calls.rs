//! System calls of running processes, counted by the kernel's tracepoints.
//!
//! Counting makes each call slower, so latency is never measured while counters run. Needs root (or
//! `CAP_PERFMON`) and a kernel with tracepoints for system calls; otherwise the error says so.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ambit_net::sys::mount;
use ambit_net::sys::perf_event::TracepointCounter;
use ambit_net::sys::process::{self, Namespaces};
use anyhow::{Context, Result};

use super::record::Calls;
use super::roles::Roles;

/// Where tracefs is, or is mounted for the moment of reading.
const TRACEFS: &str = "/sys/kernel/tracing";

/// The error for users without permission.
const NOT_ALLOWED: &str = "the kernel lets only root (or CAP_PERFMON) count system calls";

/// A group of system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Read,
    Write,
    Wait,
    Futex,
    All,
}

/// The tracepoints of each group. Some are missing on some processors' kernels.
const TRACEPOINTS: [(Group, &str); 16] = [
    (Group::Read, "syscalls/sys_enter_read"),
    (Group::Read, "syscalls/sys_enter_readv"),
    (Group::Read, "syscalls/sys_enter_recvfrom"),
    (Group::Read, "syscalls/sys_enter_recvmsg"),
    (Group::Write, "syscalls/sys_enter_write"),
    (Group::Write, "syscalls/sys_enter_writev"),
    (Group::Write, "syscalls/sys_enter_sendto"),
    (Group::Write, "syscalls/sys_enter_sendmsg"),
    (Group::Wait, "syscalls/sys_enter_epoll_wait"),
    (Group::Wait, "syscalls/sys_enter_epoll_pwait"),
    (Group::Wait, "syscalls/sys_enter_epoll_pwait2"),
    (Group::Wait, "syscalls/sys_enter_poll"),
    (Group::Wait, "syscalls/sys_enter_ppoll"),
    (Group::Wait, "syscalls/sys_enter_select"),
    (Group::Futex, "syscalls/sys_enter_futex"),
    (Group::All, "raw_syscalls/sys_enter"),
];

/// The kernel's numbers of the tracepoints.
#[derive(Clone, Debug)]
pub(super) struct Tracepoints(Vec<(Group, u64)>);

/// Counters of all threads of the roles.
#[derive(Debug)]
pub(super) struct Counters(Vec<(&'static str, Group, TracepointCounter)>);

impl Tracepoints {
    /// Looks them up, and whether they may be counted here.
    pub(super) fn find() -> Result<Self> {
        // In a thread of its own, whose mounts nobody else sees.
        let numbers = std::thread::spawn(numbers).join();
        let numbers = numbers.unwrap_or_else(|_| Err(anyhow::anyhow!("the thread died")));
        let numbers = numbers.context(NOT_ALLOWED)?;
        let first = numbers.first().context("this kernel has no tracepoints for system calls")?;
        TracepointCounter::start(first.1, 0).context(NOT_ALLOWED)?;
        Ok(Self(numbers))
    }

    /// Starts to count for every thread of every role, and for what these start from now on.
    pub(super) fn count(&self, roles: &Roles) -> Result<Counters> {
        let mut counters = Vec::new();
        for role in roles.names() {
            for thread in roles.pids(role).iter().flat_map(|pid| threads(*pid)) {
                for (group, number) in &self.0 {
                    // A thread that ended meanwhile makes no calls.
                    let Ok(counter) = TracepointCounter::start(*number, thread) else { continue };
                    counters.push((role, *group, counter));
                }
            }
        }
        Ok(Counters(counters))
    }
}

impl Counters {
    /// How often so far, by role.
    pub(super) fn read(&self) -> Result<BTreeMap<String, Calls>> {
        let mut calls: BTreeMap<String, Calls> = BTreeMap::new();
        for (role, group, counter) in &self.0 {
            let count = counter.count().context("read a counter of system calls")?;
            let calls = calls.entry((*role).to_owned()).or_default();
            *match group {
                Group::Read => &mut calls.reads,
                Group::Write => &mut calls.writes,
                Group::Wait => &mut calls.waits,
                Group::Futex => &mut calls.futexes,
                Group::All => &mut calls.all,
            } += count;
        }
        Ok(calls)
    }
}

impl Calls {
    /// So many times as much.
    pub(super) fn times(&self, factor: f64) -> Self {
        let times = |count: u64| (count as f64 * factor).round() as u64;
        Self {
            reads: times(self.reads),
            writes: times(self.writes),
            waits: times(self.waits),
            futexes: times(self.futexes),
            all: times(self.all),
        }
    }

    /// What came to it since an earlier reading.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(earlier.reads),
            writes: self.writes.saturating_sub(earlier.writes),
            waits: self.waits.saturating_sub(earlier.waits),
            futexes: self.futexes.saturating_sub(earlier.futexes),
            all: self.all.saturating_sub(earlier.all),
        }
    }
}

fn numbers() -> Result<Vec<(Group, u64)>> {
    let events = Path::new(TRACEFS).join("events");
    if !events.join("raw_syscalls").exists() {
        process::unshare(Namespaces::MOUNT).context("make a mount namespace to see tracefs")?;
        mount::make_private().context("keep mounts from the host")?;
        mount::tracefs(Path::new(TRACEFS)).context("mount tracefs; is this root?")?;
    }
    let number = |(group, name): &(Group, &str)| {
        let text = fs::read_to_string(events.join(name).join("id")).ok()?;
        Some((*group, text.trim().parse().ok()?))
    };
    Ok(TRACEPOINTS.iter().filter_map(number).collect())
}

fn threads(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(PathBuf::from(format!("/proc/{pid}/task")));
    let entries = tasks.into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
