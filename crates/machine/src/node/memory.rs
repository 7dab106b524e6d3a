//! How much memory there is: the host's, or less where the control group has a limit.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// What is taken for it where the kernel does not say.
const UNKNOWN_BYTES: u64 = 2 << 30;
/// Where control groups are mounted, and the file with the limit of one: version 2, version 1.
const UNIFIED: (&str, &str) = ("/sys/fs/cgroup", "memory.max");
const MEMORY: (&str, &str) = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes");

/// All memory that this process may have.
pub(crate) fn total_bytes() -> u64 {
    static TOTAL: OnceLock<u64> = OnceLock::new();
    *TOTAL.get_or_init(|| {
        let read = |path: &Path| fs::read_to_string(path).ok();
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let host = host_bytes(&text).unwrap_or(UNKNOWN_BYTES);
        group_bytes(&groups, read).map_or(host, |limit| limit.min(host))
    })
}

fn host_bytes(text: &str) -> Option<u64> {
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The least limit of the control groups that `/proc/self/cgroup` names and those around them. In a
/// container the mount may begin at its own group, so groups that are not there are passed over.
fn group_bytes(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let (_number, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        let is_memory = controllers.split(',').any(|controller| controller == "memory");
        let (root, file) = match controllers {
            "" => UNIFIED,
            _ if is_memory => MEMORY,
            _ => return None,
        };
        let around = Path::new(group.trim_start_matches('/')).ancestors();
        let limit = |group| read(&Path::new(root).join(group).join(file))?.trim().parse().ok();
        around.filter_map(limit).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_how_much_there_is() {
        let check = |text: &str, expected| assert_eq!(host_bytes(text), expected, "{text}");
        check("MemTotal:       24683520 kB\nMemFree: 1 kB\n", Some(24_683_520 << 10));
        check("MemFree: 1 kB\n", None);
        check("MemTotal: x kB\n", None);
        let found = host_bytes(&fs::read_to_string("/proc/meminfo").unwrap()).unwrap();
        assert!((1..=found).contains(&total_bytes()));
    }

    #[test]
    fn the_least_limit_around_a_control_group_counts() {
        let check = |groups: &str, files: &[(&str, &str)], expected| {
            let read = |path: &Path| {
                let found = files.iter().find(|(name, _)| Path::new(name) == path);
                found.map(|(_, text)| (*text).to_owned())
            };
            assert_eq!(group_bytes(groups, read), expected, "{groups} {files:?}");
        };
        let [inner, outer] = ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max"];
        check("0::/a/b\n", &[(inner, "max\n"), (outer, "4096\n")], Some(4096));
        check("0::/a/b\n", &[(inner, "1024\n"), (outer, "4096\n")], Some(1024));
        check("0::/a/b\n", &[(inner, "max\n")], None);
        check("0::/\n", &[("/sys/fs/cgroup/memory.max", "512\n")], Some(512));
        let first = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        check("4:cpu,memory:/docker/x\n0::/\n", &[(first, "2048\n")], Some(2048));
        check("3:cpu:/a\n", &[(first, "2048\n")], None);
        check("", &[], None);
    }
}
