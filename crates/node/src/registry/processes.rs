//! Finds the network namespaces of a cluster's pods from the node's side: by the cgroup of their
//! processes, then by libcni's records of the namespaces that it made.
//!
//! The kubelet and the container runtime write both. A pod may create its own namespaces, so not
//! every process of its cgroup is in the right one. The oldest process is, because the processes
//! that a container starts end with it. This module never looks at a namespace's addresses: a pod
//! chooses those.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ambit_net::namespace::NetNs;
use serde::Deserialize;

use crate::pod::PodUid;

/// Longest `/proc/PID/cgroup` and `/proc/PID/stat` that are read.
const PROC_FILE_MAX_BYTES: u64 = 64 * 1024;
/// Largest note of libcni that is read.
const NOTE_MAX_BYTES: u64 = 1024 * 1024;
/// Length of a uid in its usual form.
const UID_LENGTH: usize = 36;

/// Where to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sources {
    /// The node's `/proc`, of its first process's PID namespace.
    pub(crate) proc: PathBuf,
    /// Where libcni keeps its results.
    pub(crate) cni_results: PathBuf,
}

/// The namespaces of these pods, as far as they are found; all in one pass.
pub(crate) fn find(
    sources: &Sources,
    wanted: &BTreeSet<PodUid>,
) -> io::Result<HashMap<PodUid, Arc<NetNs>>> {
    let hosts = hosts(&sources.proc)?;
    let mut found = HashMap::new();
    for (uid, processes) in processes_of(&sources.proc, wanted)? {
        let netns = processes.iter().find_map(|process| process.netns(sources, &uid, &hosts));
        found.extend(netns.map(|netns| (uid, Arc::new(netns))));
    }
    if wanted.iter().any(|uid| !found.contains_key(uid)) {
        for (uid, netns) in notes(&sources.cni_results, wanted, &hosts) {
            found.entry(uid).or_insert_with(|| Arc::new(netns));
        }
    }
    Ok(found)
}

/// Namespaces that are no pod's: the agent's own, and that of the node's first process.
fn hosts(proc: &Path) -> io::Result<Vec<NetNs>> {
    let own = NetNs::current()?;
    let first = NetNs::open(proc.join("1/ns/net"));
    Ok([Some(own), first.ok()].into_iter().flatten().collect())
}

fn is_host(netns: &NetNs, hosts: &[NetNs]) -> bool {
    hosts.iter().any(|host| host.inode() == netns.inode())
}

/// A process of a pod, when it was read. Sorts by age.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    /// When it started; with the id it names a process for all time.
    started: u64,
    pid: u32,
}

impl Process {
    /// The process's namespace, if it is still that process, in that pod, and not on the node's
    /// network (as a runtime's monitor is).
    fn netns(&self, sources: &Sources, uid: &PodUid, hosts: &[NetNs]) -> Option<NetNs> {
        let directory = sources.proc.join(self.pid.to_string());
        let netns = match NetNs::open(directory.join("ns/net")) {
            Ok(netns) => netns,
            Err(error) => {
                if error.kind() == ErrorKind::PermissionDenied {
                    tracing::warn!(pid = self.pid, %error, "cannot look into a pod's process (the \
                        agent needs SYS_PTRACE and hostPID)");
                }
                return None;
            }
        };
        // After the namespace was opened: the id may have been given to another process before.
        let same = started(&directory) == Some(self.started);
        let same = same && cgroup_owner(&directory).as_ref() == Some(uid);
        (same && !is_host(&netns, hosts)).then_some(netns)
    }
}

/// The processes in the cgroups of these pods, oldest first.
fn processes_of(
    proc: &Path,
    wanted: &BTreeSet<PodUid>,
) -> io::Result<BTreeMap<PodUid, Vec<Process>>> {
    let mut processes: BTreeMap<PodUid, Vec<Process>> = BTreeMap::new();
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let directory = entry.path();
        let Some(uid) = cgroup_owner(&directory).filter(|uid| wanted.contains(uid)) else {
            continue;
        };
        if let Some(started) = started(&directory) {
            processes.entry(uid).or_default().push(Process { started, pid });
        }
    }
    processes.values_mut().for_each(|processes| processes.sort_unstable());
    Ok(processes)
}

/// The pod whose cgroup a process is in. `None` for other processes and those that have ended.
fn cgroup_owner(directory: &Path) -> Option<PodUid> {
    let text = read(&directory.join("cgroup"))?;
    // `hierarchy:controllers:path`, in version 1 and 2.
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.filter_map(|path| path.split('/').find_map(uid_of)).next()
}

