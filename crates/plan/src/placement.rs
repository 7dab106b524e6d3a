//! Whole pods onto nodes, as the Kubernetes scheduler and a cluster autoscaler would put them.
//!
//! Filters: requests against allocatable, the limit of pods, nodeName, nodeSelector and required
//! nodeAffinity, required pod affinity and anti-affinity by node and by zone (both directions).
//! Scores, with the scheduler's default weights: LeastAllocated and BalancedAllocation of CPU and
//! memory, preferred pod affinity and anti-affinity. Of equal nodes the oldest wins, where
//! Kubernetes picks at random. A node is added when no node takes a pod; its DaemonSets' pods are
//! placed first.
//!
//! Not modelled: spreading by topologySpreadConstraints, taints, volumes, host ports, images,
//! priorities and preemption; preferred nodeAffinity, since planned nodes are alike.

use std::collections::BTreeMap;

use ambit_words::labels::{
    ARCHITECTURE, BETA_ARCHITECTURE, BETA_OS, HOSTNAME, INSTANCE_TYPE, OS, ZONE,
};

use super::modes::Demand;
use super::node_type::NodeType;
use super::pods::{PodGroup, Topology};
use super::quantity::Resources;

/// The scheduler's highest score of a plugin.
const SCORE_MAX: u64 = 100;
/// Weight of InterPodAffinity; the two of resources have 1.
const AFFINITY_WEIGHT: i64 = 2;

/// What all planned nodes have around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// Zones that nodes are spread over, in turn.
    pub zones: u32,
    /// Labels of every node besides those that Kubernetes gives it.
    pub labels: BTreeMap<String, String>,
}

impl Default for Surroundings {
    fn default() -> Self {
        Self { zones: 3, labels: BTreeMap::new() }
    }
}

/// A node with its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedNode {
    /// Its name.
    pub name: String,
    /// What all its pods request.
    pub requested: Resources,
    /// What of that the mesh requests.
    pub mesh: Resources,
    /// How many pods.
    pub pods: u32,
    /// How many pods of each group: groups by their index, then those of every node.
    pub(crate) groups: BTreeMap<usize, u32>,
    zone: u32,
    labels: BTreeMap<String, String>,
    scored: Resources,
}

/// Why a plan cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unplaceable {
    /// What runs on every node is more than a node.
    #[error(
        "the pods of every node ({names}) need {requested} of the node's {allocatable}, and \
         nothing is left; take a larger node type, or reserve less for them"
    )]
    Daemons {
        /// Which pods.
        names: String,
        /// What they request.
        requested: String,
        /// What there is.
        allocatable: String,
    },
    /// A pod that goes nowhere.
    #[error("{pod} fits no node: {why}; {remedy}")]
    Pod {
        /// Its group, as namespace and name.
        pod: String,
        /// What is in its way.
        why: String,
        /// What to do.
        remedy: String,
    },
}

/// What is in the way of a pod on a node.
enum Obstacle {
    Node(String),
    Cpu,
    Memory,
    Pods,
    Apart(usize),
    Together,
}

/// How groups mean one another: for each, the others with what they do to it.
struct Relations {
    /// May not be near.
    apart: Vec<Vec<(usize, Topology)>>,
    /// Attract or repel.
    preferences: Vec<Vec<(usize, Topology, i64)>>,
}

/// The cluster as it fills.
struct Cluster<'a> {
    groups: Vec<&'a PodGroup>,
    daemons: std::ops::Range<usize>,
    relations: Relations,
    node_type: &'a NodeType,
    surroundings: &'a Surroundings,
    /// CPU on every node beside its pods' requests.
    share_millicores: u64,
    /// Names that pods ask for; other nodes do not take them.
    wanted_names: Vec<&'a str>,
    nodes: Vec<PlacedNode>,
    nodes_named: u32,
}

/// Places all of `demand`; on each node `share_millicores` of the mesh come first.
pub(crate) fn place(
    demand: &Demand,
    node_type: &NodeType,
    surroundings: &Surroundings,
    share_millicores: u64,
) -> Result<Vec<PlacedNode>, Unplaceable> {
    let mut cluster = Cluster::new(demand, node_type, surroundings, share_millicores);
    cluster.check_daemons()?;
    // Pods of a certain node come first, as in a cluster in which they were there first.
    let of_names = |index: &usize| demand.pods[*index].names_nodes();
    let all = 0..demand.pods.len();
    let (named, free): (Vec<usize>, Vec<usize>) = all.partition(of_names);
    for index in named.into_iter().chain(free) {
        for _ in 0..demand.pods[index].count {
            cluster.place(index)?;
        }
    }
    Ok(cluster.nodes)
}

