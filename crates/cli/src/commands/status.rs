//! `ambit status`: is everything healthy?

use std::fmt::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use ambit_machine::{CarriedWorkload, Client, LinkInfo, MachineStatus, NodeInfo, RoleInfo};
use ambit_wire::admin::{
    ApiVersion, CertificateState, FailingPod, HeldCertificate, List, NotAccepted, NotCaptured,
    Severity, Shares, Status, node_proxy,
};
use anyhow::Result;
use serde::Serialize;

use super::findings;
use super::mesh::{self, Answers, Mesh};
use crate::args::{Report, StatusArgs};
use crate::table;

/// What `ambit status -o json` prints.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Whole {
    /// The version of this form.
    api_version: ApiVersion,
    /// Whether all is well, and so the exit status.
    well: bool,
    /// The machine, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    machine: Option<MachineStatus>,
    /// The Kubernetes cluster, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterName>,
    /// What control says.
    mesh: ControlSays,
    /// Pods that do not do their work: all of a machine's, those of the mesh of a cluster's.
    pods_not_ready: Vec<FailingPod>,
    /// Of every node.
    shares: Vec<NodeShares>,
    /// Revoked ones, of all nodes.
    certificates_revoked: Vec<FailingCertificate>,
    /// Others that cannot be used or are not renewed, of all nodes.
    certificates_failing: Vec<FailingCertificate>,
}

/// Which cluster was asked.
#[derive(Debug, Serialize)]
struct ClusterName {
    /// The context of the kubeconfig.
    context: String,
}

/// What control says.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum ControlSays {
    /// How the mesh is.
    Status(Box<Status>),
    /// Nothing, or nothing that is understood.
    Silent {
        /// Why.
        error: String,
    },
    /// There is no mesh.
    NoMesh {},
    /// It is on another computer, whose node this one is.
    #[serde(rename_all = "camelCase")]
    AtHome {
        /// Where that listens.
        joined: SocketAddr,
    },
    /// It is in the cluster a workload of which this computer carries.
    #[serde(rename_all = "camelCase")]
    InCluster {
        /// Which workload.
        workload: CarriedWorkload,
    },
}

