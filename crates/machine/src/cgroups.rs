//! Control groups: where the limits of containers hold.
//!
//! A machine makes a group of its own for each controller, below that in which it was started; in
//! it are groups of pods, and in these groups of containers. Only containers with limits are in
//! one. A container's limits are those of its group, and its processes are in a group below that: a
//! process can make a namespace of groups in which its own is the root, and mount and write that
//! one, but not what is above.
//!
//! A machine that may not make groups, as without root, has none: then limits have no effect, and
//! who applies them is warned. Version 1 and 2 of the kernel's interface are known; where a host
//! has both, the controller decides which one it is.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use ambit_manifest::quantity;
use ambit_net::sys::mount;
use k8s_openapi::api::core::v1::Container;
use serde::{Deserialize, Serialize};

/// The period in which processor time is counted, as Kubernetes sets it.
const CPU_PERIOD_MICROS: u64 = 100_000;
/// The least that the kernel grants of it.
const CPU_QUOTA_MIN_MICROS: u64 = 1_000;
/// Thousandths, as a power of ten: the unit of processors.
const MILLI: i32 = -3;
/// What the groups of containers are called before their names: a file of the kernel's could have
/// such a name, as `tasks` has.
const CONTAINER: &str = "c.";
/// The group of a container's processes, below that with its limits.
const INSIDE: &str = "in";
/// The file that a process enters a group by.
const PROCESSES: &str = "cgroup.procs";
/// The file of version 2 that says which controllers the groups below have.
const BELOW: &str = "cgroup.subtree_control";

/// What a container may use at most.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limits {
    /// Thousandths of a processor.
    pub(crate) cpu_milli: Option<u64>,
    /// Bytes of memory.
    pub(crate) memory_bytes: Option<u64>,
}

/// A group of processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// Its directory.
    pub directory: PathBuf,
    /// It is of version 2 of the interface.
    pub is_unified: bool,
}

/// The groups of a machine or of a pod, by what they limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroups {
    /// Limits processor time.
    pub cpu: Option<Cgroup>,
    /// Limits memory.
    pub memory: Option<Cgroup>,
}

/// A control group that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the control group {directory}")]
pub(crate) struct CgroupError {
    what: &'static str,
    directory: PathBuf,
    source: io::Error,
}

impl Limits {
    /// What a container's manifest says. As in Kubernetes, a limit of 0 is none.
    pub(crate) fn of(container: &Container) -> Self {
        let limits = container.resources.as_ref().and_then(|it| it.limits.as_ref());
        let limit = |name: &str, unit| {
            let written = limits.and_then(|limits| limits.get(name));
            written.and_then(|it| quantity(&it.0, unit)).filter(|amount| *amount > 0)
        };
        Self { cpu_milli: limit("cpu", MILLI), memory_bytes: limit("memory", 0) }
    }
}

