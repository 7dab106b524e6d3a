//! The state of process 1 of a machine: its objects, the nodes' reports, its programs.
//!
//! Commands change objects here, and the controllers react; both hold one lock, never across an
//! `.await`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use ambit_net::capture::Capture;
use ambit_net::namespace::NetNs;
use ambit_words::names::UNSCHEDULABLE;
use tokio::sync::{Notify, watch};

use super::client::{NodeInfo, PodInfo};
use super::command::{Apply, Diff, Difference, Differences, Expected};
use super::record::Record;
use super::roles::{Role, Roles};
use crate::addresses::NodeNetwork;
use crate::controller::{self, MeshNames, text};
use crate::events::Events;
use crate::image::ImageMap;
use crate::join::CarriedWorkload;
use crate::join::{Joins, LinkInfo};
use crate::layout::Layout;
use crate::objects::{Admission, ApplyError, Changes, ObjectRef, Store, StoreError};
use crate::registry::{Mirror, Phase, timestamp};

/// Steps after which the controllers must have come to rest.
const STEPS_MAX: usize = 10_000;

/// Where in a pod object it says whether a node takes it, and why not.
const SCHEDULED: &str = "/status/conditions/0/status";
const WHY_NOT: &str = "/status/conditions/0/message";

/// Everything that the machine's tasks share.
pub(super) struct Machine {
    pub(super) layout: Layout,
    pub(super) record: Record,
    pub(super) roles: Roles,
    pub(super) role_list: Vec<Role>,
    pub(super) members: BTreeMap<String, NetNs>,
    /// The fabric's namespace, where captures are taken.
    pub(super) fabric: NetNs,
    pub(super) capture: Mutex<Option<Capture>>,
    pub(super) objects: Mutex<Objects>,
    /// The way out was open, and its process on the host has ended.
    pub(super) has_lost_egress: AtomicBool,
    /// Wakes the controllers after a command.
    pub(super) changed: Notify,
    /// Ends the machine.
    pub(super) end: Notify,
    /// Machines that join. Whoever holds the objects too has taken them first.
    pub(super) joins: Mutex<Joins>,
    pub(super) position: Position,
}

/// What a machine is to others.
pub(super) enum Position {
    /// Nothing.
    Alone,
    /// Others join it.
    Home {
        /// Where it listens for them.
        address: SocketAddr,
        /// The certificate that vouches for it, in PEM.
        root: String,
    },
    /// It carries a workload of a cluster, whose control decides.
    Cluster {
        /// Which.
        workload: CarriedWorkload,
    },
    /// It is a node of another.
    Joined {
        /// Where that listens.
        home: SocketAddr,
        /// How the link is; nothing before the first attempt.
        link: Mutex<Option<LinkInfo>>,
    },
}

/// Objects and what the nodes report about them.
pub(super) struct Objects {
    pub(super) store: Store,
    pub(super) reported: Mirror,
    pub(super) admission: Admission,
    /// What names the mesh, if the machine has one.
    pub(super) mesh: Option<MeshNames>,
    pub(super) events: Events,
    /// Counts how often the controllers have come to rest: what is shown may have changed then.
    pub(super) settled: watch::Sender<u64>,
}

impl Objects {
    /// Applies objects and what more images mean: all of it, or nothing and an error.
    pub(super) fn apply(
        &mut self,
        layout: &Layout,
        command: Apply,
        now: &str,
    ) -> Result<Changes, ApplyError> {
        let Apply { objects, sent, images, dry_run, expected } = command;
        let Self { store, admission, .. } = self;
        for Expected { object, version } in expected {
            let there = store.object(&object).map(|it| text(it, "/metadata/resourceVersion"));
            if there != version.as_deref() {
                return Err(ApplyError::Conflict { object });
            }
        }
        let images = admission.images.clone().extended(images);
        let wanted = Admission { images, ..admission.clone() };
        let (settled, changes) = store.draft_sent((sent, objects), &wanted, now)?;
        if dry_run {
            return Ok(changes);
        }
        let record =
            |images: &ImageMap| Record::change(layout, |record| record.images = images.clone());
        let has_new_images = wanted.images != admission.images;
        if has_new_images {
            // Before the objects: nodes read it when they start a pod.
            record(&wanted.images)?;
        }
        if let Err(error) = store.commit(settled) {
            if has_new_images && let Err(error) = record(&admission.images) {
                let error = anyhow::Error::new(error);
                tracing::error!(
                    error = format!("{error:#}"),
                    "a change was not made, but pods start with the images of it"
                );
            }
            return Err(error.into());
        }
        *admission = wanted;
        Ok(changes)
    }

