//! What Ambit needs: Kubernetes, kernels, the CNI plugin, permissions.

use serde_json::Value;

use super::{Report, listed, object};
use crate::Facts;
use crate::access::minor;
use crate::facts::{List, Stage};
use crate::json::{items, label, name, text};

/// The first minor version whose tokens name the pod's node.
const KUBERNETES_MINOR_MIN: u32 = 30;
/// The oldest kernel: `close_range` came with 5.9, and 5.10 is the first long-lived one after it.
const KERNEL_MIN: (u32, u32) = (5, 10);
/// The first kernel that hands connections of a closing listener to the next one
/// (`net.ipv4.tcp_migrate_req`).
const KERNEL_MIGRATING: (u32, u32) = (5, 14);
/// What images are built for.
const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];
/// DaemonSets by which CNI plugins are recognised, and what each needs.
const PLUGINS: [(&str, &str, &str); 11] = [
    ("cilium", "Cilium", ""),
    ("anetd", "GKE Dataplane V2", "install with the profile gke"),
    ("calico-node", "Calico", ""),
    ("canal", "Canal", ""),
    ("kube-flannel-ds", "Flannel", ""),
    ("kindnet", "kindnet", ""),
    ("aws-node", "AWS VPC CNI", "install with the profile eks"),
    ("azure-cns", "Azure CNI", "install with the profile aks"),
    ("ovnkube-node", "OVN-Kubernetes", "on OpenShift install with the profile openshift"),
    ("weave-net", "Weave Net", ""),
    ("antrea-agent", "Antrea", ""),
];
/// Pod security levels that forbid what a node agent needs.
const UNPRIVILEGED: [&str; 2] = ["baseline", "restricted"];

pub(super) fn check(facts: &Facts, report: &mut Report) {
    version(facts, report);
    nodes(facts, report);
    cilium(facts, report);
    aws(facts, report);
    pod_security(facts, report);
    if facts.stage == Stage::Before {
        plugin(facts, report);
        access(facts, report);
    }
}

fn version(facts: &Facts, report: &mut Report) {
    let Some(version) = &facts.version else { return };
    if minor(version).is_some_and(|minor| minor < KUBERNETES_MINOR_MIN) {
        report.error("kubernetes-version", "the API server").says(
            format!(
                "Kubernetes {} does not write the node into a pod's token; control could not tell \
                 which node a proxy runs on and would refuse it every certificate",
                text(version, "/gitVersion")
            ),
            format!("upgrade to 1.{KUBERNETES_MINOR_MIN} or newer"),
        );
    }
}

fn nodes(facts: &Facts, report: &mut Report) {
    let (mut old, mut cutting, mut foreign) = (Vec::new(), Vec::new(), Vec::new());
    let (mut windows, mut runtimes) = (Vec::new(), Vec::new());
    for node in facts.known(List::Nodes) {
        let info = &node["status"]["nodeInfo"];
        let kernel = text(info, "/kernelVersion");
        if text(info, "/operatingSystem") == "windows" {
            windows.push(name(node).to_owned());
            continue;
        }
        match release(kernel) {
            Some(release) if release < KERNEL_MIN => old.push(format!("{} ({kernel})", name(node))),
            Some(release) if release < KERNEL_MIGRATING => {
                cutting.push(format!("{} ({kernel})", name(node)));
            }
            _ => {}
        }
        let architecture = text(info, "/architecture");
        if !architecture.is_empty() && !ARCHITECTURES.contains(&architecture) {
            foreign.push(format!("{} ({architecture})", name(node)));
        }
        let runtime = text(info, "/containerRuntimeVersion");
        let is_usual = ["containerd://", "cri-o://"].iter().any(|it| runtime.starts_with(it));
        if !runtime.is_empty() && !is_usual {
            runtimes.push(format!("{} ({runtime})", name(node)));
        }
    }
    let mut tell = |names: Vec<String>, severity, rule, what: &str, remedy: &str| {
        if !names.is_empty() {
            let object = format!("Node {}", listed(&names));
            report.add(severity, rule, object).says(what, remedy);
        }
    };
    use super::Severity::{Error, Info, Warning};
    let what = "the kernel lacks system calls that the node's parts need (close_range, pidfds)";
    tell(old, Error, "kernel-too-old", what, "run Linux 5.14 or newer there");
    let what = "the kernel has no net.ipv4.tcp_migrate_req (5.14): an upgrade of the node proxy \
                can reset connections that were just being opened";
    tell(cutting, Warning, "kernel-cuts-upgrades", what, "run Linux 5.14 or newer there");
    let what = "no image is built for this architecture: its pods could not join the mesh";
    tell(foreign, Error, "architecture", what, "keep labelled workloads off these nodes");
    let what = "the container runtime is neither containerd nor CRI-O; it was never tried";
    tell(runtimes, Warning, "container-runtime", what, "try it on one node first");
    tell(windows, Info, "windows-node", "left alone: the mesh captures on Linux only", "");
}

