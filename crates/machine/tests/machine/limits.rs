//! Limits of processor time and memory, by control groups.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::health::{events, running, status};
use crate::lab::Lab;

/// Wants ever more memory.
const GREEDY: &str = "tail /dev/zero";
/// Mounts the process' own groups, as anyone can in namespaces of his own, and takes limits away.
const ESCAPE: &str = "unshare -UrmC sh -c '
    mount -t cgroup -o memory x /mnt && echo -1 > /mnt/memory.limit_in_bytes && umount /mnt &&
    mount -t cgroup -o cpu x /mnt && echo -1 > /mnt/cpu.cfs_quota_us && echo wrote'";
const IDLE: &str = "exec sleep infinity";

fn value(group: &Path, file: &str) -> String {
    fs::read_to_string(group.join(file)).unwrap().trim().to_owned()
}

/// Where a process of the container is, by the kernel's word.
fn path_inside(lab: &Lab, pod: &str, controller: &str) -> String {
    let (groups, _) = lab.sh(pod, "cat /proc/self/cgroup");
    let mut lines = groups.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>());
    let of_controller = |fields: &Vec<&str>| fields[1].split(',').any(|it| it == controller);
    lines.find(of_controller).map(|fields| fields[2].to_owned()).unwrap_or_default()
}

pub(crate) async fn containers_keep_to_their_limits() {
    let lab = Lab::up("limits", 1).await;
    let limits = json!({"resources": {"limits": {"cpu": "250m", "memory": "32Mi"}}});
    let cgroups = lab.record().cgroups;
    let (Some(cpu), Some(memory)) = (cgroups.cpu, cgroups.memory) else {
        // A host that lets nobody make groups: then who applies limits is warned.
        let applied = lab.client.apply(vec![running("bound", IDLE, &limits)], false).await.unwrap();
        let warned = |limit: &str| {
            let field = format!("spec.containers[0].resources.limits.{limit} has no effect");
            applied.warnings.iter().any(|warning| warning.starts_with(&field))
        };
        assert!(warned("cpu") || warned("memory"), "{:?}", applied.warnings);
        return lab.down().await;
    };
    let applied = lab.client.apply(vec![running("bound", IDLE, &limits)], false).await.unwrap();
    assert_eq!(applied.warnings, Vec::<String>::new());
    let memory_alone = json!({"resources": {"limits": {"memory": "32Mi"}}});
    // A name that a file of the kernel's has.
    let mut tasks = running("tasks", IDLE, &memory_alone);
    tasks["spec"]["containers"][0]["name"] = json!("tasks");
    let free = running("free", IDLE, &json!({"resources": {"requests": {"cpu": "1"}}}));
    lab.apply_ready(vec![
        free,
        tasks,
        running("greedy", &format!("sleep 1; {GREEDY}"), &memory_alone),
    ])
    .await;
    let pods = lab.client.pods().await.unwrap();
    let uid = |name: &str| pods.iter().find(|pod| pod.name == name).unwrap().uid.clone();
    let of = |group: &Path, name: &str| -> PathBuf { group.join(uid(name)).join("c.c") };
    let (of_cpu, of_memory) = (of(&cpu.directory, "bound"), of(&memory.directory, "bound"));
    if !cpu.is_unified {
        assert_eq!(value(&of_cpu, "cpu.cfs_quota_us"), "25000");
        assert_eq!(value(&of_memory, "memory.limit_in_bytes"), (32 << 20).to_string());
        for (controller, group) in [("cpu", &of_cpu), ("memory", &of_memory)] {
            // The program, and a command beside it.
            let end = format!("/{}/c.c/in", uid("bound"));
            let inside = path_inside(&lab, "bound", controller);
            assert!(inside.ends_with(&end), "{controller}: {inside}");
            assert_eq!(
                value(&group.join("in"), "cgroup.procs").lines().count(),
                1,
                "the program alone"
            );
        }
    }
    assert!(!cpu.directory.join(uid("free")).exists(), "it has no limits");
    // Only the greedy one is ended, again and again.
    lab.until("it is started again", async || status(&lab, "greedy").await.restarts > 0).await;
    assert!(status(&lab, "greedy").await.oom_killed);
    let said = events(&lab, "greedy").await;
    let expected = "OOMKilled: Container c exited with 137: it wanted more memory than its limit\n";
    assert!(said.contains(expected), "{said}");
    let (_, exit) = lab.sh("bound", &format!("{GREEDY}; exit $?"));
    assert_eq!(exit, 137, "a command counts with its container");
    assert_eq!(status(&lab, "bound").await.restarts, 0);
    if !cpu.is_unified {
        // Its own group is all that a process can reach, and not the limits above it.
        assert_eq!(lab.sh("bound", ESCAPE), ("wrote\n".to_owned(), 0));
        assert_eq!(value(&of_cpu, "cpu.cfs_quota_us"), "25000");
        assert_eq!(value(&of_memory, "memory.limit_in_bytes"), (32 << 20).to_string());
        assert_eq!(lab.sh("bound", &format!("{GREEDY}; exit $?")).1, 137);
    }
    // Groups end with their pod, and with the machine.
    lab.delete("pods", &["bound"]).await;
    lab.until_gone(&["bound"]).await;
    assert!(!cpu.directory.join(uid("bound")).exists());
    lab.down().await;
    assert!(!cpu.directory.exists() && !memory.directory.exists());
}