/// The requests on each node of the pods that run on every node. Pods for only some nodes are left
/// out, so a division by the remainder never exceeds the need.
pub(crate) fn per_node(
    demand: &Demand,
    node_type: &NodeType,
    surroundings: &Surroundings,
) -> Resources {
    let cluster = Cluster::new(demand, node_type, surroundings, 0);
    let node = cluster.fresh("node".to_owned(), 0);
    let everywhere = demand.daemons.iter().filter(|it| {
        it.rules.is_same_everywhere() && it.rules.admits(&node.name, &node.labels).is_ok()
    });
    let each = everywhere.map(|it| it.requests.total().times(u64::from(it.count)));
    each.fold(Resources::default(), Resources::plus)
}

/// Adds nodes with nothing on them but the pods of every node, so that there are `count`.
pub(crate) fn pad(
    nodes: &mut Vec<PlacedNode>,
    count: usize,
    demand: &Demand,
    node_type: &NodeType,
    surroundings: &Surroundings,
) {
    let share = demand.shared_millicores.div_ceil(count.max(1) as u64);
    let cluster = Cluster::new(demand, node_type, surroundings, share);
    let spare = nodes.len()..count;
    nodes.extend(spare.map(|number| cluster.fresh(format!("spare-{}", number + 1), 0)));
}

impl<'a> Cluster<'a> {
    fn new(
        demand: &'a Demand,
        node_type: &'a NodeType,
        surroundings: &'a Surroundings,
        share_millicores: u64,
    ) -> Self {
        let groups: Vec<&PodGroup> = demand.pods.iter().chain(&demand.daemons).collect();
        Self {
            relations: Relations::of(&groups),
            daemons: demand.pods.len()..groups.len(),
            wanted_names: groups.iter().flat_map(|it| it.rules.node_names()).collect(),
            groups,
            node_type,
            surroundings,
            share_millicores,
            nodes: Vec::new(),
            nodes_named: 0,
        }
    }

    fn check_daemons(&self) -> Result<(), Unplaceable> {
        let node = self.fresh("node".to_owned(), 0);
        let is_full =
            !node.requested.fits_in(self.node_type.allocatable) || node.pods > self.node_type.pods;
        if !is_full {
            return Ok(());
        }
        Err(self.too_many_daemons(node.requested))
    }

    fn too_many_daemons(&self, requested: Resources) -> Unplaceable {
        let names = self.groups[self.daemons.clone()].iter().map(|it| it.name.as_str());
        Unplaceable::Daemons {
            names: names.collect::<Vec<_>>().join(", "),
            requested: requested.in_words(),
            allocatable: self.node_type.allocatable.in_words(),
        }
    }

    fn place(&mut self, index: usize) -> Result<(), Unplaceable> {
        let chosen = match self.best(index) {
            Some(node) => node,
            None => self.add_node(index)?,
        };
        self.nodes[chosen].add(index, self.groups[index], 1);
        Ok(())
    }

    /// The node with the highest score among those that take the pod.
    fn best(&self, index: usize) -> Option<usize> {
        let all = self.nodes.iter().enumerate();
        let fits = all.filter(|(_, node)| self.obstacle(index, node).is_none());
        let preferences = &self.relations.preferences[index];
        if preferences.is_empty() {
            let score = |node: &PlacedNode| self.resource_score(index, node);
            return first_of_highest(fits.map(|(at, node)| (at, score(node))));
        }
        let wish = |node: &PlacedNode| -> i64 {
            let wishes = preferences.iter();
            wishes.map(|(other, near, weight)| weight * self.near(node, *other, *near)).sum()
        };
        let fitting: Vec<(usize, i64, i64)> =
            fits.map(|(at, node)| (at, self.resource_score(index, node), wish(node))).collect();
        let least = fitting.iter().map(|it| it.2).min()?;
        let most = fitting.iter().map(|it| it.2).max()?;
        let range = (most - least).max(1);
        let scored = fitting.into_iter().map(|(at, score, wish)| {
            (at, score + AFFINITY_WEIGHT * (SCORE_MAX as i64 * (wish - least) / range))
        });
        first_of_highest(scored)
    }

    /// How many pods of a group are near a node.
    fn near(&self, node: &PlacedNode, group: usize, topology: Topology) -> i64 {
        let count = |node: &PlacedNode| i64::from(node.groups.get(&group).copied().unwrap_or(0));
        match topology {
            Topology::Node => count(node),
            Topology::Zone => {
                let others = self.nodes.iter().filter(|it| it.zone == node.zone);
                let elsewhere = others.filter(|it| it.name != node.name);
                count(node) + elsewhere.map(count).sum::<i64>()
            }
            Topology::Other => 0,
        }
    }

