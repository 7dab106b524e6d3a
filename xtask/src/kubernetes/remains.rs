//! What a cluster could leave behind on the machine, compared before and after.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest as _, Sha256};

/// Settings of the whole machine, or of its first network namespace, that Kubernetes likes to
/// change.
const SETTINGS: [&str; 9] = [
    "fs/inotify/max_user_instances",
    "fs/inotify/max_user_watches",
    "kernel/panic",
    "kernel/panic_on_oops",
    "net/bridge/bridge-nf-call-iptables",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/ip_forward",
    "net/netfilter/nf_conntrack_max",
    "vm/overcommit_memory",
];
/// Where Kubernetes, containerd, CNI and we write on a node.
const PLACES: [&str; 14] = [
    "/etc/cni",
    "/etc/cni/net.d",
    "/opt/cni",
    "/opt/cni/bin",
    "/run/containerd",
    "/run/istio-cni",
    "/run/netns",
    "/run/ztunnel",
    "/usr/lib/cni",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
];
const MAX_CGROUP_DEPTH: usize = 12;

/// The machine at one moment, as lines.
pub(crate) struct Machine(BTreeSet<String>);

impl Machine {
    /// Looks at mounts, links, cgroups, settings, files and processes.
    pub(super) fn look(state: &Path) -> Result<Self> {
        let mut lines = BTreeSet::new();
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("read the mounts")?;
        let place = |line: &str| line.split(' ').nth(4).map(|place| format!("mount {place}"));
        lines.extend(mounts.lines().filter_map(place));
        lines.extend(names("/sys/class/net").map(|name| format!("link {name}")));
        lines.extend(cgroups(state).iter().map(|path| format!("cgroup {}", path.display())));
        for setting in SETTINGS {
            // One that this kernel does not have cannot change.
            let value = fs::read_to_string(Path::new("/proc/sys").join(setting));
            lines.extend(value.map(|value| format!("setting {setting} = {}", value.trim())));
        }
        for place in PLACES {
            lines.extend(Path::new(place).exists().then(|| format!("file {place}")));
            lines.extend(names(place).map(|name| format!("file {place}/{name}")));
        }
        lines.extend(processes(state));
        Ok(Self(lines))
    }
}

/// Fails with everything that is there now and was not, or was and is not.
pub(crate) fn check(before: &Machine, after: &Machine) -> Result<()> {
    let new = after.0.difference(&before.0).map(|line| format!("left behind: {line}"));
    let gone = before.0.difference(&after.0).map(|line| format!("no longer there: {line}"));
    let wrong: Vec<String> = new.chain(gone).collect();
    if !wrong.is_empty() {
        bail!("the machine is not what it was:\n  {}", wrong.join("\n  "));
    }
    Ok(())
}

/// How the cgroups of a cluster's nodes begin: each cluster has a state directory of its own.
pub(super) fn cgroup_prefix(state: &Path) -> String {
    let digest = Sha256::digest(state.as_os_str().as_bytes());
    format!("ambit-{:02x}{:02x}{:02x}", digest[0], digest[1], digest[2])
}

/// The nodes' cgroups, in every hierarchy, with all below them.
pub(super) fn cgroups(state: &Path) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = directories(root);
    let tops = hierarchies.iter().flat_map(|path| directories(path)).chain(hierarchies.clone());
    let prefix = cgroup_prefix(state);
    let is_ours = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
    };
    let mut all: Vec<PathBuf> = tops.filter(is_ours).collect();
    let mut level = all.clone();
    for _ in 0..MAX_CGROUP_DEPTH {
        level = level.iter().flat_map(|path| directories(path)).collect();
        all.extend(level.iter().cloned());
    }
    all
}

fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries.filter(is_directory).map(|entry| entry.path()).collect()
}

fn names(directory: &str) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// Processes that run a program of the cluster's, or for it.
fn processes(state: &Path) -> Vec<String> {
    let file = |path: PathBuf| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let programs = state.join("bin");
    let programs: Vec<_> =
        names(&programs.to_string_lossy()).filter_map(|name| file(programs.join(name))).collect();
    let group = format!("/{}", cgroup_prefix(state));
    let of_cluster = |pid: &str| {
        let exe = PathBuf::from(format!("/proc/{pid}/exe"));
        let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let is_ours = cgroup.contains(&group)
            || file(exe.clone()).is_some_and(|file| programs.contains(&file));
        is_ours
            .then(|| format!("process {pid} {}", fs::read_link(exe).unwrap_or_default().display()))
    };
    names("/proc").filter_map(|pid| of_cluster(&pid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let machine =
            |lines: &[&str]| Machine(lines.iter().map(|line| (*line).to_owned()).collect());
        let before = machine(&["link lo", "setting a = 1"]);
        assert!(check(&before, &before).is_ok());
        let after = machine(&["link lo", "link cni0", "setting a = 2"]);
        let error = check(&before, &after).expect_err("differs").to_string();
        for part in ["left behind: link cni0", "no longer there: setting a = 1"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
