//! What home takes of a joined machine's word: a pure judgement of each file that it sends.
//!
//! A joined machine speaks of its own pods alone: those that home has placed on its node, with the
//! uid that home gave them, and with addresses of the node. Paths and process ids of another
//! computer mean nothing at home, and are left out.

use std::net::IpAddr;

use super::entry::{Entry, Place};
use crate::addresses::NodeNetwork;
use crate::controller::text;
use crate::registry::{Mirror, PodStatus};

/// Longest report on a pod.
const REPORT_SIZE_MAX_BYTES: usize = 64 << 10;

/// Why a report is not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Untaken {
    /// Home alone says that.
    #[error("a joined machine does not say that")]
    NotItsOwn,
    /// No such pod is on the node.
    #[error("the node has no such pod")]
    NoPod,
    /// It is too long.
    #[error("it is longer than {REPORT_SIZE_MAX_BYTES} bytes")]
    TooLong,
    /// It cannot be read.
    #[error("it is not of its form")]
    Form,
    /// It names an address of somebody else.
    #[error("it names an address that is not the node's")]
    Address,
}

/// What home writes down of a report.
pub(super) fn taken(entry: &Entry, node: NodeNetwork, mirror: &Mirror) -> Result<String, Untaken> {
    let Entry { place, content } = entry;
    if content.len() > REPORT_SIZE_MAX_BYTES {
        return Err(Untaken::TooLong);
    }
    match place {
        Place::Status { namespace, name } => {
            let status: PodStatus = serde_json::from_str(content).map_err(|_| Untaken::Form)?;
            if !is_on(node, namespace, name, &status.uid, mirror) || status.node != node.name() {
                return Err(Untaken::NoPod);
            }
            let pod = mirror.object("pods", namespace, name);
            let is_nodes = pod.is_some_and(|pod| pod["spec"]["hostNetwork"] == true);
            if !are_of_one_pod(&status.pod_ips, node, is_nodes) {
                return Err(Untaken::Address);
            }
            Ok(write(&PodStatus { pid: 0, netns: Default::default(), ..status }))
        }
        Place::Captured { namespace, name } | Place::Uncaptured { namespace, name } => {
            let uid = content.lines().next().unwrap_or_default();
            if !is_on(node, namespace, name, uid, mirror) {
                return Err(Untaken::NoPod);
            }
            Ok(content.clone())
        }
        Place::Object { .. } | Place::Credential { .. } => Err(Untaken::NotItsOwn),
    }
}

/// Whether the addresses are of one pod of the node: one of each family, and the node's own only of
/// a pod in its network.
fn are_of_one_pod(ips: &[IpAddr], node: NodeNetwork, is_nodes: bool) -> bool {
    let is_its = |ip: &IpAddr| match is_nodes {
        true => node.owns(*ip),
        false => node.pod_number(*ip).is_some(),
    };
    let of_family = |is_v4: bool| ips.iter().filter(|ip| ip.is_ipv4() == is_v4).count();
    ips.iter().all(is_its) && of_family(true) <= 1 && of_family(false) <= 1
}

/// Whether a joined machine may say that a file is gone which has this content now.
pub(super) fn may_remove(place: &Place, content: &str, node: NodeNetwork, mirror: &Mirror) -> bool {
    match place {
        Place::Status { .. } => {
            let status = serde_json::from_str::<PodStatus>(content);
            status.is_ok_and(|status| status.node == node.name())
        }
        // The pod may be gone before the agent's word of it.
        Place::Captured { .. } | Place::Uncaptured { .. } => {
            let uid = content.lines().next().unwrap_or_default();
            let mut pods = mirror.of_plural("pods").map(|(_, pod)| pod);
            let pod = pods.find(|pod| text(pod, "/metadata/uid") == uid);
            pod.is_none_or(|pod| text(pod, "/spec/nodeName") == node.name())
        }
        Place::Object { .. } | Place::Credential { .. } => false,
    }
}

/// The status of a pod whose node cannot be asked: as Kubernetes has it, it is not ready.
pub(super) fn lost(status: &PodStatus) -> String {
    let mut status = status.clone();
    status.ready = false;
    status.containers.iter_mut().for_each(|container| container.ready = false);
    status.reason = format!("NodeLost: {} is not connected", status.node);
    write(&status)
}

fn write(status: &PodStatus) -> String {
    serde_json::to_string(status).expect("a status can be written as JSON")
}

