//! Ends what a container left behind when its program ended.
//!
//! A process may leave its session, and then no signal to the session reaches it. As long as it
//! lives, the container's file tree and what was written there stay in memory. So every process is
//! ended that is in the container's mount namespace, or whose root is the container's.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ambit_net::sys::process::{self, Pid, Signal};
use tokio::time::sleep;

use super::container::OwnTree;

/// How often they are looked for until none is left: one may start others meanwhile.
const ROUNDS_MAX: usize = 200;
/// How long they get to die before they are looked for again.
const INTERVAL: Duration = Duration::from_millis(10);
/// The pod's init, which is in no container.
const INIT: Pid = 1;

/// By what the processes of a container are known.
struct Marks {
    /// Device and number of the mount namespace.
    namespace: (u64, u64),
    root_device: Option<u64>,
}

/// Ends all processes of a container, of those that `processes` lists, the pod's `/proc`.
pub(crate) async fn end(processes: &File, tree: &OwnTree) -> io::Result<()> {
    let all = PathBuf::from(format!("/proc/self/fd/{}", processes.as_raw_fd()));
    let namespace = fs::metadata(format!("/proc/self/fd/{}", tree.namespace.as_raw_fd()))?;
    let marks =
        Marks { namespace: (namespace.dev(), namespace.ino()), root_device: tree.root_device };
    for _ in 0..ROUNDS_MAX {
        let found = of_container(&all, &marks)?;
        if found.is_empty() {
            return Ok(());
        }
        for handle in found {
            // One that has ended meanwhile needs none.
            let _gone = process::send_signal(&handle, Signal::Kill);
        }
        sleep(INTERVAL).await;
    }
    Err(io::Error::other("it starts processes faster than they can be ended"))
}

/// The processes of a container, by handles that cannot come to mean others.
fn of_container(all: &Path, marks: &Marks) -> io::Result<Vec<OwnedFd>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(all)? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<Pid>().ok()) else { continue };
        if pid == INIT {
            continue;
        }
        // Opened before it is looked at. One that cannot be opened has ended.
        if let Ok(handle) = process::pidfd_open(pid)
            && marks.are_on(&all.join(&name))
        {
            found.push(handle);
        }
    }
    Ok(found)
}

impl Marks {
    /// Whether any thread of a process has them: the first may have ended.
    fn are_on(&self, process: &Path) -> bool {
        let threads = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
        threads.into_iter().any(|thread| {
            let has = |part: &str, is_so: &dyn Fn(&fs::Metadata) -> bool| {
                fs::metadata(thread.path().join(part)).is_ok_and(|found| is_so(&found))
            };
            has("ns/mnt", &|found| (found.dev(), found.ino()) == self.namespace)
                || has("root", &|found| Some(found.dev()) == self.root_device)
        })
    }
}
