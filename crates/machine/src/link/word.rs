//! What a joined machine takes of home's word: a pure judgement of each file that it sends.
//!
//! Home says what runs on the node, and nothing of where: names and uids inside of a file become
//! parts of paths here, and statuses with this node's own name are this node's alone. Home's users
//! are not this computer's.

use ambit_manifest::names::dns_label;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::entry::{Entry, Place};
use crate::addresses::NodeNetwork;
use crate::controller::text;
use crate::objects::Kind;
use crate::registry::PodStatus;

/// Longest uid: more than the 36 characters of a UUID.
const UID_LENGTH_MAX: usize = 64;

/// Why a file is not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unheard {
    /// This node says that itself.
    #[error("home does not say that")]
    NotHomes,
    /// It cannot be read.
    #[error("it is not of its form")]
    Form,
    /// It calls itself otherwise than its place.
    #[error("it is another object than its place says")]
    Other,
    /// A name or a uid that is part of a path.
    #[error("{0:?} is no name")]
    Name(String),
}

/// What is written down of a file that home sends to the node `own`.
pub(super) fn heard(entry: &Entry, own: NodeNetwork) -> Result<String, Unheard> {
    let Entry { place, content } = entry;
    match place {
        Place::Object { plural, namespace, name } => {
            let value: Value = serde_json::from_str(content).map_err(|_| Unheard::Form)?;
            object(&value, plural, namespace.as_deref(), name)?;
            Ok(content.clone())
        }
        Place::Status { .. } => {
            let status: PodStatus = serde_json::from_str(content).map_err(|_| Unheard::Form)?;
            if NodeNetwork::of_name(&status.node).is_none_or(|node| node == own) {
                return Err(Unheard::NotHomes);
            }
            check_uid(&status.uid)?;
            let status = PodStatus { pid: 0, netns: Default::default(), ..status };
            Ok(serde_json::to_string(&status).expect("a status can be written as JSON"))
        }
        Place::Credential { .. } => Ok(content.clone()),
        Place::Captured { .. } | Place::Uncaptured { .. } => Err(Unheard::NotHomes),
    }
}

fn object(value: &Value, plural: &str, namespace: Option<&str>, name: &str) -> Result<(), Unheard> {
    let is_kind = Kind::from_plural(plural).is_some_and(|kind| text(value, "/kind") == kind.name());
    let of = text(value, "/metadata/namespace");
    if !is_kind || text(value, "/metadata/name") != name || of != namespace.unwrap_or_default() {
        return Err(Unheard::Other);
    }
    check_uid(text(value, "/metadata/uid"))?;
    if plural != Kind::Pod.plural() {
        return Ok(());
    }
    let pod: Pod = serde_json::from_value(value.clone()).map_err(|_| Unheard::Form)?;
    let spec = pod.spec.unwrap_or_default();
    let initial = spec.init_containers.iter().flatten();
    let containers = spec.containers.iter().chain(initial).map(|it| &it.name);
    let volumes = spec.volumes.iter().flatten().map(|it| &it.name);
    match containers.chain(volumes).find(|name| dns_label(name).is_some()) {
        Some(name) => Err(Unheard::Name(name.clone())),
        None => Ok(()),
    }
}

/// An object has a uid, which becomes the name of a directory.
fn check_uid(uid: &str) -> Result<(), Unheard> {
    let is_part = |it: u8| it.is_ascii_alphanumeric() || it == b'-';
    match !uid.is_empty() && uid.len() <= UID_LENGTH_MAX && uid.bytes().all(is_part) {
        true => Ok(()),
        false => Err(Unheard::Name(uid.chars().take(UID_LENGTH_MAX).collect())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::entry::Credential;
    use super::*;

    fn judged(place: Place, content: &Value) -> Result<String, Unheard> {
        heard(&Entry { place, content: content.to_string() }, NodeNetwork::new(3))
    }

    fn pod_with(change: impl FnOnce(&mut Value)) -> Result<String, Unheard> {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "shop", "uid": "0a-1"},
            "spec": {"containers": [{"name": "main"}], "initContainers": [{"name": "first"}],
                "volumes": [{"name": "data"}]},
        });
        change(&mut pod);
        let (plural, namespace, name) = ("pods".to_owned(), "shop".to_owned(), "web".to_owned());
        judged(Place::Object { plural, namespace: Some(namespace), name }, &pod)
    }

    #[test]
    fn an_object_is_what_its_place_says() {
        assert!(pod_with(|_| ()).is_ok());
        for (at, value) in [
            ("/kind", json!("Service")),
            ("/metadata/name", json!("other")),
            ("/metadata/namespace", json!("..")),
        ] {
            let found = pod_with(|pod| *pod.pointer_mut(at).expect("it is there") = value);
            assert_eq!(found, Err(Unheard::Other), "{at}");
        }
        let found = pod_with(|pod| pod["spec"]["containers"] = json!("none"));
        assert_eq!(found, Err(Unheard::Form));
    }

    #[test]
    fn nothing_in_a_file_leads_out_of_the_state_directory() {
        let long = "a".repeat(UID_LENGTH_MAX + 1);
        for uid in ["", ".", "..", "/home/alice", "../../x", "a/b", "a\u{0}", &long] {
            let found = pod_with(|pod| pod["metadata"]["uid"] = json!(uid));
            assert!(matches!(found, Err(Unheard::Name(_))), "{uid:?}: {found:?}");
            let (namespace, name) = ("a".to_owned(), "b".to_owned());
            let status = json!({"node": "node-1", "uid": uid});
            let found = judged(Place::Status { namespace, name }, &status);
            assert!(matches!(found, Err(Unheard::Name(_))), "{uid:?}: {found:?}");
        }
        for at in ["/spec/containers/0/name", "/spec/initContainers/0/name", "/spec/volumes/0/name"]
        {
            let found = pod_with(|pod| *pod.pointer_mut(at).expect("there") = json!("../x"));
            assert_eq!(found, Err(Unheard::Name("../x".to_owned())), "{at}");
        }
    }

    #[test]
    fn what_runs_here_is_not_homes_to_say() {
        let place = || Place::Status { namespace: "a".to_owned(), name: "b".to_owned() };
        for node in ["node-3", "", "other", "node-0"] {
            let found = judged(place(), &json!({"node": node, "uid": "0a-1"}));
            assert_eq!(found, Err(Unheard::NotHomes), "{node:?}");
        }
        let status =
            json!({"node": "node-1", "uid": "0a-1", "pid": 7, "netns": "/n", "ready": true});
        let status = judged(place(), &status).expect("it is of another node");
        let status: PodStatus = serde_json::from_str(&status).expect("JSON");
        assert!(status.ready && status.pid == 0 && status.netns.as_os_str().is_empty());
        assert_eq!(judged(place(), &json!([1])), Err(Unheard::Form));
        let captured = Place::Captured { namespace: "a".to_owned(), name: "b".to_owned() };
        assert_eq!(judged(captured, &json!("0a-1")), Err(Unheard::NotHomes));
        let token = Place::Credential { pod: None, file: Credential::Token };
        assert_eq!(judged(token, &json!("t")).as_deref(), Ok("\"t\""));
    }
}
