//! What each role of a machine has used so far: processor, context switches, memory.
//!
//! Read from the host's `/proc`, thread by thread: the scheduler counts a thread's time in
//! nanoseconds, a process's in ticks of 10 ms, which is too coarse for a load of seconds.

use std::collections::BTreeMap;
use std::fs;

use ambit_machine::ProcessInfo;
use anyhow::Result;

use super::record::{Memory, Usage};

/// What the load generators are called; they count themselves.
pub(super) const LOAD: &str = "load";
const APPLICATION: &str = "application";
pub(super) const PROXY: &str = "proxy";
pub(super) const WAYPOINT: &str = "waypoint";
const AGENT: &str = "agent";
const CONTROL: &str = "control";
const MACHINE: &str = "machine";

/// The processes of a machine by role, as the host numbers them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Roles(BTreeMap<&'static str, Vec<i32>>);

/// What the threads of the roles have used so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading(BTreeMap<&'static str, Threads>);

type Threads = BTreeMap<(i32, i32), Thread>;

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    /// On a processor.
    ran_ns: u64,
    user_ticks: u64,
    system_ticks: u64,
    voluntary: u64,
    involuntary: u64,
}

impl Roles {
    /// Sorts a machine's processes. `others` are processes in pods that are none of theirs, and
    /// their role; `generators` and `waypoints` name pods, as `NAMESPACE/POD`: those that only
    /// drive load, and those that are waypoints.
    pub(super) fn of(
        processes: &[ProcessInfo],
        others: (&'static str, &[i32]),
        generators: &[String],
        waypoints: &[String],
    ) -> Self {
        let mut roles: BTreeMap<&'static str, Vec<i32>> = BTreeMap::new();
        let (role_of_others, others) = others;
        for process in processes.iter().filter(|process| !others.contains(&process.host_pid)) {
            let role = role(&process.name, generators, waypoints);
            roles.entry(role).or_default().push(process.host_pid);
        }
        if !others.is_empty() {
            roles.entry(role_of_others).or_default().extend(others);
        }
        roles.values_mut().for_each(|pids| pids.sort_unstable());
        Self(roles)
    }

    /// The host's numbers of a role's processes.
    pub(super) fn pids(&self, role: &str) -> &[i32] {
        self.0.get(role).map(Vec::as_slice).unwrap_or_default()
    }

    /// The roles that there are.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }

    /// What they have used so far.
    pub(super) fn read(&self) -> Result<Reading> {
        let mut reading = BTreeMap::new();
        for (role, pids) in &self.0 {
            let mut threads = Threads::new();
            for pid in pids {
                read_threads(*pid, &mut threads);
            }
            reading.insert(*role, threads);
        }
        Ok(Reading(reading))
    }

    /// The memory that they have now.
    pub(super) fn memory(&self) -> BTreeMap<String, Memory> {
        let of_role = |(role, pids): (&&'static str, &Vec<i32>)| {
            let mut memory = Memory { processes: pids.len(), ..Memory::default() };
            for pid in pids {
                // One that ended has none.
                let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                memory.rss_bytes += kib(&status, "VmRSS:") << 10;
                memory.private_bytes += kib(&status, "RssAnon:") << 10;
            }
            ((*role).to_owned(), memory)
        };
        self.0.iter().map(of_role).collect()
    }
}

impl Reading {
    /// What was used since an earlier reading. A thread that ended meanwhile counts for nothing;
    /// the caller makes sure that no process of a proxy ended.
    pub(super) fn since(&self, earlier: &Self) -> BTreeMap<String, Usage> {
        let of_role = |(role, now): (&&'static str, &Threads)| {
            let before = earlier.0.get(role);
            let mut all = Thread::default();
            for (name, thread) in now {
                let start = before.and_then(|it| it.get(name)).copied().unwrap_or_default();
                all.add(thread, &start);
            }
            let mut processes: Vec<i32> = now.keys().map(|(pid, _)| *pid).collect();
            processes.dedup();
            ((*role).to_owned(), all.usage(processes.len()))
        };
        self.0.iter().map(of_role).collect()
    }
}

impl Thread {
    fn add(&mut self, now: &Self, start: &Self) {
        self.ran_ns += now.ran_ns.saturating_sub(start.ran_ns);
        self.user_ticks += now.user_ticks.saturating_sub(start.user_ticks);
        self.system_ticks += now.system_ticks.saturating_sub(start.system_ticks);
        self.voluntary += now.voluntary.saturating_sub(start.voluntary);
        self.involuntary += now.involuntary.saturating_sub(start.involuntary);
    }