/// The uid in one component of a cgroup's path. The outermost counts: what a pod makes is below
/// its own.
fn uid_of(component: &str) -> Option<PodUid> {
    // `pod<uid>` by cgroupfs, `kubepods-burstable-pod<uid with underscores>.slice` by systemd; a
    // runtime that mixes both appends `:cri-containerd:<id>`.
    let uid = match component.split_once(".slice") {
        Some((slice, _)) if slice.starts_with("kubepods") => slice.rsplit_once("-pod")?.1,
        Some(_) => return None,
        None => component.strip_prefix("pod")?,
    };
    let is_uid = uid.len() == UID_LENGTH
        && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'-' | b'_'));
    is_uid.then(|| PodUid::new(&uid.replace('_', "-")))
}

/// When a process started, in the kernel's ticks: field 22 of its `stat`.
fn started(directory: &Path) -> Option<u64> {
    let text = read(&directory.join("stat"))?;
    // Its name comes second, in parentheses, and may hold anything.
    let (_, after_name) = text.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(PROC_FILE_MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// What libcni notes of a result, as far as it is read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Note {
    netns: Option<PathBuf>,
    #[serde(default)]
    cni_args: Vec<(String, String)>,
}

/// The namespaces of these pods by libcni's notes. One that is damaged or old says nothing.
fn notes<'a>(
    directory: &Path,
    wanted: &'a BTreeSet<PodUid>,
    hosts: &'a [NetNs],
) -> impl Iterator<Item = (PodUid, NetNs)> + 'a {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let small = entry.metadata().is_ok_and(|found| found.len() <= NOTE_MAX_BYTES);
        let note = small.then(|| fs::read(entry.path()).ok()).flatten()?;
        let note: Note = serde_json::from_slice(&note).ok()?;
        let uid = note.cni_args.iter().find(|(name, _)| name == "K8S_POD_UID")?;
        let uid = PodUid::new(&uid.1);
        // The id of a process may be another's by now.
        let path = note.netns.filter(|path| !path.starts_with("/proc"))?;
        let netns = wanted.contains(&uid).then(|| NetNs::open(path).ok()).flatten()?;
        (!is_host(&netns, hosts)).then_some((uid, netns))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::Directory;

    const A: &str = "aaaaaaaa-2222-3333-4444-555555555555";
    const B: &str = "bbbbbbbb-2222-3333-4444-555555555555";

    /// A node's `/proc` and notes of libcni, made up.
    struct Node {
        directory: Directory,
        namespaces: Vec<(PathBuf, u64)>,
    }

    impl Node {
        fn new(name: &str) -> Self {
            let directory = Directory::new(name);
            for part in ["proc", "results"] {
                fs::create_dir_all(directory.path(part)).expect("directory");
            }
            Self { directory, namespaces: Vec::new() }
        }

        /// A new namespace; answers with its place in the list.
        fn namespace(&mut self) -> usize {
            let netns = NetNs::create().expect("make a namespace (these tests need root)");
            let path = self.directory.path(&format!("netns-{}", self.namespaces.len()));
            netns.pin(&path).expect("pin");
            self.namespaces.push((path, netns.inode()));
            self.namespaces.len() - 1
        }

        fn process(&self, pid: u32, started: u64, cgroup: &str, namespace: usize) {
            let directory = self.directory.path(&format!("proc/{pid}"));
            fs::create_dir_all(directory.join("ns")).expect("directory");
            fs::write(directory.join("cgroup"), cgroup).expect("cgroup");
            let before = "S 1 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0";
            let stat = format!("{pid} (a ) b) {before} {started} 0 0");
            fs::write(directory.join("stat"), stat).expect("stat");
            let target = &self.namespaces[namespace].0;
            std::os::unix::fs::symlink(target, directory.join("ns/net")).expect("symlink");
        }

        fn note(&self, name: &str, text: &str) {
            fs::write(self.directory.path("results").join(name), text).expect("note");
        }

        /// Which namespace of the list each pod is in.
        fn check(&self, expected: &[(&str, usize)]) {
            let sources = Sources {
                proc: self.directory.path("proc"),
                cni_results: self.directory.path("results"),
            };
            let wanted = BTreeSet::from([A, B].map(PodUid::new));
            let found = find(&sources, &wanted).expect("readable");
            let found: BTreeMap<_, _> =
                found.iter().map(|(u, n)| (u.as_str(), n.inode())).collect();
            let expected =
                expected.iter().map(|(uid, place)| (*uid, self.namespaces[*place].1)).collect();
            assert_eq!(found, expected);
        }
    }

    impl Drop for Node {
        fn drop(&mut self) {
            for (path, _) in &self.namespaces {
                ambit_net::namespace::unpin(path).expect("unpin");
            }
        }
    }

    #[test]
    fn the_pod_is_named_by_the_outermost_cgroup_that_names_one() {
        let systemd = |uid: &str| uid.replace('-', "_");
        let table = [
            (format!("0::/kubepods/burstable/pod{A}/0123"), Some(A)),
            (format!("0::/kubepods/pod{A}/0123"), Some(A)),
            (format!("12:cpu,cpuacct:/\n1:name=systemd:/kubepods/pod{A}/0123\n0::/"), Some(A)),
            (
                format!(
                    "0::/kubepods.slice/kubepods-besteffort.slice/\
                    kubepods-besteffort-pod{}.slice/cri-containerd-0123.scope",
                    systemd(A)
                ),
                Some(A),
            ),
            (format!("0::/kubepods-pod{}.slice:cri-containerd:0123", systemd(A)), Some(A)),
            (format!("0::/../../kubepods-pod{}.slice/crio-0.scope", systemd(A)), Some(A)),
            (format!("0::/kubepods/pod{A}/0123/kubepods/pod{B}/0123"), Some(A)),
            (format!("0::/user.slice/pod{}.slice", systemd(A)), None),
            ("0::/kubepods/podinfo/0123".to_owned(), None),
            ("0::/system.slice/kubelet.service".to_owned(), None),
            (String::new(), None),
        ];
        let directory = Directory::new("cgroup");
        for (text, expected) in table {
            fs::write(directory.path("cgroup"), &text).expect("write");
            let owner = cgroup_owner(&directory.path(""));
            assert_eq!(owner.as_ref().map(PodUid::as_str), expected, "{text}");
        }
    }

    #[test]
    fn the_oldest_process_that_is_not_on_the_nodes_network_tells() {
        let mut node = Node::new("scan");
        let [host, of_a, of_b, nested] = [(); 4].map(|()| node.namespace());
        let cgroup = |uid: &str| format!("0::/kubepods/burstable/pod{uid}/0123\n");
        node.process(1, 1, "0::/init.scope\n", host);
        node.process(50, 500, &cgroup(A), host);
        node.process(70, 520, &cgroup(A), nested);
        node.process(90, 510, &cgroup(A), of_a);
        node.process(60, 600, &cgroup(B), of_b);
        node.process(61, 601, "0::/user.slice\n", of_a);
        fs::create_dir_all(node.directory.path("proc/self")).expect("directory");
        fs::create_dir_all(node.directory.path("proc/77")).expect("a process that has ended");
        node.check(&[(A, of_a), (B, of_b)]);
    }

    #[test]
    fn a_process_id_that_was_given_anew_is_not_believed() {
        let mut node = Node::new("reused");
        let [host, other] = [(); 2].map(|()| node.namespace());
        node.process(1, 1, "0::/\n", host);
        node.process(50, 500, &format!("0::/kubepods/pod{B}/0\n"), other);
        let sources = Sources {
            proc: node.directory.path("proc"),
            cni_results: node.directory.path("results"),
        };
        let [a, b] = [A, B].map(PodUid::new);
        let netns = |started, uid| Process { started, pid: 50 }.netns(&sources, uid, &[]);
        assert!(netns(500, &b).is_some());
        assert!(netns(499, &b).is_none(), "another process of the same pod");
        assert!(netns(500, &a).is_none(), "another pod's process");
    }

    #[test]
    fn the_notes_of_libcni_tell_where_no_process_does() {
        let mut node = Node::new("notes");
        let [host, of_a, of_b] = [(); 3].map(|()| node.namespace());
        node.process(1, 1, "0::/\n", host);
        node.process(60, 600, &format!("0::/kubepods/pod{A}/0\n"), of_a);
        let note = |uid: &str, place: &str| {
            format!(
                r#"{{"kind":"cniCacheV1","netns":"{place}","ifName":"eth0","result":{{}},
                "cniArgs":[["IgnoreUnknown","1"],["K8S_POD_UID","{uid}"]]}}"#
            )
        };
        let path = |place: usize| node.namespaces[place].0.display().to_string();
        node.note("stale", &note(A, &path(of_b)));
        node.note("host", &note(B, &path(host)));
        node.note("broken", "{");
        node.note("process", &note(B, "/proc/self/ns/net"));
        node.check(&[(A, of_a)]);
        node.note("good", &note(B, &path(of_b)));
        node.check(&[(A, of_a), (B, of_b)]);
    }
}
