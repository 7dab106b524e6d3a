//! The processes of a machine as the host sees them: PIDs for `ps`, `perf` and `kill`, memory and
//! CPU.
//!
//! Read from the host's `/proc`: a process inside cannot know its PID outside.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use serde::{Deserialize, Serialize};

use super::client::PodInfo;
use super::record::Record;

/// Clock ticks per second in `/proc/PID/stat`, the same on every Linux.
pub(crate) const TICKS_PER_SECOND: u64 = 100;

/// A process of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessInfo {
    /// Its number on the host.
    pub host_pid: i32,
    /// Its number inside the machine.
    pub pid: i32,
    /// The number of its parent on the host.
    pub host_parent_pid: i32,
    /// `machine`, a program such as `proxy/node-1`, `worker/node-1`, or `pod NAMESPACE/NAME`.
    pub name: String,
    /// The container of the pod that it belongs to. A process that descends from the container's
    /// first one does, and one that has its file tree or its session. The pod's own do not, nor
    /// commands of `ambit exec` in a tree that containers share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Its command line.
    pub command: String,
    /// Memory in use.
    pub resident_bytes: u64,
    /// CPU time used, user and system.
    pub cpu_ms: u64,
}

/// A process, and by what its container is known. None of it can a container choose: the kernel
/// numbers processes, a session is left but never joined, and so is a mount namespace by those who
/// may not mount outside of it.
#[derive(Clone, Debug)]
struct Seen {
    info: ProcessInfo,
    /// Its number in the pod, if it is in one.
    pod_pid: Option<i32>,
    /// The host's number of the process that began its session.
    session: i32,
}

type All = BTreeMap<i32, Seen>;

/// Every process of a machine. `pods` name those of pods.
pub fn processes(record: &Record, pods: &[PodInfo]) -> io::Result<Vec<ProcessInfo>> {
    let mut all = All::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        // One that ended meanwhile is no longer a process.
        if let Some(process) = pid.and_then(read) {
            all.insert(process.info.host_pid, process);
        }
    }
    let inside: Vec<i32> = all
        .keys()
        .copied()
        .filter(|pid| ancestors(&all, *pid).any(|up| up == record.pid))
        .collect();
    let found = inside.iter().map(|pid| {
        let (name, pod) = name(&all, *pid, record, pods);
        let container = pod.and_then(|pod| container(&all, *pid, pod, &mount_namespace));
        ProcessInfo { name, container, ..all[pid].info.clone() }
    });
    Ok(found.collect())
}

/// A process and its parents, up to one that is not known.
fn ancestors(all: &All, pid: i32) -> impl Iterator<Item = i32> {
    std::iter::successors(Some(pid), |pid| {
        all.get(pid).map(|process| process.info.host_parent_pid).filter(|parent| *parent != 0)
    })
}

/// What a process is, and its pod if it has one.
fn name<'p>(
    all: &All,
    pid: i32,
    record: &Record,
    pods: &'p [PodInfo],
) -> (String, Option<&'p PodInfo>) {
    for up in ancestors(all, pid) {
        let Some(Seen { info: process, .. }) = all.get(&up) else { continue };
        if let Some(pod) = pods.iter().find(|pod| pod.pid != 0 && pod.pid == process.pid) {
            return (format!("pod {}/{}", pod.namespace, pod.name), Some(pod));
        }
        let mut words = process.command.split(' ').skip(1);
        let role = words.next().unwrap_or_default();
        let is_worker = role == "proxy" && process.command.contains(" --worker");
        let node = process.command.split(' ').skip_while(|word| *word != "--node-name").nth(1);
        let name = match (role, node) {
            // By its own words: a worker outlives its supervisor.
            ("proxy", Some(node)) if is_worker => format!("worker/{node}"),
            ("node" | "proxy" | "lab-node", Some(node)) => format!("{role}/{node}"),
            // Another mesh's program shows in its environment; it is in its node's network.
            ("proxy", None) => match node_of(record, process.host_pid) {
                Some(node) => format!("proxy/{node}"),
                None => continue,
            },
            ("control", _) => role.to_owned(),
            _ if up == record.pid => break,
            _ => continue,
        };
        return (name, None);
    }
    ("machine".to_owned(), None)
}

/// The container that a process of a pod belongs to. `mounts` says in which mount namespace a
/// process is.
fn container(
    all: &All,
    pid: i32,
    pod: &PodInfo,
    mounts: &dyn Fn(i32) -> Option<u64>,
) -> Option<String> {
    let init = all.values().find(|it| it.info.pid == pod.pid)?.info.host_pid;
    let is_of_pod = |it: &&Seen| ancestors(all, it.info.host_pid).any(|up| up == init);
    let first = |number: i32| {
        let mut numbered = all.values().filter(|it| it.pod_pid == Some(number));
        numbered.find(is_of_pod).map(|it| it.info.host_pid)
    };
    let containers = pod.containers.iter().filter(|it| it.running);
    let firsts = containers.filter_map(|it| Some((first(it.pid?)?, &it.name)));
    let firsts: Vec<(i32, &String)> = firsts.collect();
    let named = |is_it: &dyn Fn(i32) -> bool| {
        let mut named = firsts.iter().filter(|(first, _)| is_it(*first)).map(|(_, name)| *name);
        // Containers without an image share the pod's tree.
        named.next().filter(|_| named.next().is_none()).cloned()
    };
    let above: Vec<i32> = ancestors(all, pid).take_while(|up| *up != init).collect();
    if above.is_empty() {
        return None;
    }
    let (session, own) = (all[&pid].session, mounts(pid));
    named(&|first| above.contains(&first))
        .or_else(|| named(&|first| session == first))
        .or_else(|| named(&|first| own.is_some() && own != mounts(init) && own == mounts(first)))
}

