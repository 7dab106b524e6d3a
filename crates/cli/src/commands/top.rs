//! `ambit top`: what the pods and nodes of a machine use of its processors and memory.
//!
//! Measured from the processes themselves, for one second.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ambit_machine::{Client, PodInfo, ProcessInfo, Record, processes};
use anyhow::{Context, Result, bail};

use crate::args::{TopArgs, TopKind, TopOrder};
use crate::{progress, table};

/// How long processor time is measured.
const MEASURED: Duration = Duration::from_secs(1);

/// What something uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    cpu_millicores: u64,
    memory_bytes: u64,
}

/// Use by the name of a process, such as `pod NAMESPACE/NAME` or `proxy/NODE`.
type ByName = BTreeMap<String, Usage>;

/// Prints it.
pub(super) async fn top(args: &TopArgs) -> Result<ExitCode> {
    if args.containers && args.of == TopKind::Nodes {
        bail!("--containers is of pods: `ambit top pods --containers`");
    }
    let client = Client::new(super::layout(&args.state));
    let pods = client.pods().await?;
    let record = Record::read(client.layout())?;
    let look = || processes(&record, &pods).context("read the processes of the machine");
    let shown = progress::shown("measuring");
    let (before, start) = (look()?, Instant::now());
    tokio::time::sleep(MEASURED).await;
    let of = if args.containers { of_container } else { of_process };
    let used = used(&before, &look()?, start.elapsed(), of);
    drop(shown);
    let is_asked = |name: &str| args.name.as_deref().is_none_or(|asked| asked == name);
    let (header, mut rows) = match args.of {
        TopKind::Pods => {
            let here = |pod: &&PodInfo| {
                is_asked(&pod.name) && args.namespace.as_ref().is_none_or(|it| pod.namespace == *it)
            };
            let here = pods.iter().filter(here);
            match args.containers {
                true => (
                    &["NAMESPACE", "POD", "NAME", "CPU(cores)", "MEMORY(bytes)"][..],
                    here.flat_map(|pod| of_containers(pod, &used)).collect(),
                ),
                false => (
                    &["NAMESPACE", "NAME", "CPU(cores)", "MEMORY(bytes)"][..],
                    here.map(|pod| of_pod(pod, &used)).collect(),
                ),
            }
        }
        TopKind::Nodes => {
            let nodes = record.nodes.iter().map(String::as_str).chain(["control"]);
            let rows = nodes.filter(|it| is_asked(it)).map(|it| of_node(it, &pods, &used));
            let header = &["NAME", "CPU(cores)", "MEMORY(bytes)", "MESH CPU", "MESH MEMORY"][..];
            (header, rows.collect::<Vec<_>>())
        }
    };
    if let (true, Some(name)) = (rows.is_empty(), &args.name) {
        bail!("there is no such pod or node: {name}");
    }
    match args.sort_by {
        None => {}
        Some(TopOrder::Cpu) => rows.sort_by_key(|row| std::cmp::Reverse(row.all.cpu_millicores)),
        Some(TopOrder::Memory) => rows.sort_by_key(|row| std::cmp::Reverse(row.all.memory_bytes)),
    }
    let rows: Vec<Vec<String>> = rows.into_iter().map(Row::cells).collect();
    super::print_text(&table::format(header, &rows))?;
    Ok(ExitCode::SUCCESS)
}

/// A line of the list.
struct Row {
    names: Vec<String>,
    all: Usage,
    /// What of it is the mesh's, where that is shown.
    mesh: Option<Usage>,
}

impl Row {
    fn cells(self) -> Vec<String> {
        let cells = |usage: Usage| {
            let mebibytes = usage.memory_bytes.div_ceil(1 << 20);
            [format!("{}m", usage.cpu_millicores), format!("{mebibytes}Mi")]
        };
        let usages = cells(self.all).into_iter().chain(self.mesh.into_iter().flat_map(cells));
        self.names.into_iter().chain(usages).collect()
    }
}

fn of_pod(pod: &PodInfo, used: &ByName) -> Row {
    let name = format!("pod {}/{}", pod.namespace, pod.name);
    let all = used.get(&name).copied().unwrap_or_default();
    Row { names: vec![pod.namespace.clone(), pod.name.clone()], all, mesh: None }
}

/// The containers of a pod that run.
fn of_containers<'p>(pod: &'p PodInfo, used: &'p ByName) -> impl Iterator<Item = Row> + 'p {
    pod.containers.iter().filter(|it| it.running).map(|container| {
        let name = format!("pod {}/{} {}", pod.namespace, pod.name, container.name);
        let all = used.get(&name).copied().unwrap_or_default();
        let names = vec![pod.namespace.clone(), pod.name.clone(), container.name.clone()];
        Row { names, all, mesh: None }
    })
}

/// By its own name.
fn of_process(process: &ProcessInfo) -> Option<String> {
    Some(process.name.clone())
}

/// By pod and container; one of no container is left out.
fn of_container(process: &ProcessInfo) -> Option<String> {
    Some(format!("{} {}", process.name, process.container.as_ref()?))
}