    /// Changes objects and lets the controllers follow, so that the answer says which pods no node
    /// takes.
    pub(super) fn change(
        &mut self,
        change: impl FnOnce(&mut Self, &str) -> Result<Changes, ApplyError>,
    ) -> Result<Changes, ApplyError> {
        let before = self.unscheduled();
        let mut changes = change(self, &timestamp())?;
        if let Err(error) = self.settle() {
            // What asked for the change has it; the controllers try again by themselves.
            let error = anyhow::Error::new(error);
            tracing::error!(error = format!("{error:#}"), "the controllers cannot write");
        }
        let mut new = self.unscheduled();
        new.retain(|pod, _| !before.contains_key(pod));
        changes.warnings.extend(new.iter().map(|(pod, why)| format!("{pod} will not run: {why}")));
        Ok(changes)
    }

    /// What applying objects would change, or why they would be refused.
    pub(super) fn differences(&self, command: Diff, now: &str) -> Result<Differences, ApplyError> {
        let Diff { objects, sent, images } = command;
        let images = self.admission.images.clone().extended(images);
        let wanted = Admission { images, ..self.admission.clone() };
        let (settled, changes) = self.store.draft_sent((sent, objects), &wanted, now)?;
        // What an object brings along, such as the service account of a namespace, is not shown.
        let Changes { changes, warnings } = changes;
        let named = changes.into_iter().map(|change| change.object);
        let difference = |object: ObjectRef| {
            let after = settled.value(&object)?.clone();
            Some(Difference { before: self.store.object(&object).cloned(), object, after })
        };
        Ok(Differences { differences: named.filter_map(difference).collect(), warnings })
    }

    /// Lets the controllers work until they have nothing to do, and notes what has happened.
    pub(super) fn settle(&mut self) -> Result<(), StoreError> {
        let settled = self.come_to_rest();
        self.events.observe(&self.store, &self.reported, &timestamp());
        self.settled.send_modify(|count| *count += 1);
        settled
    }

    fn come_to_rest(&mut self) -> Result<(), StoreError> {
        for _ in 0..STEPS_MAX {
            let Self { store, reported, admission, mesh, .. } = self;
            if !controller::step(store, reported, admission, mesh.as_ref(), &timestamp())? {
                return Ok(());
            }
        }
        tracing::error!("the controllers do not come to rest after {STEPS_MAX} steps");
        Ok(())
    }

    /// Pods that no node takes, each with the reason.
    pub(super) fn unscheduled(&self) -> BTreeMap<ObjectRef, String> {
        let pods = self.store.of_plural("pods");
        let refused = pods.filter(|(_, value)| {
            text(value, SCHEDULED) == "False"
                && value.pointer("/metadata/deletionTimestamp").is_none()
        });
        refused.map(|(pod, value)| (pod.clone(), text(value, WHY_NOT).to_owned())).collect()
    }

    /// Every pod with what is known about it.
    pub(super) fn pods(&self, layout: &Layout) -> Vec<PodInfo> {
        let info = |(object, value): (&ObjectRef, &serde_json::Value)| {
            let namespace = object.namespace.clone().unwrap_or_default();
            let uid = text(value, "/metadata/uid").to_owned();
            let status = self.reported.status(&namespace, &object.name, &uid);
            let status = status.cloned().unwrap_or_default();
            let captured = std::fs::read_to_string(layout.captured(&namespace, &object.name));
            let unschedulable = status.uid.is_empty() && text(value, SCHEDULED) == "False";
            let reason = match unschedulable {
                true => format!("{UNSCHEDULABLE}: {}", text(value, WHY_NOT)),
                false => status.reason,
            };
            PodInfo {
                node: text(value, "/spec/nodeName").to_owned(),
                service_account: text(value, "/spec/serviceAccountName").to_owned(),
                owner_kind: text(value, "/metadata/ownerReferences/0/kind").to_owned(),
                owner: text(value, "/metadata/ownerReferences/0/name").to_owned(),
                created: text(value, "/metadata/creationTimestamp").to_owned(),
                host_network: value.pointer("/spec/hostNetwork") == Some(&true.into()),
                terminating: value.pointer("/metadata/deletionTimestamp").is_some(),
                // What else the agent notes of the pod is behind its uid.
                captured: captured.is_ok_and(|noted| noted.lines().next() == Some(&uid)),
                ready: status.ready,
                phase: status.phase,
                pod_ips: status.pod_ips,
                restarts: status.restarts,
                reason,
                unschedulable,
                crash_looping: status.containers.iter().any(|it| it.crash_looping),
                containers: status.containers,
                pid: status.pid,
                name: object.name.clone(),
                namespace,
                uid,
            }
        };
        self.store.of_plural("pods").map(info).collect()
    }
}