impl Cgroups {
    /// The groups of this name that a machine can have, if it is allowed to make them.
    pub(crate) fn find(name: &str) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let place = |controller| {
            let place = hierarchy(controller, &mounts, &own).or_else(|| unified(&mounts));
            place.map(|it| Cgroup { directory: it.directory.join(name), ..it })
        };
        Ok(Self { cpu: place("cpu"), memory: place("memory") })
    }

    /// Makes the groups of a machine; answers with those that could be made, and with why others
    /// could not.
    pub(crate) fn create(self) -> (Self, Vec<CgroupError>) {
        let mut failed = Vec::new();
        let mut create = |group: Option<Cgroup>, controller| {
            let group = group?;
            match group.create_first(controller) {
                Ok(()) => Some(group),
                Err(source) => {
                    let Cgroup { directory, .. } = group;
                    // Of no use without its controller.
                    let _made_by_the_other = fs::remove_dir(&directory);
                    failed.push(CgroupError { what: "make", directory, source });
                    None
                }
            }
        };
        let groups = Self { cpu: create(self.cpu, "cpu"), memory: create(self.memory, "memory") };
        (groups, failed)
    }

    /// The groups of a pod in which a container has limits, below these.
    pub(crate) fn of_pod<'l>(
        &self,
        uid: &str,
        limits: impl Iterator<Item = &'l Limits> + Clone,
    ) -> Self {
        let below =
            |group: &Cgroup| Cgroup { directory: group.directory.join(uid), ..group.clone() };
        let has_cpu = limits.clone().any(|it| it.cpu_milli.is_some());
        let has_memory = limits.clone().any(|it| it.memory_bytes.is_some());
        Self {
            cpu: self.cpu.as_ref().filter(|_| has_cpu).map(below),
            memory: self.memory.as_ref().filter(|_| has_memory).map(below),
        }
    }

    /// Makes the groups of a pod, or finds them made.
    pub(crate) fn ensure(&self) -> Result<(), CgroupError> {
        for (controller, group) in self.each() {
            group.ensure(controller).map_err(|source| {
                let directory = group.directory.clone();
                CgroupError { what: "make", directory, source }
            })?;
        }
        Ok(())
    }

    /// Removes the groups with those below, as far as nothing runs in them; answers with those that
    /// stay.
    pub(crate) fn remove(&self) -> Vec<PathBuf> {
        self.each().for_each(|(_, group)| remove_tree(&group.directory));
        self.present()
    }

    /// Removes the groups of a pod below these.
    pub(crate) fn remove_pod(&self, uid: &str) -> Vec<PathBuf> {
        let any = Limits { cpu_milli: Some(1), memory_bytes: Some(1) };
        self.of_pod(uid, std::iter::once(&any)).remove()
    }

    /// The directories that are there.
    pub fn present(&self) -> Vec<PathBuf> {
        let mut present: Vec<PathBuf> =
            self.each().map(|(_, group)| group.directory.clone()).collect();
        present.dedup();
        present.retain(|directory| directory.exists());
        present
    }

    /// Keeps a pod's groups open for writing, whatever becomes of the mounts that they are seen by.
    pub(crate) fn hold(&self) -> io::Result<HeldCgroups> {
        let hold = |group: &Option<Cgroup>| {
            let group = group.as_ref();
            group
                .map(|group| Ok((mount::detached(&group.directory)?, group.is_unified)))
                .transpose()
        };
        let hold = |group| -> io::Result<Option<(OwnedFd, bool)>> { hold(group) };
        Ok(HeldCgroups { cpu: hold(&self.cpu)?, memory: hold(&self.memory)? })
    }

    fn each(&self) -> impl Iterator<Item = (&'static str, &Cgroup)> {
        let all = [("cpu", &self.cpu), ("memory", &self.memory)];
        all.into_iter().filter_map(|(controller, group)| Some((controller, group.as_ref()?)))
    }
}

impl Cgroup {
    /// Makes the group where none of its name may be yet, but by the other controller.
    fn create_first(&self, controller: &str) -> io::Result<()> {
        if self.is_unified
            && let Some(above) = self.directory.parent()
        {
            // Mostly it is so already; what counts is whether it works in the new group.
            let _known_below = fs::write(above.join(BELOW), format!("+{controller}"));
        }
        self.ensure(controller)
    }

    fn ensure(&self, controller: &str) -> io::Result<()> {
        make(&self.directory)?;
        if self.is_unified {
            fs::write(self.directory.join(BELOW), format!("+{controller}"))?;
        }
        Ok(())
    }
}

/// The groups of a pod, as its init holds them.
#[derive(Debug)]
pub(crate) struct HeldCgroups {
    cpu: Option<(OwnedFd, bool)>,
    memory: Option<(OwnedFd, bool)>,
}

impl HeldCgroups {
    /// Makes the groups of a container, or finds them made, and sets its limits. A process enters
    /// them by writing `0` to each of the files.
    pub(crate) fn entrances(&self, container: &str, limits: &Limits) -> io::Result<Vec<File>> {
        let mut entrances = Vec::new();
        if let (Some((group, is_unified)), Some(milli)) = (&self.cpu, limits.cpu_milli) {
            let directory = below(group, container)?;
            set_cpu(&directory, *is_unified, milli)?;
            entrances.push(entrance(&directory)?);
        }
        if let (Some((group, is_unified)), Some(bytes)) = (&self.memory, limits.memory_bytes) {
            let directory = below(group, container)?;
            set_memory(&directory, *is_unified, bytes)?;
            entrances.push(entrance(&directory)?);
        }
        Ok(entrances)
    }

    /// How many processes of a container the kernel has killed for want of memory.
    pub(crate) fn kills(&self, container: &str) -> u64 {
        let Some((group, is_unified)) = &self.memory else { return 0 };
        let limited = place(group, container);
        // Version 1 counts where the process was, version 2 also above.
        let text = match is_unified {
            true => fs::read_to_string(limited.join("memory.events")),
            false => fs::read_to_string(limited.join(INSIDE).join("memory.oom_control")),
        };
        counter(&text.unwrap_or_default(), "oom_kill")
    }
}