/// A kernel's release, as far as it counts.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn plugin(facts: &Facts, report: &mut Report) {
    let Some(daemon_sets) = facts.list(List::DaemonSets) else { return };
    let runs = |name: &str| daemon_sets.iter().find(|it| crate::json::name(it) == name);
    let found = PLUGINS.iter().find_map(|(set, plugin, remedy)| Some((runs(set)?, plugin, remedy)));
    match found {
        Some((set, plugin, remedy)) => {
            let what = format!("the network is {plugin}");
            report.info("cni-plugin", object("DaemonSet", set)).says(what, *remedy);
        }
        None => report.info("cni-plugin", "the cluster's network").says(
            "no CNI plugin was recognised by a DaemonSet; Ambit chains itself after the first \
             configuration in the node's /etc/cni/net.d",
            "if it lies elsewhere, set its directory in the chart",
        ),
    }
}

fn cilium(facts: &Facts, report: &mut Report) {
    let Some(config) = &facts.cilium else { return };
    let setting = |name: &str| config["data"][name].as_str();
    let is = |name: &str, value: &str| setting(name) == Some(value);
    let place = object("ConfigMap", config);
    if !is("cni-exclusive", "false") {
        report.error("cilium-exclusive", place.clone()).says(
            "Cilium removes every other CNI configuration from the nodes (cni-exclusive), so new \
             pods would start without the mesh",
            "set Cilium's Helm value cni.exclusive=false",
        );
    }
    // In place of kube-proxy Cilium translates service addresses inside of connect().
    let translates = is("kube-proxy-replacement", "true")
        || is("kube-proxy-replacement", "strict")
        || is("bpf-lb-sock", "true");
    if translates && !is("bpf-lb-sock-hostns-only", "true") {
        report.error("cilium-socket-lb", place.clone()).says(
            "Cilium translates service addresses in pods before the mesh sees them \
             (bpf-lb-sock-hostns-only is not true), so service policy and balancing are passed by",
            "set Cilium's Helm value socketLB.hostNamespaceOnly=true",
        );
    }
    if is("enable-bpf-masquerade", "true") {
        report.warning("cilium-masquerade", place).says(
            "Cilium's own masquerading (enable-bpf-masquerade) loses the address that kubelet \
             probes come from, so probes of captured pods may fail",
            "set Cilium's Helm value bpf.masquerade=false",
        );
    }
}

fn aws(facts: &Facts, report: &mut Report) {
    let sets = facts.known(List::DaemonSets).iter();
    let Some(agent) = sets.into_iter().find(|it| name(it) == "aws-node") else { return };
    let variables = || {
        items(agent, "/spec/template/spec/containers")
            .flat_map(|container| items(container, "/env"))
    };
    let is = |name: &str, value: &str| {
        variables().any(|it| text(it, "/name") == name && text(it, "/value") == value)
    };
    let strict = !is("POD_SECURITY_GROUP_ENFORCING_MODE", "standard");
    if is("ENABLE_POD_ENI", "true") && strict {
        report.warning("aws-pod-eni", object("DaemonSet", agent)).says(
            "pods with security groups of their own drop kubelet probes, which come from a \
             link-local address in the mesh",
            "set POD_SECURITY_GROUP_ENFORCING_MODE=standard",
        );
    }
}

fn pod_security(facts: &Facts, report: &mut Report) {
    let namespaces = facts.known(List::Namespaces).iter();
    let mesh = namespaces.into_iter().find(|it| name(it) == facts.mesh_namespace);
    let enforced = mesh.and_then(|it| label(it, "pod-security.kubernetes.io/enforce"));
    if let Some(level) = enforced.filter(|level| UNPRIVILEGED.contains(level)) {
        report.error("pod-security", format!("Namespace {}", facts.mesh_namespace)).says(
            format!(
                "pod security level {level} is enforced, which forbids the node agent and proxy \
                 their host paths, host network and capabilities"
            ),
            format!(
                "kubectl label namespace {} pod-security.kubernetes.io/enforce=privileged \
                 --overwrite",
                facts.mesh_namespace
            ),
        );
    }
}

fn access(facts: &Facts, report: &mut Report) {
    let denied = facts.access.iter().filter(|access| !access.allowed);
    let names: Vec<String> = denied
        .map(|it| match it.group {
            "" => it.resource.to_owned(),
            group => format!("{}.{group}", it.resource),
        })
        .collect();
    if !names.is_empty() {
        // All of them are named: the list is short, and one looks for each.
        report.error("permissions", "you").says(
            format!("you may not create {}, which the chart holds", names.join(", ")),
            "install as somebody who may, such as a member of cluster-admin",
        );
    }
}

/// Nodes that can take pods of the mesh.
pub(super) fn linux_nodes(facts: &Facts) -> impl Iterator<Item = &Value> {
    let nodes = facts.known(List::Nodes).iter();
    nodes.filter(|node| text(node, "/status/nodeInfo/operatingSystem") != "windows")
}