    fn obstacle(&self, index: usize, node: &PlacedNode) -> Option<Obstacle> {
        let group = self.groups[index];
        let left = self.node_type.allocatable.less(node.requested);
        let needs = group.requests.total();
        if needs.cpu_millicores > left.cpu_millicores {
            return Some(Obstacle::Cpu);
        }
        if needs.memory_bytes > left.memory_bytes {
            return Some(Obstacle::Memory);
        }
        if node.pods >= self.node_type.pods {
            return Some(Obstacle::Pods);
        }
        if let Err(lacks) = group.rules.admits(&node.name, &node.labels) {
            return Some(Obstacle::Node(lacks));
        }
        let apart = &self.relations.apart[index];
        let near = apart.iter().find(|(other, near)| self.near(node, *other, *near) > 0);
        if let Some((other, _)) = near {
            return Some(Obstacle::Apart(*other));
        }
        (!self.is_together(index, node)).then_some(Obstacle::Together)
    }

    /// Whether the pods that this one must be near are there. The first of pods that want one
    /// another may go anywhere.
    fn is_together(&self, index: usize, node: &PlacedNode) -> bool {
        let group = self.groups[index];
        group.rules.together.iter().all(|term| {
            let meant = || (0..self.groups.len()).filter(|it| term.selects(self.groups[*it]));
            let is_near = meant().any(|it| self.near(node, it, term.topology) > 0);
            let is_anywhere = || {
                let there = |it: usize| self.nodes.iter().any(|node| node.groups.contains_key(&it));
                meant().any(there)
            };
            is_near || (term.selects(group) && term.topology != Topology::Other && !is_anywhere())
        })
    }

    /// LeastAllocated and BalancedAllocation, as the scheduler computes them.
    fn resource_score(&self, index: usize, node: &PlacedNode) -> i64 {
        let allocatable = self.node_type.allocatable;
        let group = self.groups[index];
        let scored = node.scored.plus(group.scored.total());
        let free = |requested: u64, allocatable: u64| {
            allocatable.saturating_sub(requested) as u128 * u128::from(SCORE_MAX)
                / u128::from(allocatable)
        };
        let least = (free(scored.cpu_millicores, allocatable.cpu_millicores)
            + free(scored.memory_bytes, allocatable.memory_bytes))
            / 2;
        let requested = node.requested.plus(group.requests.total());
        let cpu = u128::from(requested.cpu_millicores) * u128::from(allocatable.memory_bytes);
        let memory = u128::from(requested.memory_bytes) * u128::from(allocatable.cpu_millicores);
        let whole = u128::from(allocatable.cpu_millicores) * u128::from(allocatable.memory_bytes);
        // The deviation of two fractions is half their difference.
        let deviation = (cpu.abs_diff(memory) * u128::from(SCORE_MAX)).div_ceil(2 * whole);
        let balanced = u128::from(SCORE_MAX).saturating_sub(deviation);
        (least + balanced) as i64
    }

    /// Adds a node that takes the pod, as an autoscaler would, and says which it is.
    fn add_node(&mut self, index: usize) -> Result<usize, Unplaceable> {
        let mut zones: Vec<u32> = (0..self.surroundings.zones.max(1)).collect();
        zones.sort_by_key(|zone| self.nodes.iter().filter(|node| node.zone == *zone).count());
        let mut names = vec![self.next_name()];
        let wanted = self.groups[index].rules.node_names();
        let is_new = |name: &&str| self.nodes.iter().all(|node| node.name != *name);
        names.extend(wanted.into_iter().filter(is_new).map(str::to_owned));
        let mut obstacle = None;
        for name in &names {
            for zone in &zones {
                let node = self.fresh(name.clone(), *zone);
                obstacle = self.obstacle(index, &node);
                if obstacle.is_none() {
                    self.nodes_named += u32::from(*name == names[0]);
                    self.nodes.push(node);
                    return Ok(self.nodes.len() - 1);
                }
            }
        }
        // An existing node with the wanted name explains more than a missing one.
        let wanted = self.groups[index].rules.node_names();
        let there = self.nodes.iter().find(|node| wanted.contains(&node.name.as_str()));
        let obstacle = there.and_then(|node| self.obstacle(index, node)).or(obstacle);
        Err(self.unplaceable(index, obstacle, there.map(|node| node.name.as_str())))
    }

    fn next_name(&self) -> String {
        let taken = |name: &str| {
            self.wanted_names.contains(&name) || self.nodes.iter().any(|node| node.name == name)
        };
        let names = (self.nodes_named + 1..).map(|number| format!("node-{number}"));
        names.into_iter().find(|name| !taken(name)).unwrap_or_default()
    }

