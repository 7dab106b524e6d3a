//! From the registry's view to what is wanted for each pod of this node. Pure.
//!
//! A pod is identified by its uid: a pod that is created again under the same name is another one.
//! While its status exists, a pod whose object is gone is ending, not gone: its plan stays in
//! force. Pods on the node's own network are never planned for, so nothing is done in the node's
//! namespace.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::enrolment::Wish;
use crate::place::Place;
use crate::pod::{
    Defaults, Exclusion, Membership, NewPod, PodName, PodObject, PodStatus, PodUid, RegistryView,
    membership,
};

/// What is wanted for one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) name: PodName,
    pub(crate) netns: Place,
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) intent: Intent,
}

/// In or out of the mesh, or whatever it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Intent {
    /// The pod's object says what is wished.
    Wished { wish: Wish, service_account: String },
    /// The pod is ending; its object is gone.
    AsBefore,
}

/// Plans for every pod of `node` that has a namespace; pods not in the plan are gone.
///
/// `announced` holds the pods that the CNI plugin announced and that have no status yet.
pub(crate) fn plan(
    view: &RegistryView,
    node: &str,
    defaults: Defaults,
    announced: &BTreeMap<PodUid, NewPod>,
) -> BTreeMap<PodUid, Planned> {
    let mut plan = BTreeMap::new();
    for (name, status) in &view.statuses {
        let object = view.pods.get(name).filter(|object| object.uid == status.uid);
        let node_of_object = object.and_then(|object| object.node.as_deref());
        let here = status.node.as_deref().or(node_of_object) == Some(node);
        let Some(netns) = status.netns.clone().filter(|_| here && !status.terminated) else {
            continue;
        };
        let ips = status.ips.clone();
        plan_one(&mut plan, view, defaults, &status.uid, name, object, (netns, ips));
    }
    for (uid, new_pod) in announced {
        let object = view.pods.get(&new_pod.name).filter(|object| object.uid == *uid);
        let status = status_of(view, &new_pod.name, uid);
        if object.is_none() || status.is_some_and(|s| s.terminated || s.netns.is_some()) {
            continue;
        }
        let place = (Place::At(new_pod.netns.clone()), new_pod.ips.clone());
        plan_one(&mut plan, view, defaults, uid, &new_pod.name, object, place);
    }
    plan
}

/// The status of that pod, not of another of the same name.
pub(crate) fn status_of<'a>(
    view: &'a RegistryView,
    name: &PodName,
    uid: &PodUid,
) -> Option<&'a PodStatus> {
    view.statuses.get(name).filter(|status| status.uid == *uid)
}