/// Prints the state of the machine and of the mesh; fails when something is not well.
pub(super) async fn status(args: StatusArgs) -> Result<ExitCode> {
    let mesh = mesh::find(&args.state, &args.kube).await?;
    let (machine, pods) = match &mesh {
        Mesh::Machine(layout) => {
            let client = Client::new(layout.clone());
            (Some(client.status().await?), client.pods().await?)
        }
        Mesh::Cluster(_) => (None, Vec::new()),
    };
    let has_mesh = machine.as_ref().is_none_or(|machine| machine.mesh);
    let elsewhere = machine.as_ref().and_then(elsewhere);
    let (says, shares, (revoked, failing)) = if has_mesh {
        ask(&mesh, elsewhere).await
    } else {
        (ControlSays::NoMesh {}, Vec::new(), (Vec::new(), Vec::new()))
    };
    let cluster = match &mesh {
        Mesh::Machine(_) => None,
        Mesh::Cluster(cluster) => Some(ClusterName { context: cluster.context().to_owned() }),
    };
    let pods_not_ready = match (&mesh, &says) {
        (Mesh::Machine(_), _) => findings::of_machine(&pods),
        (Mesh::Cluster(_), ControlSays::Status(status)) => status.pods.failing.clone(),
        (Mesh::Cluster(_), _) => Vec::new(),
    };
    let mut whole = Whole {
        api_version: ApiVersion,
        well: false,
        machine,
        cluster,
        mesh: says,
        pods_not_ready,
        shares,
        certificates_revoked: revoked,
        certificates_failing: failing,
    };
    whole.well = is_well(&whole);
    match args.output {
        Report::Json => super::print_json(&whole)?,
        Report::Text => super::print_text(&text(&whole))?,
    }
    Ok(if whole.well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Certificates that are revoked, and others that cannot be used or are not renewed.
type Certificates = (Vec<FailingCertificate>, Vec<FailingCertificate>);

/// Where control is, if not on this machine.
fn elsewhere(machine: &MachineStatus) -> Option<ControlSays> {
    let at_home = machine.joined.map(|joined| ControlSays::AtHome { joined });
    let workload = machine.workload.clone();
    at_home.or_else(|| workload.map(|workload| ControlSays::InCluster { workload }))
}

/// Asks control and all proxies at once, so that silent ones cost one timeout in all.
async fn ask(
    mesh: &Mesh,
    elsewhere: Option<ControlSays>,
) -> (ControlSays, Vec<NodeShares>, Certificates) {
    let control = async {
        match elsewhere {
            Some(elsewhere) => elsewhere,
            None => match mesh.status().await {
                Ok(status) => ControlSays::Status(Box::new(status)),
                Err(error) => ControlSays::Silent { error: format!("{error:#}") },
            },
        }
    };
    let (says, of_shares, of_certificates) = tokio::join!(
        control,
        mesh.proxies::<Shares>(node_proxy::SHARES),
        mesh.proxies::<List<HeldCertificate>>(node_proxy::CERTIFICATES),
    );
    (says, shares(of_shares), failing(of_certificates))
}

/// Whether all is well. What is not known is not well.
fn is_well(whole: &Whole) -> bool {
    let is_mesh_well = match &whole.mesh {
        ControlSays::Status(status) => {
            status.discovery.nodes_without_proxy.is_empty()
                && status.pods.waiting_for_capture.is_empty()
                && status.policies_not_accepted.is_empty()
                && status.findings.iter().all(|it| it.severity == Severity::Warning)
        }
        ControlSays::Silent { .. } => false,
        ControlSays::NoMesh {} | ControlSays::AtHome { .. } | ControlSays::InCluster { .. } => true,
    };
    is_mesh_well
        && whole.pods_not_ready.is_empty()
        && whole.machine.iter().flat_map(|machine| &machine.roles).all(is_role_well)
        && whole.machine.iter().flat_map(|machine| &machine.nodes).all(is_link_well)
        && whole.shares.iter().all(|share| share.used_up.is_empty())
        && whole.certificates_revoked.is_empty()
        && whole.certificates_failing.is_empty()
}

fn text(whole: &Whole) -> String {
    let mut text = match (&whole.machine, &whole.cluster) {
        (Some(machine), _) => machine_text(machine),
        (None, Some(cluster)) => cluster_text(&cluster.context, &whole.mesh),
        (None, None) => String::new(),
    };
    text.push_str(&mesh_text(&whole.mesh));
    text.push_str(&shares_text(&whole.shares));
    text.push_str(&failing_text(&whole.certificates_revoked));
    text.push_str(&failing_text(&whole.certificates_failing));
    for left in whole.machine.iter().flat_map(|machine| &machine.left_alone) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "left alone: {left}");
    }
    text.push_str(&findings::pods_text(&whole.pods_not_ready));
    let mut warnings = 0;
    if let ControlSays::Status(status) = &whole.mesh {
        text.push_str(&findings::text(status));
        warnings = findings::count(status, Severity::Warning);
    }
    text.push_str(match (whole.well, warnings) {
        (true, 0) => "all is well\n",
        (true, _) => "all is well, but for the warnings\n",
        (false, _) => "not all is well\n",
    });
    text
}

/// What one node's proxy reports about its shares of descriptors.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeShares {
    node: String,
    /// Which are used up, and by whom: a sentence each.
    used_up: Vec<String>,
    /// Why they are not known. Another program than `ambit proxy` has none.
    unknown: Option<String>,
}

fn shares(answers: Result<Answers<Shares>>) -> Vec<NodeShares> {
    let all = "all nodes".to_owned();
    let answers = answers.unwrap_or_else(|error| vec![(all, Err(error))]);
    let of_node = |(node, answer): (String, Result<Shares>)| match answer {
        Ok(shares) => NodeShares { node, used_up: shares.used_up, unknown: None },
        Err(error) => NodeShares { node, used_up: Vec::new(), unknown: Some(format!("{error:#}")) },
    };
    answers.into_iter().map(of_node).collect()
}