    /// A node with nothing but its own pods.
    fn fresh(&self, name: String, zone: u32) -> PlacedNode {
        let own = [
            (HOSTNAME, name.clone()),
            (ZONE, format!("zone-{}", zone + 1)),
            (OS, "linux".to_owned()),
            (ARCHITECTURE, "amd64".to_owned()),
            (BETA_OS, "linux".to_owned()),
            (BETA_ARCHITECTURE, "amd64".to_owned()),
            (INSTANCE_TYPE, self.node_type.name.clone()),
        ];
        let mut labels: BTreeMap<String, String> =
            own.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        labels.extend(self.surroundings.labels.clone());
        let mut node = PlacedNode::empty(name, zone, labels);
        node.add_share(self.share_millicores);
        for index in self.daemons.clone() {
            let group = self.groups[index];
            if group.rules.admits(&node.name, &node.labels).is_ok() {
                node.add(index, group, group.count);
            }
        }
        node
    }

    fn unplaceable(
        &self,
        index: usize,
        obstacle: Option<Obstacle>,
        at: Option<&str>,
    ) -> Unplaceable {
        let group = self.groups[index];
        let empty = self.fresh("node".to_owned(), 0);
        let node = &self.node_type.name;
        let left = match at {
            Some(name) => format!("the node {name} that it names has no more for it"),
            None => {
                let left = self.node_type.allocatable.less(empty.requested).in_words();
                let own = if empty.pods > 0 { " beside the pods of every node" } else { "" };
                format!("an empty {node} has {left} for it{own}")
            }
        };
        let larger = match at {
            Some(_) => "leave the node's name away, or plan with --ignore-hostnames",
            None => "take a larger --node-type, or make the pod request less",
        };
        let (why, remedy) = match obstacle {
            Some(Obstacle::Cpu | Obstacle::Memory) => {
                (format!("it requests {} and {left}", group.requests.total().in_words()), larger)
            }
            Some(Obstacle::Pods) | None => {
                (format!("{node} takes {} pods at most", self.node_type.pods), "give --node-pods")
            }
            Some(Obstacle::Node(lacks)) => {
                (format!("planned nodes lack {lacks}"), "give --node-label KEY=VALUE")
            }
            Some(Obstacle::Apart(other)) => {
                let other = self.groups[other].full_name();
                let why = format!("anti-affinity keeps it from every zone with {other}");
                (why, "plan with more --zones, or keep them apart by hostname")
            }
            Some(Obstacle::Together) => (
                "the pods that its podAffinity names are nowhere it could go".to_owned(),
                "add them to the input before it, or correct the affinity",
            ),
        };
        Unplaceable::Pod { pod: group.full_name(), why, remedy: remedy.to_owned() }
    }
}

fn first_of_highest(scored: impl Iterator<Item = (usize, i64)>) -> Option<usize> {
    let best = scored.reduce(|best, it| if it.1 > best.1 { it } else { best });
    best.map(|(at, _)| at)
}

impl PlacedNode {
    fn empty(name: String, zone: u32, labels: BTreeMap<String, String>) -> Self {
        Self {
            name,
            requested: Resources::default(),
            mesh: Resources::default(),
            pods: 0,
            groups: BTreeMap::new(),
            zone,
            labels,
            scored: Resources::default(),
        }
    }

    fn add_share(&mut self, millicores: u64) {
        let share = Resources::new(millicores, 0);
        self.requested = self.requested.plus(share);
        self.scored = self.scored.plus(share);
        self.mesh = self.mesh.plus(share);
    }

    fn add(&mut self, index: usize, group: &PodGroup, count: u32) {
        let times = u64::from(count);
        self.requested = self.requested.plus(group.requests.total().times(times));
        self.scored = self.scored.plus(group.scored.total().times(times));
        self.mesh = self.mesh.plus(group.mesh.times(times));
        self.pods += count;
        *self.groups.entry(index).or_default() += count;
    }
}

impl Relations {
    fn of(groups: &[&PodGroup]) -> Self {
        let mut apart = vec![Vec::new(); groups.len()];
        let mut preferences = vec![Vec::new(); groups.len()];
        for (index, group) in groups.iter().enumerate() {
            for term in &group.rules.apart {
                for (other, _) in groups.iter().enumerate().filter(|(_, it)| term.selects(it)) {
                    apart[index].push((other, term.topology));
                    apart[other].push((index, term.topology));
                }
            }
            for (weight, term) in &group.rules.preferences {
                for (other, _) in groups.iter().enumerate().filter(|(_, it)| term.selects(it)) {
                    preferences[index].push((other, term.topology, *weight));
                    preferences[other].push((index, term.topology, *weight));
                }
            }
        }
        Self { apart, preferences }
    }
}