fn plan_one(
    plan: &mut BTreeMap<PodUid, Planned>,
    view: &RegistryView,
    defaults: Defaults,
    uid: &PodUid,
    name: &PodName,
    object: Option<&PodObject>,
    (netns, ips): (Place, Vec<IpAddr>),
) {
    let intent = match object {
        None => Intent::AsBefore,
        Some(object) => {
            let wish = match membership(object, view.namespaces.get(&name.namespace), defaults) {
                Membership::In(options) => Wish::Capture(options),
                Membership::Out(Exclusion::HostNetwork) => return,
                Membership::Out(_) => Wish::Release,
            };
            Intent::Wished { wish, service_account: object.service_account.clone() }
        }
    };
    plan.insert(uid.clone(), Planned { name: name.clone(), netns, ips, intent });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::CaptureOptions;
    use crate::pod::tests::pod;

    const DEFAULTS: Defaults = Defaults { dns: true, ipv6: true };
    const OPTIONS: CaptureOptions =
        CaptureOptions { dns: true, ipv6: true, bypass_inbound: false, cut_open: false };

    fn status(uid: &str) -> PodStatus {
        PodStatus {
            uid: PodUid::new(uid),
            node: Some("node-1".into()),
            terminated: false,
            ips: vec!["10.244.1.5".parse().expect("literal")],
            netns: Some(Place::At(format!("/netns/{uid}").into())),
        }
    }

    fn view(
        objects: &[(&str, PodObject)],
        statuses: &[(&str, PodStatus)],
        namespace_mode: &str,
    ) -> RegistryView {
        let labels =
            BTreeMap::from([("istio.io/dataplane-mode".to_owned(), namespace_mode.to_owned())]);
        let name = |name: &str| PodName::new("shop", name);
        let objects =
            objects.iter().map(|(n, o)| (name(n), PodObject { name: name(n), ..o.clone() }));
        RegistryView {
            pods: objects.collect(),
            statuses: statuses.iter().map(|(n, s)| (name(n), s.clone())).collect(),
            namespaces: BTreeMap::from([("shop".to_owned(), labels)]),
        }
    }

    fn path(place: &Place) -> String {
        match place {
            Place::At(path) => path.display().to_string(),
            Place::Open(_) => unreachable!("no namespace is open in these tests"),
        }
    }

    /// What is wished of each pod, as short words.
    fn check(view: &RegistryView, announced: &[(&str, NewPod)], expected: &[(&str, &str, &str)]) {
        let announced =
            announced.iter().map(|(uid, pod)| (PodUid::new(uid), pod.clone())).collect();
        let plan = plan(view, "node-1", DEFAULTS, &announced);
        let words = plan.iter().map(|(uid, planned)| {
            let word = match &planned.intent {
                Intent::AsBefore => "as before",
                Intent::Wished { wish: Wish::Release, .. } => "out",
                Intent::Wished { wish, .. } if *wish == Wish::Capture(OPTIONS) => "in",
                Intent::Wished { .. } => "other",
            };
            (uid.as_str().to_owned(), word, path(&planned.netns))
        });
        let words: Vec<_> = words.collect();
        let words: Vec<_> = words.iter().map(|(u, w, n)| (u.as_str(), *w, n.as_str())).collect();
        assert_eq!(words, expected);
    }

    #[test]
    fn the_label_decides_for_pods_that_run_here() {
        let elsewhere = PodStatus { node: Some("node-2".into()), ..status("b") };
        let ended = PodStatus { terminated: true, ..status("c") };
        let unborn = PodStatus { netns: None, ..status("d") };
        let all = [("a", status("a")), ("b", elsewhere), ("c", ended), ("d", unborn)];
        let objects = [("a", pod("a")), ("b", pod("b")), ("c", pod("c")), ("d", pod("d"))];
        check(&view(&objects, &all, "ambient"), &[], &[("a", "in", "/netns/a")]);
        check(&view(&objects, &all, "none"), &[], &[("a", "out", "/netns/a")]);
    }

    #[test]
    fn pods_on_the_nodes_network_are_not_planned_for() {
        let host = PodObject { host_network: true, ..pod("a") };
        check(&view(&[("a", host)], &[("a", status("a"))], "ambient"), &[], &[]);
    }

    #[test]
    fn a_pod_whose_object_is_gone_goes_on_while_its_status_lasts() {
        let ending = view(&[], &[("web", status("a"))], "ambient");
        check(&ending, &[], &[("a", "as before", "/netns/a")]);
        let replaced = view(&[("web", pod("b"))], &[("web", status("a"))], "ambient");
        check(&replaced, &[], &[("a", "as before", "/netns/a")]);
    }

    #[test]
    fn an_announced_pod_counts_until_its_status_speaks() {
        let new = |name: &str| NewPod {
            name: PodName::new("shop", name),
            uid: None,
            netns: "/netns/new".into(),
            ips: Vec::new(),
        };
        let objects = [("web", pod("a"))];
        let announced = [("a", new("web"))];
        check(&view(&objects, &[], "ambient"), &announced, &[("a", "in", "/netns/new")]);
        let pending = PodStatus { netns: None, ..status("a") };
        let pending = view(&objects, &[("web", pending)], "ambient");
        check(&pending, &announced, &[("a", "in", "/netns/new")]);
        let running = view(&objects, &[("web", status("a"))], "ambient");
        check(&running, &announced, &[("a", "in", "/netns/a")]);
        let ended = PodStatus { terminated: true, ..status("a") };
        check(&view(&objects, &[("web", ended)], "ambient"), &announced, &[]);
        check(&view(&[], &[], "ambient"), &announced, &[]);
    }
}