fn shares_text(shares: &[NodeShares]) -> String {
    let mut text = String::new();
    for NodeShares { node, used_up, unknown } in shares {
        for sentence in used_up {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "share used up on {node}: {sentence}");
        }
        if let Some(reason) = unknown {
            let _ = writeln!(text, "shares of {node} are not known: {reason}");
        }
    }
    text
}

/// An identity on a node whose certificate is revoked or out of date, or is not renewed.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct FailingCertificate {
    node: String,
    /// The identity. Unless the state is `Available`, its pods there have no connection with other
    /// nodes.
    identity: String,
    /// `Available`, `Revoked`, `Expired`, `NotYetValid` or `Unavailable`.
    state: &'static str,
    /// Why no other has come, if that is known.
    reason: Option<String>,
}

/// Whose certificates cannot be used or are not renewed: those that are revoked, and the others.
/// Proxies that do not answer are named with the shares.
fn failing(answers: Result<Answers<List<HeldCertificate>>>) -> Certificates {
    let mut all = Vec::new();
    for (node, answer) in answers.unwrap_or_default() {
        let items = answer.map(|list| list.items).unwrap_or_default();
        all.extend(items.into_iter().filter_map(|held| FailingCertificate::of(&node, held)));
    }
    all.into_iter().partition(|it| it.state == "Revoked")
}

impl FailingCertificate {
    fn of(node: &str, held: HeldCertificate) -> Option<Self> {
        let HeldCertificate { identity, state, last_failure: reason, .. } = held;
        let state = match state {
            CertificateState::Revoked => "Revoked",
            CertificateState::Expired => "Expired",
            CertificateState::NotYetValid => "NotYetValid",
            CertificateState::Available if reason.is_some() => "Available",
            CertificateState::Unavailable(_) | CertificateState::Other(_) => "Unavailable",
            CertificateState::Initializing if reason.is_some() => "Unavailable",
            CertificateState::Available | CertificateState::Initializing => return None,
        };
        Some(Self { node: node.to_owned(), identity, state, reason })
    }
}

fn failing_text(certificates: &[FailingCertificate]) -> String {
    let mut text = String::new();
    for FailingCertificate { node, identity, state, reason } in certificates {
        let what = match *state {
            "Available" => "not renewed",
            "Revoked" => "revoked",
            "Expired" => "expired",
            "NotYetValid" => "not valid yet",
            _ => "missing",
        };
        // Writing to a String cannot fail.
        let _ = write!(text, "certificate {what} on {node}: {identity}");
        let _ = match reason {
            Some(reason) => writeln!(text, " ({reason})"),
            None => writeln!(text),
        };
    }
    text
}

fn is_role_well(role: &RoleInfo) -> bool {
    role.pid.is_some() && role.waiting_for.is_none()
}

fn cluster_text(context: &str, mesh: &ControlSays) -> String {
    let mut text = format!("cluster: {context}\n");
    if let ControlSays::Status(status) = mesh {
        let (replicas, clients) = (status.replicas.unwrap_or(1), status.discovery.clients);
        // Writing to a String cannot fail.
        let _ =
            write!(text, "ready replicas of control: {replicas}\nconnected proxies: {clients}\n");
    }
    text
}

fn machine_text(machine: &MachineStatus) -> String {
    let node = |node: &NodeInfo| {
        let address = node.addresses.first().map(ToString::to_string).unwrap_or_default();
        // As kubectl counts: a pod that has done its work is none that should be ready.
        let wanted = node.pods.saturating_sub(node.succeeded);
        vec![node.name.clone(), address, format!("{}/{wanted}", node.ready)]
    };
    let nodes: Vec<_> = machine.nodes.iter().map(node).collect();
    let role = |role: &RoleInfo| {
        let state = match (&role.waiting_for, role.pid) {
            (Some(reason), _) => reason.clone(),
            (None, Some(_)) => "running".to_owned(),
            (None, None) => "not running".to_owned(),
        };
        vec![role.name.clone(), state, role.restarts.to_string(), role.log.display().to_string()]
    };
    let roles: Vec<_> = machine.roles.iter().map(role).collect();
    let mut text = table::format(&["NODE", "ADDRESS", "PODS READY"], &nodes);
    for node in &machine.nodes {
        text.push_str(&link_text(node, machine));
    }
    text.push('\n');
    text.push_str(&table::format(&["ROLE", "STATE", "RESTARTS", "LOG"], &roles));
    text.push('\n');
    if let Some(egress) = &machine.egress {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "pods reach the outside by TCP: {egress}\n");
    }
    text
}