/// The number of a process' mount namespace; nothing if the caller may not know it.
fn mount_namespace(host_pid: i32) -> Option<u64> {
    let link = fs::read_link(format!("/proc/{host_pid}/ns/mnt")).ok()?;
    link.to_str()?.strip_prefix("mnt:[")?.strip_suffix(']')?.parse().ok()
}

/// The node in whose network a process is.
fn node_of(record: &Record, host_pid: i32) -> Option<&str> {
    let link = fs::read_link(format!("/proc/{host_pid}/ns/net")).ok()?;
    let number: u64 = link.to_str()?.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()?;
    let mut networks = record.network_namespaces.iter();
    let (name, _) = networks.find(|(_, network)| **network == number)?;
    record.nodes.contains(name).then_some(name.as_str())
}

fn read(host_pid: i32) -> Option<Seen> {
    let status = fs::read_to_string(format!("/proc/{host_pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        Some(line[name.len()..].trim_start_matches(':').trim())
    };
    let number = |name: &str, position: usize| -> Option<i64> {
        field(name)?.split_whitespace().nth(position)?.parse().ok()
    };
    // The first number is the host's, the second that of the machine's PID namespace.
    let pid = number("NSpid", 1)?;
    let stat = fs::read_to_string(format!("/proc/{host_pid}/stat")).ok()?;
    let after_name = stat.rsplit_once(')').map(|(_, rest)| rest)?;
    let ticks = |position: usize| -> Option<u64> {
        after_name.split_whitespace().nth(position)?.parse().ok()
    };
    let command = fs::read(format!("/proc/{host_pid}/cmdline")).ok()?;
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    let info = ProcessInfo {
        host_pid,
        pid: i32::try_from(pid).ok()?,
        host_parent_pid: i32::try_from(number("PPid", 0)?).ok()?,
        name: String::new(),
        container: None,
        command: command.trim().to_owned(),
        resident_bytes: number("VmRSS", 0).and_then(|kib| u64::try_from(kib).ok()).unwrap_or(0)
            << 10,
        cpu_ms: (ticks(11)? + ticks(12)?) * 1000 / TICKS_PER_SECOND,
    };
    let pod_pid = number("NSpid", 2).and_then(|pid| i32::try_from(pid).ok());
    let session = after_name.split_whitespace().nth(3)?.parse().ok()?;
    Some(Seen { info, pod_pid, session })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(host_pid: i32, host_parent_pid: i32, pod_pid: Option<i32>, session: i32) -> Seen {
        let info = ProcessInfo {
            host_pid,
            pid: host_pid - 100,
            host_parent_pid,
            name: String::new(),
            container: None,
            command: String::new(),
            resident_bytes: 0,
            cpu_ms: 0,
        };
        Seen { info, pod_pid, session }
    }

    #[test]
    fn processes_belong_to_containers_by_what_these_cannot_choose() {
        let all = [
            seen(101, 1, None, 101),      // The machine.
            seen(102, 101, Some(1), 102), // The pod's init.
            seen(103, 102, Some(2), 103), // web
            seen(104, 103, Some(3), 104), // A child of web, in a session of its own.
            seen(105, 102, Some(4), 103), // Left by web, in its session.
            seen(106, 102, Some(5), 106), // db, with an image.
            seen(107, 102, Some(6), 107), // Left by db, in its tree.
            seen(108, 102, Some(7), 108), // A command of `ambit exec`.
            seen(109, 102, Some(8), 109), // log, without an image as web.
            seen(203, 101, Some(2), 203), // Another pod's, of the same number.
        ];
        let all: All = all.into_iter().map(|it| (it.info.host_pid, it)).collect();
        let container_of =
            |name: &str, pid: i32| serde_json::json!({"name": name, "running": true, "pid": pid});
        let mut ended = container_of("old", 7);
        ended["running"] = false.into();
        let pod = serde_json::json!({"namespace": "app", "name": "web", "uid": "u",
            "node": "node-1", "serviceAccount": "", "owner": "", "phase": "Running",
            "ready": true, "terminating": false, "captured": true, "hostNetwork": false,
            "podIps": [], "restarts": 0, "reason": "", "unschedulable": false,
            "crashLooping": false, "created": "", "pid": 2,
            "containers": [container_of("web", 2), container_of("db", 5), container_of("log", 8),
                ended]});
        let pod: PodInfo = serde_json::from_value(pod).expect("a pod");
        let mounts = |pid: i32| Some(if [106, 107].contains(&pid) { 9 } else { 1 });
        let of = |pid: i32| container(&all, pid, &pod, &mounts);
        for (pid, expected) in [
            (102, None),
            (103, Some("web")),
            (104, Some("web")),
            (105, Some("web")),
            (106, Some("db")),
            (107, Some("db")),
            (108, None),
            (109, Some("log")),
        ] {
            assert_eq!(of(pid).as_deref(), expected, "{pid}");
        }
    }
}