    /// The scheduler's exact time, split as the ticks say; what is too short for them to say
    /// anything counts as the kernel's, where a proxy spends most.
    fn usage(&self, processes: usize) -> Usage {
        let ran = self.ran_ns as f64 * 1e-9;
        let ticks = self.user_ticks + self.system_ticks;
        let share = if ticks > 0 { self.user_ticks as f64 / ticks as f64 } else { 0.0 };
        Usage {
            user_seconds: ran * share,
            system_seconds: ran * (1.0 - share),
            unsplit_seconds: None,
            voluntary_switches: self.voluntary,
            involuntary_switches: self.involuntary,
            processes,
        }
    }
}

fn role(name: &str, generators: &[String], waypoints: &[String]) -> &'static str {
    let kind = name.split('/').next().unwrap_or_default();
    match (name.strip_prefix("pod "), kind) {
        (Some(pod), _) if generators.iter().any(|generator| generator == pod) => LOAD,
        (Some(pod), _) if waypoints.iter().any(|waypoint| waypoint == pod) => WAYPOINT,
        (Some(_), _) => APPLICATION,
        (None, "proxy" | "worker") => PROXY,
        (None, "node") => AGENT,
        (None, "control") => CONTROL,
        (None, _) => MACHINE,
    }
}

fn read_threads(pid: i32, threads: &mut Threads) {
    // A process or a thread that ended meanwhile has nothing to read.
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
    for task in tasks.flatten() {
        let Some(tid) = task.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some(thread) = read_thread(&task.path()) {
            threads.insert((pid, tid), thread);
        }
    }
}

fn read_thread(task: &std::path::Path) -> Option<Thread> {
    let text = |file| fs::read_to_string(task.join(file)).ok();
    let ran_ns = text("schedstat")?.split(' ').next()?.parse().ok()?;
    let stat = text("stat")?;
    // The program's name, in parentheses, may hold blanks and parentheses.
    let after_name = stat.rsplit_once(')').map(|(_, rest)| rest)?;
    let field = |position: usize| after_name.split_whitespace().nth(position)?.parse().ok();
    let status = text("status")?;
    Some(Thread {
        ran_ns,
        user_ticks: field(11)?,
        system_ticks: field(12)?,
        voluntary: kib(&status, "voluntary_ctxt_switches:"),
        involuntary: kib(&status, "nonvoluntary_ctxt_switches:"),
    })
}

/// The number of a line of `/proc/PID/status`; 0 if there is none.
fn kib(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(host_pid: i32, name: &str) -> ProcessInfo {
        ProcessInfo {
            host_pid,
            pid: host_pid,
            host_parent_pid: 1,
            name: name.to_owned(),
            container: None,
            command: String::new(),
            resident_bytes: 0,
            cpu_ms: 0,
        }
    }

    #[test]
    fn every_process_has_a_role() {
        let processes = [
            process(1, "machine"),
            process(2, "control"),
            process(3, "node/node-1"),
            process(4, "lab-node/node-1"),
            process(5, "proxy/node-1"),
            process(6, "worker/node-1"),
            process(7, "pod bench/client"),
            process(8, "pod bench/server"),
            process(9, "pod bench/server"),
            process(11, "pod bench/waypoint-1"),
        ];
        let [client, waypoint] = ["bench/client", "bench/waypoint-1"].map(ToOwned::to_owned);
        let roles = Roles::of(&processes, (PROXY, &[9, 10]), &[client], &[waypoint]);
        assert_eq!(roles.pids(WAYPOINT), [11]);
        assert_eq!(roles.pids(PROXY), [5, 6, 9, 10]);
        assert_eq!((roles.pids(LOAD), roles.pids(APPLICATION)), ([7].as_slice(), [8].as_slice()));
        assert_eq!((roles.pids(AGENT), roles.pids(CONTROL)), ([3].as_slice(), [2].as_slice()));
        assert_eq!(roles.pids(MACHINE), [1, 4]);
    }

    #[test]
    fn work_is_counted_for_its_role() {
        let own = i32::try_from(std::process::id()).unwrap();
        let roles = Roles::of(&[process(own, "control")], (PROXY, &[]), &[], &[]);
        let before = roles.read().unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            let used = roles.read().unwrap().since(&before)[CONTROL];
            if used.user_seconds + used.system_seconds > 0.001 {
                assert_eq!(used.processes, 1);
                break;
            }
            assert!(std::time::Instant::now() < end, "work costs processor time");
        }
        assert!(roles.memory()[CONTROL].rss_bytes > 0);
    }
}
