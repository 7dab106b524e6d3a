//! What pods have used of processors so far, read where process 1 is: in the machine's own `/proc`.
//!
//! The time of a process that has ended is with the one that waited for it. It is lost if nobody
//! does (SIGCHLD is ignored), and all of a pod's is if its init is started again: a sum can fall.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use crate::processes::TICKS_PER_SECOND;

/// What is known of all pods at one time.
#[derive(Debug)]
pub(crate) struct Sample {
    /// How many processors the computer has.
    pub(crate) processors: usize,
    /// What each pod, by its uid, has used so far, in milliseconds.
    pub(crate) used_ms: BTreeMap<String, u64>,
}

/// A process: its parent, and the time that it and those that it has waited for have used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Used {
    parent: i32,
    ms: u64,
}

/// What the trees of processes below these have used; each has the uid of its pod.
pub(crate) fn sample(roots: &BTreeMap<i32, String>) -> io::Result<Sample> {
    let processors = processors(&fs::read_to_string("/proc/stat")?);
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // One that has ended meanwhile is with its parent.
        let stat = fs::read_to_string(entry.path().join("stat"));
        if let Some(used) = stat.ok().as_deref().and_then(read) {
            all.insert(pid, used);
        }
    }
    Ok(Sample { processors, used_ms: sums(&all, roots) })
}

/// Each has a line of its own, and they have one together.
fn processors(stat: &str) -> usize {
    let own = stat.lines().filter_map(|line| line.strip_prefix("cpu"));
    own.filter(|rest| rest.starts_with(|it: char| it.is_ascii_digit())).count()
}

fn read(stat: &str) -> Option<Used> {
    // The program's name, in parentheses, may hold blanks and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let mut times = fields.get(11..15)?.iter().map(|it| it.parse::<u64>().ok());
    let ticks = times.try_fold(0_u64, |sum, ticks| Some(sum.saturating_add(ticks?)))?;
    let parent = fields.get(1)?.parse().ok()?;
    Some(Used { parent, ms: ticks.saturating_mul(1000 / TICKS_PER_SECOND) })
}

fn sums(all: &BTreeMap<i32, Used>, roots: &BTreeMap<i32, String>) -> BTreeMap<String, u64> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for (pid, used) in all {
        let up = |pid: &i32| all.get(pid).map(|it| it.parent);
        // No process is its own ancestor, but they were not read at one moment.
        let mut above = std::iter::successors(Some(*pid), up).take(all.len());
        if let Some(root) = above.find_map(|pid| roots.get(&pid)) {
            let sum = sums.entry(root.clone()).or_default();
            *sum = sum.saturating_add(used.ms);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_summed() {
        let stat = "7 (a (b) c) S 3 7 7 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 9 9 9";
        assert_eq!(read(stat), Some(Used { parent: 3, ms: 1000 }));
        assert_eq!(read("7 (a) S"), None);
        let of = |parent, ms| Used { parent, ms };
        let all = BTreeMap::from([(1, of(0, 5)), (3, of(1, 10)), (7, of(3, 100)), (8, of(1, 7))]);
        let roots = BTreeMap::from([(3, "u".to_owned()), (9, "v".to_owned())]);
        assert_eq!(sums(&all, &roots), BTreeMap::from([("u".to_owned(), 110)]));
    }

    #[test]
    fn the_kernel_is_asked() {
        let own = i32::try_from(std::process::id()).expect("process ids are small");
        let found = sample(&BTreeMap::from([(own, "u".to_owned())])).expect("/proc is there");
        assert!(found.processors > 0 && found.used_ms.contains_key("u"), "{found:?}");
    }

    #[test]
    fn processors_are_counted() {
        assert_eq!(processors("cpu  1 2 3\ncpu0 1 2 3\ncpu11 1 2 3\nintr 1\nctxt 2\n"), 2);
    }
}