/// How the link of a node is, if it has one.
fn link_text(node: &NodeInfo, machine: &MachineStatus) -> String {
    let Some(link) = &node.link else { return String::new() };
    let LinkInfo { connected, peer, since, reason } = link;
    let to = match (machine.joined, &machine.workload) {
        (Some(_), _) => Some("home"),
        (None, Some(_)) => Some("control"),
        (None, None) => None,
    };
    let what = match (to, connected) {
        (Some(to), true) => format!("is connected to {to}, {peer}"),
        (Some(to), false) => format!("is not connected to {to}, {peer}: {reason}"),
        (None, true) => format!("is another computer, connected from {peer}"),
        (None, false) => format!("is another computer, and not connected: {reason}"),
    };
    let since = if since.is_empty() { String::new() } else { format!(", since {since}") };
    format!("{} {what}{since}\n", node.name)
}

fn is_link_well(node: &NodeInfo) -> bool {
    node.link.as_ref().is_none_or(|link| link.connected)
}

/// What control says, for whatever it runs on.
fn mesh_text(mesh: &ControlSays) -> String {
    match mesh {
        ControlSays::Status(status) => status_text(status),
        ControlSays::Silent { error } => format!("control does not answer: {error}\n"),
        ControlSays::NoMesh {} => "without the mesh: pods, services and DNS alone\n".to_owned(),
        ControlSays::AtHome { joined } => {
            format!("control is at home, {joined}: its status says more\n")
        }
        ControlSays::InCluster { workload } => {
            let CarriedWorkload { namespace, entry, address, control, .. } = workload;
            format!(
                "this computer is WorkloadEntry {namespace}/{entry}, {address}; control is in the \
                 cluster, {control}: `ambit status --kube` says more where kubectl works\n"
            )
        }
    }
}

fn status_text(status: &Status) -> String {
    let pods = &status.pods;
    let mut text = format!("captured pods: {}\n", pods.captured);
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    let older: u32 = pods.older_than_capture.iter().map(|it| it.connections).sum();
    if older > 0 {
        let what = "open connections that bypass the mesh, in plain text and without policy";
        line(format!("{what}: {older}, counted at each pod"));
    }
    for older in &pods.older_than_capture {
        let what = "open connections are older than its capture and in plain text";
        line(format!("{}: {} {what}", older.pod, older.connections));
    }
    for lack in &pods.capture_lacks {
        let what = "captured without the kernel parameter";
        line(format!("{}: {what} {}", lack.pod, lack.parameter));
    }
    for pod in &pods.waiting_for_capture {
        line(format!("waiting for capture: {}", waiting(pod, &pods.not_captured)));
    }
    for pod in &pods.host_network_left_alone {
        line(format!("left alone, on their node's network: {pod}"));
    }
    for node in &status.discovery.nodes_without_proxy {
        line(format!("nodes whose proxy is not connected: {node}"));
    }
    for NotAccepted { kind, policy, message, .. } in &status.policies_not_accepted {
        line(format!("not enforced as written: {kind} {policy} ({message})"));
    }
    text
}

/// A pod that waits for capture with what keeps it waiting, if its agent says so.
fn waiting(pod: &str, not_captured: &[NotCaptured]) -> String {
    match not_captured.iter().find(|it| it.pod == pod) {
        Some(NotCaptured { message, remedy, .. }) => format!("{pod} ({message}; {remedy})"),
        None => pod.to_owned(),
    }
}

pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use ambit_machine::NodeInfo;
    use ambit_wire::admin::{Finding, OlderConnections, Pods};

    use super::*;

    #[test]
    fn shares_that_are_used_up_are_named_with_their_node() {
        let sentence = "pod app/server, inbound: 3 of 4 descriptors";
        let used_up = vec![sentence.to_owned()];
        let told = shares(Ok(vec![
            ("node-1".to_owned(), Ok(Shares::default())),
            ("node-2".to_owned(), Ok(Shares { used_up, ..Shares::default() })),
            ("node-3".to_owned(), Err(anyhow::anyhow!("no such page"))),
        ]));
        let expected = format!(
            "share used up on node-2: {sentence}\nshares of node-3 are not known: no such page\n"
        );
        assert_eq!(shares_text(&told), expected);
    }

    #[test]
    fn failing_certificates_are_named_with_their_node() {
        let held = |name: &str, state, failure: Option<&str>| HeldCertificate {
            identity: format!("spiffe://t/ns/a/sa/{name}"),
            state,
            cert_chain: Vec::new(),
            root_certs: Vec::new(),
            last_failure: failure.map(str::to_owned),
        };
        let (silent, clock) = ("no answer", "one clock is wrong");
        let first = [
            held("b", CertificateState::Available, None),
            held("c", CertificateState::Revoked, Some(silent)),
            held("d", CertificateState::Expired, Some(clock)),
            held("e", CertificateState::Available, Some(silent)),
            held("f", CertificateState::Unavailable(silent.to_owned()), Some(silent)),
            held("g", CertificateState::Initializing, None),
            held("h", CertificateState::NotYetValid, None),
        ];
        let (revoked, failing) = failing(Ok(vec![
            ("node-1".to_owned(), Ok(List::from_iter(first))),
            ("node-2".to_owned(), Err(anyhow::anyhow!("no such page"))),
        ]));
        let expected = "certificate revoked on node-1: spiffe://t/ns/a/sa/c (no answer)\n";
        assert_eq!(failing_text(&revoked), expected);
        let expected = "certificate expired on node-1: spiffe://t/ns/a/sa/d (one clock is wrong)\n\
            certificate not renewed on node-1: spiffe://t/ns/a/sa/e (no answer)\n\
            certificate missing on node-1: spiffe://t/ns/a/sa/f (no answer)\n\
            certificate not valid yet on node-1: spiffe://t/ns/a/sa/h\n";
        assert_eq!(failing_text(&failing), expected);
    }

    #[test]
    fn a_pod_that_waits_for_capture_is_named_with_the_reason() {
        let why = NotCaptured {
            pod: "a/b".to_owned(),
            reason: "PortTaken".into(),
            port: Some(15006),
            process: Some("nginx".to_owned()),
            message: "\"nginx\" has port 15006".to_owned(),
            remedy: "stop it".to_owned(),
        };
        let pods = Pods {
            waiting_for_capture: vec!["a/b".to_owned(), "a/c".to_owned()],
            not_captured: vec![why],
            ..Pods::default()
        };
        let expected = "captured pods: 0\nwaiting for capture: a/b (\"nginx\" has port 15006; stop \
            it)\nwaiting for capture: a/c\n";
        assert_eq!(status_text(&Status { pods, ..Status::default() }), expected);
    }

    fn whole(mesh: ControlSays) -> Whole {
        Whole {
            api_version: ApiVersion,
            well: false,
            machine: None,
            cluster: Some(ClusterName { context: "kind".to_owned() }),
            mesh,
            pods_not_ready: Vec::new(),
            shares: shares(Ok(vec![("node-1".to_owned(), Ok(Shares::default()))])),
            certificates_revoked: Vec::new(),
            certificates_failing: Vec::new(),
        }
    }

    #[test]
    fn what_is_not_known_is_not_well() {
        let well = |mesh| is_well(&whole(mesh));
        assert!(well(ControlSays::Status(Box::default())));
        assert!(well(ControlSays::NoMesh {}));
        assert!(!well(ControlSays::Silent { error: "another release".to_owned() }));
        let mut status = Status::default();
        status.pods.waiting_for_capture.push("a/b".to_owned());
        assert!(!well(ControlSays::Status(Box::new(status))));
        for (severity, expected) in [(Severity::Warning, true), (Severity::Unknown, false)] {
            let finding = Finding {
                severity,
                rule: "r".into(),
                object: "Namespace a".to_owned(),
                what: "w".to_owned(),
                remedy: "remove it".to_owned(),
            };
            let status = Status { findings: vec![finding], ..Status::default() };
            assert_eq!(well(ControlSays::Status(Box::new(status))), expected, "{severity}");
        }
    }

    #[test]
    fn what_is_printed_as_json() {
        let machine = MachineStatus {
            version: Some("0.1.0".to_owned()),
            pid: 4711,
            started_at: "2026-11-24T16:13:32Z".to_owned(),
            rootless: true,
            mesh: true,
            joined: None,
            workload: None,
            egress: Some("192.0.2.0/24,2001:db8::/32".parse().unwrap()),
            nodes: vec![NodeInfo {
                name: "node-1".to_owned(),
                addresses: vec![[10, 244, 0, 1].into()],
                pod_cidrs: vec!["10.244.1.0/24".to_owned()],
                pods: 2,
                running: 1,
                ready: 1,
                succeeded: 1,
                link: Some(LinkInfo {
                    connected: false,
                    peer: "192.0.2.1:7443".to_owned(),
                    since: "2026-11-24T16:15:00Z".to_owned(),
                    reason: "the connection broke".to_owned(),
                }),
            }],
            roles: vec![RoleInfo {
                name: "proxy/node-1".to_owned(),
                pid: Some(42),
                restarts: 1,
                last_exit: Some(139),
                waiting_for: Some("no certificate yet".to_owned()),
                log: "/run/ambit/log/proxy-node-1.log".into(),
            }],
            left_alone: vec!["UDP, except DNS of captured pods".to_owned()],
        };
        let error = "control has not answered within 10 s".to_owned();
        let of_machine = Whole {
            machine: Some(machine),
            cluster: None,
            pods_not_ready: vec![FailingPod {
                pod: "a/b".to_owned(),
                phase: "Running".into(),
                restarts: 4,
                reason: "CrashLoopBackOff: container web exited with 1".to_owned(),
            }],
            shares: vec![NodeShares {
                node: "node-1".to_owned(),
                used_up: vec!["pod a/b, inbound: 3 of 4 descriptors".to_owned()],
                unknown: Some("proxy/node-1 does not run".to_owned()),
            }],
            certificates_revoked: vec![FailingCertificate {
                node: "node-1".to_owned(),
                identity: "spiffe://t/ns/a/sa/b".to_owned(),
                state: "Revoked",
                reason: Some("no answer".to_owned()),
            }],
            ..whole(ControlSays::Silent { error })
        };
        let of_cluster = whole(ControlSays::Status(Box::default()));
        let no_mesh = whole(ControlSays::NoMesh {});
        let joined = whole(ControlSays::AtHome { joined: ([192, 0, 2, 1], 7443).into() });
        let all = [of_machine, of_cluster, no_mesh, joined];
        insta::assert_snapshot!(serde_json::to_string_pretty(&all).unwrap());
    }

    #[test]
    fn connections_older_than_the_capture_are_counted_together_and_by_pod() {
        let of = |pod: &str, connections| OlderConnections { pod: pod.to_owned(), connections };
        let older_than_capture = vec![of("a/b", 2), of("a/c", 3)];
        let pods = Pods { captured: 2, older_than_capture, ..Pods::default() };
        let expected = [
            "captured pods: 2",
            "open connections that bypass the mesh, in plain text and without policy: 5, counted \
             at each pod",
            "a/b: 2 open connections are older than its capture and in plain text",
            "a/c: 3 open connections are older than its capture and in plain text\n",
        ]
        .join("\n");
        assert_eq!(status_text(&Status { pods, ..Status::default() }), expected);
    }

    #[test]
    fn words_are_escaped_for_a_query() {
        assert_eq!(escape("a/b c&d:80"), "a/b%20c%26d:80");
    }
}