/// A node with its pods and the parts of the mesh on it; or control, which is on none.
fn of_node(node: &str, pods: &[PodInfo], used: &ByName) -> Row {
    let sum = |names: &mut dyn Iterator<Item = String>| {
        names.filter_map(|name| used.get(&name)).fold(Usage::default(), Usage::add)
    };
    if node == "control" {
        let all = sum(&mut std::iter::once(node.to_owned()));
        return Row { names: vec![node.to_owned()], all, mesh: Some(all) };
    }
    let parts = ["node", "proxy", "worker"].map(|role| format!("{role}/{node}"));
    let mesh = sum(&mut parts.into_iter());
    let here = pods.iter().filter(|pod| pod.node == node);
    let here = here.map(|pod| format!("pod {}/{}", pod.namespace, pod.name));
    let all = sum(&mut here.chain([format!("lab-node/{node}")]));
    Row { names: vec![node.to_owned()], all: all.add(&mesh), mesh: Some(mesh) }
}

impl Usage {
    fn add(self, other: &Self) -> Self {
        Self {
            cpu_millicores: self.cpu_millicores + other.cpu_millicores,
            memory_bytes: self.memory_bytes + other.memory_bytes,
        }
    }
}

/// What was used between two looks. A process that was not there at the first has used all of its
/// time since. `of` says to what a process counts.
fn used(
    before: &[ProcessInfo],
    after: &[ProcessInfo],
    elapsed: Duration,
    of: fn(&ProcessInfo) -> Option<String>,
) -> ByName {
    let before: BTreeMap<i32, u64> = before.iter().map(|it| (it.host_pid, it.cpu_ms)).collect();
    let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let mut used = ByName::new();
    for process in after {
        let earlier = before.get(&process.host_pid).copied().unwrap_or(0);
        let cpu_ms = process.cpu_ms.saturating_sub(earlier);
        let more = Usage {
            cpu_millicores: cpu_ms * 1000 / elapsed_ms,
            memory_bytes: process.resident_bytes,
        };
        let Some(name) = of(process) else { continue };
        let sum = used.entry(name).or_default();
        *sum = sum.add(&more);
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(host_pid: i32, name: &str, cpu_ms: u64, mebibytes: u64) -> ProcessInfo {
        ProcessInfo {
            host_pid,
            pid: host_pid,
            host_parent_pid: 1,
            name: name.to_owned(),
            container: None,
            command: String::new(),
            resident_bytes: mebibytes << 20,
            cpu_ms,
        }
    }

    fn pod() -> PodInfo {
        let pod = serde_json::json!({"namespace": "app", "name": "web", "uid": "u",
            "node": "node-1", "serviceAccount": "", "owner": "", "phase": "Running",
            "ready": true, "terminating": false, "captured": true, "hostNetwork": false,
            "podIps": [], "restarts": 0, "reason": "", "unschedulable": false,
            "crashLooping": false, "created": "", "containers": [], "pid": 1});
        serde_json::from_value(pod).expect("a pod")
    }

    #[test]
    fn what_processes_use_is_summed_by_pod_and_node() {
        let before = [process(1, "pod app/web", 1000, 1), process(2, "proxy/node-1", 50, 9)];
        let after = [
            process(1, "pod app/web", 1500, 2),
            process(3, "pod app/web", 100, 3),
            process(2, "proxy/node-1", 50, 9),
            process(4, "worker/node-1", 250, 10),
            process(5, "control", 0, 20),
        ];
        let by_name = used(&before, &after, Duration::from_secs(2), of_process);
        let pod = pod();
        assert_eq!(of_pod(&pod, &by_name).cells(), ["app", "web", "300m", "5Mi"]);
        let pods = [pod];
        let node = of_node("node-1", &pods, &by_name).cells();
        assert_eq!(node, ["node-1", "425m", "24Mi", "125m", "19Mi"]);
        assert_eq!(
            of_node("node-2", &pods, &by_name).cells(),
            ["node-2", "0m", "0Mi", "0m", "0Mi"]
        );
        let control = of_node("control", &pods, &by_name).cells();
        assert_eq!(control, ["control", "0m", "20Mi", "0m", "20Mi"]);
    }

    #[test]
    fn what_processes_use_is_summed_by_container() {
        let of = |host_pid, container: Option<&str>, cpu_ms, mebibytes| ProcessInfo {
            container: container.map(str::to_owned),
            ..process(host_pid, "pod app/web", cpu_ms, mebibytes)
        };
        let after = [
            of(1, None, 10, 1),
            of(2, Some("main"), 300, 2),
            of(3, Some("main"), 200, 3),
            of(4, Some("log"), 100, 4),
        ];
        let used = used(&[], &after, Duration::from_secs(1), of_container);
        let container = |name: &str| serde_json::json!({"name": name, "running": name != "init"});
        let mut pod = pod();
        let all = ["init", "main", "log"].map(container);
        pod.containers = serde_json::from_value(serde_json::json!(all)).expect("containers");
        let rows: Vec<Vec<String>> = of_containers(&pod, &used).map(Row::cells).collect();
        let expected =
            [["app", "web", "main", "500m", "5Mi"], ["app", "web", "log", "100m", "4Mi"]];
        assert_eq!(rows, expected);
    }
}