fn is_on(node: NodeNetwork, namespace: &str, name: &str, uid: &str, mirror: &Mirror) -> bool {
    mirror.object("pods", namespace, name).is_some_and(|pod| {
        text(pod, "/spec/nodeName") == node.name() && text(pod, "/metadata/uid") == uid
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::layout::Layout;
    use crate::link::entry;

    /// Home with a pod on the joined node and one on its own.
    fn home() -> (tempfile::TempDir, Mirror) {
        let state = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(state.path());
        let mut mirror = Mirror::new(&layout);
        for (name, node) in [("mine", "node-3"), ("other", "node-1")] {
            let pod = json!({"metadata": {"uid": format!("u-{name}")}, "spec": {"nodeName": node}});
            let status = PodStatus { node: node.to_owned(), ..PodStatus::default() };
            for (path, text) in [
                (layout.object("pods", Some("shop"), name), pod.to_string()),
                (layout.pod_status("shop", name), write(&status)),
            ] {
                entry::write(&path, text.as_bytes()).expect("written");
                mirror.read(&[path]);
            }
        }
        (state, mirror)
    }

    fn named(name: &str) -> (String, String) {
        ("shop".to_owned(), name.to_owned())
    }

    #[test]
    fn a_joined_machine_speaks_of_its_own_pods_alone() {
        let (_state, mirror) = home();
        let check = |name: &str, uid: &str, node: &str, ip: &str, expected: Result<(), Untaken>| {
            let (namespace, name) = named(name);
            let status = json!({"uid": uid, "node": node, "podIPs": [ip], "phase": "Running",
                "pid": 7, "netns": "/n"});
            let place = Place::Status { namespace, name };
            let entry = Entry { place, content: status.to_string() };
            let found = taken(&entry, NodeNetwork::new(3), &mirror);
            if let Ok(text) = &found {
                let status: PodStatus = serde_json::from_str(text).expect("JSON");
                assert_eq!((status.pid, status.netns.to_str()), (0, Some("")));
            }
            assert_eq!(found.map(drop), expected, "{entry:?} {uid} {node} {ip}");
        };
        check("mine", "u-mine", "node-3", "10.244.3.2", Ok(()));
        check("mine", "u-mine", "node-3", "fd00:10:244:3::2", Ok(()));
        check("mine", "u-mine", "node-3", "172.18.0.13", Err(Untaken::Address));
        check("mine", "u-mine", "node-3", "10.244.3.1", Err(Untaken::Address));
        check("mine", "u-mine", "node-3", "10.244.1.2", Err(Untaken::Address));
        check("mine", "u-mine", "node-3", "172.18.0.2", Err(Untaken::Address));
        check("mine", "u-mine", "node-1", "10.244.3.2", Err(Untaken::NoPod));
        check("mine", "u-other", "node-3", "10.244.3.2", Err(Untaken::NoPod));
        check("other", "u-other", "node-3", "10.244.3.2", Err(Untaken::NoPod));
        check("absent", "", "node-3", "10.244.3.2", Err(Untaken::NoPod));
    }

    #[test]
    fn other_words_are_not_taken() {
        let (_state, mirror) = home();
        let check = |place: Place, content: &str, expected: Result<(), Untaken>| {
            let entry = Entry { place, content: content.to_owned() };
            let found = taken(&entry, NodeNetwork::new(3), &mirror).map(drop);
            assert_eq!(found, expected, "{entry:?}");
        };
        let captured = |name: &str| {
            let (namespace, name) = named(name);
            Place::Captured { namespace, name }
        };
        let (namespace, name) = named("mine");
        let status = Place::Status { namespace, name };
        check(captured("mine"), "u-mine\nnote", Ok(()));
        check(captured("mine"), "u-old", Err(Untaken::NoPod));
        check(captured("other"), "u-other", Err(Untaken::NoPod));
        check(captured("mine"), &"x".repeat(REPORT_SIZE_MAX_BYTES + 1), Err(Untaken::TooLong));
        check(status, "[1]", Err(Untaken::Form));
        let object = Place::Object {
            plural: "pods".to_owned(),
            namespace: Some("shop".to_owned()),
            name: "mine".to_owned(),
        };
        check(object.clone(), "{}", Err(Untaken::NotItsOwn));
        let token = Place::Credential { pod: None, file: entry::Credential::Token };
        check(token.clone(), "t", Err(Untaken::NotItsOwn));
    }

    #[test]
    fn a_joined_machine_takes_back_its_own_words_alone() {
        let (_state, mirror) = home();
        let (namespace, name) = named("mine");
        let status = Place::Status { namespace: namespace.clone(), name: name.clone() };
        let captured = Place::Captured { namespace, name };
        let token = Place::Credential { pod: None, file: entry::Credential::Token };
        let gone =
            |place: &Place, content: &str| may_remove(place, content, NodeNetwork::new(3), &mirror);
        assert!(gone(&status, r#"{"node": "node-3"}"#));
        assert!(!gone(&status, r#"{"node": "node-1"}"#), "the pod has moved");
        assert!(!gone(&status, "{}") && !gone(&status, ""));
        assert!(gone(&captured, "u-mine\nnote") && gone(&captured, "u-gone"));
        assert!(!gone(&captured, "u-other"), "the pod has moved");
        assert!(!gone(&token, "t"));
    }

    #[test]
    fn addresses_are_of_one_pod() {
        let check = |ips: &[&str], is_nodes: bool, expected: bool| {
            let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().expect("one")).collect();
            assert_eq!(are_of_one_pod(&ips, NodeNetwork::new(3), is_nodes), expected, "{ips:?}");
        };
        check(&[], false, true);
        check(&["10.244.3.2", "fd00:10:244:3::2"], false, true);
        check(&["10.244.3.2", "10.244.3.3"], false, false);
        check(&["10.244.3.2", "10.244.3.2"], false, false);
        check(&["172.18.0.13", "fd00:172:18::13"], true, true);
        check(&["172.18.0.13"], false, false);
        check(&["172.18.0.12"], true, false);
    }

    #[test]
    fn pods_of_a_lost_node_are_not_ready() {
        let status = PodStatus {
            node: "node-3".to_owned(),
            ready: true,
            containers: vec![crate::registry::ContainerStatus {
                running: true,
                ready: true,
                ..Default::default()
            }],
            ..PodStatus::default()
        };
        let lost: PodStatus = serde_json::from_str(&lost(&status)).expect("JSON");
        assert!(!lost.ready && !lost.containers[0].ready && lost.containers[0].running);
        assert_eq!(lost.reason, "NodeLost: node-3 is not connected");
    }
}