impl Machine {
    pub(super) fn objects(&self) -> std::sync::MutexGuard<'_, Objects> {
        self.objects.lock().expect("nothing panics while it holds the lock")
    }

    pub(super) fn joins(&self) -> std::sync::MutexGuard<'_, Joins> {
        self.joins.lock().expect("nothing panics while it holds the lock")
    }

    /// The network that a program lives in.
    pub(super) fn place(&self, role: &Role) -> &NetNs {
        self.members.get(&role.place).unwrap_or(&self.fabric)
    }

    /// The nodes with their addresses, and the links of those that joined, or of its own if it did.
    pub(super) fn nodes(&self) -> Vec<NodeInfo> {
        let pods = self.objects().pods(&self.layout);
        let own_link = match &self.position {
            Position::Joined { link, .. } => {
                link.lock().expect("nothing panics while it holds the lock").clone()
            }
            Position::Alone | Position::Home { .. } | Position::Cluster { .. } => None,
        };
        let own = self.record.nodes.iter().map(|name| {
            let network = NodeNetwork::of_name(name).expect("the machine named its nodes itself");
            (network, own_link.clone())
        });
        let joined: Vec<_> =
            self.joins().nodes().map(|(node, link)| (node, Some(link.clone()))).collect();
        let info = |(network, link): (NodeNetwork, Option<LinkInfo>)| {
            let name = network.name();
            let here = || pods.iter().filter(|pod| pod.node == name);
            NodeInfo {
                link,
                name: name.clone(),
                addresses: network.fabric().both().to_vec(),
                pod_cidrs: network.pod_cidrs().to_vec(),
                pods: here().count(),
                running: here().filter(|pod| pod.phase == Phase::Running).count(),
                ready: here().filter(|pod| pod.ready && !pod.crash_looping).count(),
                succeeded: here().filter(|pod| pod.phase == Phase::Succeeded).count(),
            }
        };
        own.chain(joined).map(info).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;
    use crate::node_labels::NodeLabels;
    use crate::objects::{Limited, Sent};

    const NOW: &str = "2026-01-31T12:00:00Z";

    /// A machine without nodes, and what images mean on it.
    fn machine(images: &ImageMap) -> (tempfile::TempDir, Layout, Objects) {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::new(root.path());
        let store = Store::create(layout.clone()).unwrap();
        let record: Record = serde_json::from_value(json!({
            "pid": 1, "startTicks": 1, "pidNamespace": 1, "networkNamespaces": {}, "startedAt": "",
            "nodes": [], "rootless": false, "mesh": false, "images": images, "binary": "",
        }))
        .unwrap();
        record.write(&layout).unwrap();
        let admission = Admission {
            images: images.clone(),
            rootless: false,
            node_labels: NodeLabels::default(),
            limited: Limited::default(),
        };
        let reported = Mirror::new(&layout);
        let (events, settled) = (Events::default(), watch::Sender::default());
        let objects = Objects { store, reported, admission, mesh: None, events, settled };
        (root, layout, objects)
    }

    fn namespace(name: &str, labels: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": labels}})
    }

    #[test]
    fn a_change_that_fails_leaves_the_images_as_they_were() {
        let images = |text: &str| ImageMap::parse([text]).unwrap();
        let old = images("old=sleep 1");
        let (_root, layout, mut objects) = machine(&old);
        let mut apply = |name: &str| {
            let (objects_of, new) = (vec![namespace(name, json!({}))], images("new=sleep 2"));
            let expected = Vec::new();
            let (sent, dry_run) = (Sent::Objects, false);
            let command = Apply { objects: objects_of, sent, images: new, dry_run, expected };
            let applied = objects.apply(&layout, command, NOW);
            let images = Record::read(&layout).unwrap().images;
            assert_eq!(images, objects.admission.images, "both say the same");
            (applied, images)
        };
        // Nothing can be written aside.
        fs::remove_dir_all(layout.staging()).unwrap();
        fs::write(layout.staging(), "").unwrap();
        let (failed, images) = apply("a");
        assert!(matches!(failed, Err(ApplyError::Store(_))), "{failed:?}");
        assert_eq!(images, old);
        fs::remove_file(layout.staging()).unwrap();
        fs::create_dir(layout.staging()).unwrap();
        let (applied, images) = apply("a");
        applied.unwrap();
        assert_eq!(images, old.clone().extended(ImageMap::parse(["new=sleep 2"]).unwrap()));
    }

    #[test]
    fn a_difference_is_shown_and_changes_nothing() {
        let (_root, layout, mut objects) = machine(&ImageMap::default());
        let (images, expected) = (ImageMap::default(), Vec::new());
        let command = Apply {
            objects: vec![namespace("a", json!({"one": "1"}))],
            sent: Sent::Manifests,
            images: images.clone(),
            dry_run: false,
            expected,
        };
        objects.apply(&layout, command, NOW).unwrap();
        let differences = |wanted: Vec<Value>| {
            let sent = Sent::Manifests;
            let command = Diff { objects: wanted, sent, images: images.clone() };
            let found = objects.differences(command, NOW).unwrap().differences;
            let labels = |value: &Value| value["metadata"]["labels"].clone();
            let shown = found.iter().map(|it| {
                (it.object.name.clone(), it.before.as_ref().map(labels), labels(&it.after))
            });
            shown.collect::<Vec<_>>()
        };
        let (one, two) = (json!({"one": "1"}), json!({"two": "2"}));
        assert_eq!(differences(vec![namespace("a", one.clone())]), []);
        let wanted = vec![namespace("a", two.clone()), namespace("b", one.clone())];
        let expected =
            [("a".to_owned(), Some(one.clone()), two), ("b".to_owned(), None, one.clone())];
        assert_eq!(differences(wanted), expected);
        assert_eq!(differences(vec![namespace("a", one)]), [], "nothing was changed");
    }

    #[test]
    fn a_difference_is_warned_and_refused_as_an_apply_would_be() {
        let (_root, layout, mut objects) = machine(&ImageMap::default());
        let command = |sent: Sent, objects: Vec<Value>| Apply {
            objects,
            sent,
            images: ImageMap::default(),
            dry_run: true,
            expected: Vec::new(),
        };
        let service = |ports: Value| {
            json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "web", "namespace": "a"}, "spec": {"ports": ports}})
        };
        let http = |port: u16| json!([{"name": "http", "port": port}]);
        let there = vec![namespace("a", json!({})), service(http(80))];
        let applied = Apply { dry_run: false, ..command(Sent::Objects, there) };
        objects.apply(&layout, applied, NOW).unwrap();
        let mut both = |service: Value| {
            let sent = Sent::Manifests;
            let diff = Diff { objects: vec![service.clone()], sent, images: ImageMap::default() };
            let said = objects.differences(diff, NOW).map(|it| it.warnings);
            let dry = objects.apply(&layout, command(sent, vec![service]), NOW);
            let (said, dry) = (said.map_err(|it| it.to_string()), dry.map_err(|it| it.to_string()));
            assert_eq!(said, dry.map(|it| it.warnings));
            said
        };
        let mut named = service(http(80));
        named["metadata"]["labels"] = json!({"a": "b"});
        assert!(both(named).unwrap()[0].contains("was not made by apply"));
        let refused = both(service(http(8080))).unwrap_err();
        assert!(refused.starts_with("Service a/web: spec.ports[1].name: "), "{refused}");
    }

    #[test]
    fn what_is_expected_must_still_be_so() {
        let (_root, layout, mut objects) = machine(&ImageMap::default());
        let object = ObjectRef::new(crate::objects::Kind::Namespace, None, "a");
        let mut apply = |labels: Value, version: Option<String>, is_taken: bool| {
            let expected = vec![Expected { object: object.clone(), version }];
            let (images, objects_of) = (ImageMap::default(), vec![namespace("a", labels)]);
            let (sent, dry_run) = (Sent::Objects, false);
            let command = Apply { objects: objects_of, sent, images, dry_run, expected };
            let applied = objects.apply(&layout, command, NOW);
            let is_conflict = matches!(applied, Err(ApplyError::Conflict { .. }));
            assert_eq!((applied.is_ok(), is_conflict), (is_taken, !is_taken), "{applied:?}");
            version_of(&objects, &object)
        };
        apply(json!({}), Some("1".to_owned()), false);
        let first = apply(json!({}), None, true);
        apply(json!({"a": "b"}), None, false);
        let second = apply(json!({"a": "b"}), first.clone(), true);
        assert_ne!(first, second);
        apply(json!({"a": "c"}), first, false);
        apply(json!({"a": "c"}), second, true);
    }

    fn version_of(objects: &Objects, object: &ObjectRef) -> Option<String> {
        let there = objects.store.object(object);
        there.map(|it| text(it, "/metadata/resourceVersion").to_owned())
    }
}
