//! What each mode of the mesh adds to a cluster: one table.
//!
//! A mode says which components run in each pod, on each node, in each namespace with services and
//! once in the cluster. A new mode is one more entry. Nothing here may know what a node is.

use std::collections::BTreeSet;

use ambit_words::names::DEFAULT_MESH_NAMESPACE;
use serde::Serialize;

use super::measured::Measured;
use super::pods::{Part, PodGroup};
use super::quantity::Resources;

/// A part of the mesh that reserves something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Component {
    /// The proxy in each pod.
    Sidecar,
    /// The layer-4 proxy of a node.
    Ztunnel,
    /// The agent of a node that captures pods.
    Cni,
    /// The control plane.
    Istiod,
    /// The layer-7 proxy of a namespace.
    Waypoint,
}

/// One way to run a mesh.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    /// Its name.
    pub name: &'static str,
    per_pod: &'static [Component],
    per_node: &'static [Component],
    per_namespace: &'static [Component],
    per_cluster: &'static [Component],
}

use Component::{Cni, Istiod, Sidecar, Waypoint, Ztunnel};

/// All modes; the first is what the others are compared with.
pub const MODES: [Mode; 4] = [
    Mode { name: "baseline", per_pod: &[], per_node: &[], per_namespace: &[], per_cluster: &[] },
    Mode {
        name: "sidecars",
        per_pod: &[Sidecar],
        per_node: &[],
        per_namespace: &[],
        per_cluster: &[Istiod],
    },
    Mode {
        name: "ambient L4",
        per_pod: &[],
        per_node: &[Ztunnel, Cni],
        per_namespace: &[],
        per_cluster: &[Istiod],
    },
    Mode {
        name: "ambient + waypoints",
        per_pod: &[],
        per_node: &[Ztunnel, Cni],
        per_namespace: &[Waypoint],
        per_cluster: &[Istiod],
    },
];

impl Component {
    /// All of them, in the order of [`Reservations`].
    pub const ALL: [Self; 5] = [Sidecar, Ztunnel, Cni, Istiod, Waypoint];

    /// The name it has on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Sidecar => "sidecar",
            Ztunnel => "ztunnel",
            Cni => "cni",
            Istiod => "istiod",
            Waypoint => "waypoint",
        }
    }

    /// The component of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

/// What each component reserves, and how many there are.
#[derive(Clone, Debug)]
pub struct Reservations {
    of: [Resources; 5],
    /// Replicas of the control plane.
    pub istiod_replicas: u32,
    /// Replicas of each namespace's waypoint.
    pub waypoint_replicas: u32,
    /// The node proxies' CPU as measured, instead of what is reserved for them.
    pub measured: Option<Measured>,
}

/// The components' documented requests, and one replica of each.
impl Default for Reservations {
    fn default() -> Self {
        Self {
            of: [
                Resources::of_mebibytes(250, 128),
                Resources::of_mebibytes(200, 512),
                Resources::of_mebibytes(100, 100),
                Resources::of_mebibytes(500, 2048),
                Resources::of_mebibytes(100, 128),
            ],
            istiod_replicas: 1,
            waypoint_replicas: 1,
            measured: None,
        }
    }
}

impl Reservations {
    /// What one of a component reserves.
    pub fn of(&self, component: Component) -> Resources {
        self.of[component as usize]
    }

    /// Reserves another amount for each of a component.
    pub fn set(&mut self, component: Component, resources: Resources) {
        self.of[component as usize] = resources;
    }
}

/// The application, before any mesh.
#[derive(Clone, Debug, Default)]
pub struct Application {
    /// Pods that are there so many times.
    pub pods: Vec<PodGroup>,
    /// Pods of every node.
    pub daemons: Vec<PodGroup>,
    /// Namespaces that get a waypoint, where there are waypoints.
    pub service_namespaces: BTreeSet<String>,
}

/// All that a mode places.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    /// In the order in which they come to the scheduler.
    pub(crate) pods: Vec<PodGroup>,
    pub(crate) daemons: Vec<PodGroup>,
    /// CPU that the node proxies need together, however many they are.
    pub(crate) shared_millicores: u64,
}

impl Mode {
    /// What there is to place: the control plane, the application, then waypoints.
    pub(crate) fn demand(&self, application: &Application, reserved: &Reservations) -> Demand {
        let replicas = |component| match component {
            Istiod => reserved.istiod_replicas,
            Waypoint => reserved.waypoint_replicas,
            Sidecar | Ztunnel | Cni => 1,
        };
        let group = |namespace: &str, component: Component, resources| {
            PodGroup::of_mesh(namespace, component.name(), replicas(component), resources)
        };
        // A component that reserves nothing is one that is not counted.
        let is_there = |it: &PodGroup| {
            it.count > 0 && (it.part == Part::Application || it.mesh != Resources::default())
        };
        let of_cluster =
            self.per_cluster.iter().map(|it| group(DEFAULT_MESH_NAMESPACE, *it, reserved.of(*it)));
        let of_namespaces = application.service_namespaces.iter().flat_map(|namespace| {
            let group = |it: &Component| group(namespace, *it, reserved.of(*it));
            self.per_namespace.iter().map(group)
        });
        let pods = application.pods.iter().map(|pods| self.meshed(pods, reserved));
        let measured = reserved.measured.as_ref().filter(|_| self.per_node.contains(&Ztunnel));
        let per_node = self.per_node.iter().map(|it| {
            let mut resources = reserved.of(*it);
            if *it == Ztunnel && measured.is_some() {
                resources.cpu_millicores = 0;
            }
            group(DEFAULT_MESH_NAMESPACE, *it, resources)
        });
        let daemons = application.daemons.iter().map(|pods| self.meshed(pods, reserved));
        Demand {
            pods: of_cluster.chain(pods).chain(of_namespaces).filter(is_there).collect(),
            daemons: per_node.chain(daemons).filter(is_there).collect(),
            shared_millicores: measured.map_or(0, Measured::millicores),
        }
    }

    /// Pods of the node's own network are outside of every mesh.
    fn meshed(&self, pods: &PodGroup, reserved: &Reservations) -> PodGroup {
        let proxies = self.per_pod.iter().filter(|_| !pods.is_on_node_network);
        proxies.fold(pods.clone(), |pods, it| pods.with_sidecar(reserved.of(*it)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_adds_what_its_entry_says() {
        let pods = PodGroup::plain("shop", "web", 3, Resources::of_mebibytes(700, 500));
        let application = Application {
            pods: vec![pods],
            daemons: vec![],
            service_namespaces: BTreeSet::from(["shop".to_owned()]),
        };
        let check = |index: usize, pods: &[&str], daemons: &[&str]| {
            let demand = MODES[index].demand(&application, &Reservations::default());
            let shown = |groups: &[PodGroup]| -> Vec<String> {
                let shown =
                    |it: &PodGroup| format!("{} {} {}", it.count, it.name, it.requests.total());
                groups.iter().map(shown).collect()
            };
            assert_eq!(shown(&demand.pods), pods);
            assert_eq!(shown(&demand.daemons), daemons);
        };
        check(0, &["3 web 700m/500Mi"], &[]);
        check(1, &["1 istiod 500m/2Gi", "3 web 950m/628Mi"], &[]);
        let per_node = ["1 ztunnel 200m/512Mi", "1 cni 100m/100Mi"];
        check(2, &["1 istiod 500m/2Gi", "3 web 700m/500Mi"], &per_node);
        let all = ["1 istiod 500m/2Gi", "3 web 700m/500Mi", "1 waypoint 100m/128Mi"];
        check(3, &all, &per_node);
    }
}