fn seen(group: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", group.as_raw_fd()).into()
}

/// The group with a container's limits.
fn place(group: &OwnedFd, container: &str) -> PathBuf {
    seen(group).join(format!("{CONTAINER}{container}"))
}

fn below(group: &OwnedFd, container: &str) -> io::Result<PathBuf> {
    let directory = place(group, container);
    make(&directory)?;
    Ok(directory)
}

fn make(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Where processes enter a group with limits.
fn entrance(limited: &Path) -> io::Result<File> {
    let inside = limited.join(INSIDE);
    make(&inside)?;
    OpenOptions::new().write(true).open(inside.join(PROCESSES))
}

fn set_cpu(directory: &Path, is_unified: bool, milli: u64) -> io::Result<()> {
    let quota = milli.saturating_mul(CPU_PERIOD_MICROS / 1000).max(CPU_QUOTA_MIN_MICROS);
    if is_unified {
        return fs::write(directory.join("cpu.max"), format!("{quota} {CPU_PERIOD_MICROS}"));
    }
    fs::write(directory.join("cpu.cfs_period_us"), CPU_PERIOD_MICROS.to_string())?;
    fs::write(directory.join("cpu.cfs_quota_us"), quota.to_string())
}

/// Without swap, as in Kubernetes: it would only put off the end.
fn set_memory(directory: &Path, is_unified: bool, bytes: u64) -> io::Result<()> {
    // More than the kernel can count is no limit.
    let bytes = bytes.min(i64::MAX.unsigned_abs()).to_string();
    if is_unified {
        fs::write(directory.join("memory.max"), &bytes)?;
        return write_if_there(&directory.join("memory.swap.max"), "0");
    }
    let hierarchy = directory.join("memory.use_hierarchy");
    if fs::read_to_string(&hierarchy).is_ok_and(|text| text.trim() == "0") {
        // Older kernels count what is in the groups below only when asked.
        fs::write(&hierarchy, "1")?;
    }
    fs::write(directory.join("memory.limit_in_bytes"), &bytes)?;
    write_if_there(&directory.join("memory.memsw.limit_in_bytes"), &bytes)
}

/// Writes what the kernel has only if it counts swap.
fn write_if_there(path: &Path, text: &str) -> io::Result<()> {
    match OpenOptions::new().write(true).open(path) {
        Ok(mut file) => io::Write::write_all(&mut file, text.as_bytes()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn counter(text: &str, name: &str) -> u64 {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(value).unwrap_or_default()
}

/// Removes a group and those below it. One in which something runs stays.
fn remove_tree(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.for_each(|group| remove_tree(&group.path()));
    // Whether that worked shows in what is there afterwards.
    let _may_be_in_use = fs::remove_dir(directory);
}

/// A line of `mountinfo`, as far as it matters here.
struct Mount<'t> {
    /// What of the file system is mounted.
    root: &'t str,
    point: &'t str,
    kind: &'t str,
    options: &'t str,
}

fn mounts(mountinfo: &str) -> impl Iterator<Item = Mount<'_>> {
    mountinfo.lines().filter_map(|line| {
        let (place, what) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let mut what = what.split(' ');
        let (root, point, kind) = (place.next()?, place.next()?, what.next()?);
        Some(Mount { root, point, kind, options: what.nth(1)? })
    })
}

/// This process' own group in version 1's hierarchy of a controller.
fn hierarchy(controller: &str, mountinfo: &str, own: &str) -> Option<Cgroup> {
    let has = |list: &str| list.split(',').any(|it| it == controller);
    let mount = mounts(mountinfo).find(|it| it.kind == "cgroup" && has(it.options))?;
    let mut lines = own.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>());
    let path = lines.find_map(|fields| match fields.as_slice() {
        [_, controllers, path] if has(controllers) => Some(*path),
        _ => None,
    })?;
    // A container may see a part of the hierarchy only, and not be told where in it it is.
    let inner = Path::new(path).strip_prefix(mount.root).unwrap_or(Path::new(""));
    Some(Cgroup { directory: Path::new(mount.point).join(inner), is_unified: false })
}

/// The root of version 2's hierarchy: a group with processes, as this process' own is, cannot have
/// groups with limits below it.
fn unified(mountinfo: &str) -> Option<Cgroup> {
    let mount = mounts(mountinfo).find(|it| it.kind == "cgroup2")?;
    Some(Cgroup { directory: mount.point.into(), is_unified: true })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FIRST: &str = "\
30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 /outer /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
    const SECOND: &str = "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";

    fn container(limits: serde_json::Value) -> Container {
        let container = json!({"name": "c", "resources": {"limits": limits}});
        serde_json::from_value(container).unwrap()
    }

    #[test]
    fn a_machines_groups_are_below_its_own() {
        let own = "4:memory:/outer/job\n3:cpuacct,cpu:/user\n0::/session\n";
        let check = |controller, mounts: &str, own: &str, expected: Option<&str>| {
            let found = hierarchy(controller, mounts, own);
            assert!(found.iter().all(|it| !it.is_unified));
            let found = found.map(|it| it.directory);
            assert_eq!(found, expected.map(PathBuf::from), "{controller} {own}");
        };
        check("cpu", FIRST, own, Some("/sys/fs/cgroup/cpu,cpuacct/user"));
        check("memory", FIRST, own, Some("/sys/fs/cgroup/memory/job"));
        check("memory", FIRST, "4:memory:/hidden\n", Some("/sys/fs/cgroup/memory"));
        check("memory", FIRST, "0::/\n", None);
        check("pids", FIRST, own, None);
        check("cpu", SECOND, "0::/session\n", None);
        let found = unified(SECOND).unwrap();
        assert!(found.is_unified && found.directory == Path::new("/sys/fs/cgroup"), "{found:?}");
    }

    #[test]
    fn limits_are_those_of_the_manifest() {
        let check = |written, cpu_milli, memory_bytes| {
            let expected = Limits { cpu_milli, memory_bytes };
            assert_eq!(Limits::of(&container(written)), expected);
        };
        check(json!({"cpu": "1500m", "memory": "64Mi"}), Some(1500), Some(64 << 20));
        check(json!({"cpu": "0.1"}), Some(100), None);
        check(json!({"cpu": "0", "memory": "0"}), None, None);
        check(json!({}), None, None);
    }

    #[test]
    fn a_pod_has_the_groups_that_its_containers_need() {
        let group = |name: &str| Some(Cgroup { directory: name.into(), is_unified: false });
        let machine = Cgroups { cpu: group("/c/m"), memory: None };
        let both = Limits { cpu_milli: Some(100), memory_bytes: Some(1) };
        let of = |machine: &Cgroups, limits: &[Limits]| machine.of_pod("u", limits.iter());
        let expected = Cgroups { cpu: group("/c/m/u"), memory: None };
        assert_eq!(of(&machine, &[Limits::default(), both.clone()]), expected);
        assert_eq!(of(&machine, &[Limits::default()]), Cgroups::default());
        assert_eq!(of(&Cgroups::default(), &[both]), Cgroups::default());
    }

    #[test]
    fn counters_are_read_by_their_whole_name() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!((counter(text, "oom_kill"), counter(text, "oom")), (3, 0));
        assert_eq!(counter("", "oom_kill"), 0);
    }

    /// Without the kernel: which files of each version are written, and what.
    #[test]
    fn limits_are_written_as_each_version_wants_them() {
        let root = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(root.path().join(name)).unwrap_or_default();
        set_cpu(root.path(), false, 250).unwrap();
        assert_eq!(read("cpu.cfs_period_us"), "100000");
        assert_eq!(read("cpu.cfs_quota_us"), "25000");
        set_cpu(root.path(), true, 1).unwrap();
        assert_eq!(read("cpu.max"), "1000 100000", "the kernel grants no less");
        set_memory(root.path(), false, 4096).unwrap();
        assert_eq!(read("memory.limit_in_bytes"), "4096");
        assert_eq!(read("memory.memsw.limit_in_bytes"), "", "a kernel that does not count swap");
        fs::write(root.path().join("memory.swap.max"), "").unwrap();
        set_memory(root.path(), true, u64::MAX).unwrap();
        assert_eq!(read("memory.max"), i64::MAX.to_string());
        assert_eq!(read("memory.swap.max"), "0");
    }

    #[test]
    fn groups_are_removed_with_those_below() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("m");
        fs::create_dir_all(directory.join("pod/container")).unwrap();
        let group = Some(Cgroup { directory, is_unified: false });
        let groups = Cgroups { cpu: group.clone(), memory: group };
        assert_eq!(groups.present().len(), 1);
        assert_eq!(groups.remove(), Vec::<PathBuf>::new());
        // Again, as after a machine that has never had any.
        assert_eq!(groups.remove(), Vec::<PathBuf>::new());
    }
}
