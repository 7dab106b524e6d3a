//! The three estimates: ideal division, division by allocatable, placement.
//!
//! Both divisions treat all pods as one liquid and ask how many nodes hold it; they ignore whole
//! pods, the limit of pods and placement rules. What runs on every node is first subtracted from
//! each node. The arithmetic is on integers.

use serde::Serialize;

use super::modes::{Application, Demand, MODES, Mode, Reservations};
use super::node_type::{NodeType, NodeTypeError};
use super::placement::{self, PlacedNode, Surroundings, Unplaceable};
use super::quantity::{Price, Resources};

/// All that a plan depends on.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// What runs without a mesh.
    pub application: Application,
    /// On which nodes.
    pub node_type: NodeType,
    /// What the mesh's components reserve.
    pub reservations: Reservations,
    /// Zones and labels of the nodes.
    pub surroundings: Surroundings,
}

/// Most pods of one plan.
pub const PODS_MAX: u64 = 20_000;

/// How many nodes, and what they cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// The requests to all nodes together.
    pub requested: Resources,
    /// How many nodes.
    pub nodes: u32,
    /// Their price, if it is known.
    pub monthly: Option<Price>,
}

/// One mode's estimates.
#[derive(Clone, Debug)]
pub struct ModePlan {
    /// The mode.
    pub mode: &'static str,
    /// All of a node's capacity is for pods, and pods are a liquid.
    pub ideal: Estimate,
    /// The allocatable part of a node is for pods, and pods are a liquid.
    pub allocatable: Estimate,
    /// Pods are whole.
    pub placed: Estimate,
    /// The placed estimate's nodes.
    pub nodes: Vec<PlacedNode>,
    pub(crate) demand: Demand,
    /// What each node reserves before any pod comes.
    pub(crate) per_node: Resources,
}

/// All modes' estimates.
#[derive(Clone, Debug)]
pub struct Plan {
    /// With which nodes.
    pub node_type: NodeType,
    /// In the order of the table of modes.
    pub modes: Vec<ModePlan>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A node that cannot be.
    #[error(transparent)]
    Node(#[from] NodeTypeError),
    /// Nothing to plan.
    #[error("the input has no pods; name manifests with some, or give --pods, --cpu and --memory")]
    NoPods,
    /// More than is placed in reasonable time.
    #[error("{0} pods are too many for one plan; plan at most {PODS_MAX}, a node pool at a time")]
    TooManyPods(u64),
    /// Pods that go nowhere.
    #[error("plan mode {mode}")]
    Unplaceable {
        /// In which mode.
        mode: &'static str,
        /// Which, and why.
        #[source]
        source: Unplaceable,
    },
}

/// Plans every mode.
pub fn plan(inputs: &Inputs) -> Result<Plan, PlanError> {
    inputs.node_type.check()?;
    check_size(&inputs.application)?;
    let modes = MODES.iter().map(|mode| {
        let planned = plan_mode(mode, inputs);
        planned.map_err(|source| PlanError::Unplaceable { mode: mode.name, source })
    });
    Ok(Plan { modes: modes.collect::<Result<_, _>>()?, node_type: inputs.node_type.clone() })
}

fn check_size(application: &Application) -> Result<(), PlanError> {
    match application.pods.iter().map(|it| u64::from(it.count)).sum() {
        0 => Err(PlanError::NoPods),
        count if count > PODS_MAX => Err(PlanError::TooManyPods(count)),
        _ => Ok(()),
    }
}

fn plan_mode(mode: &Mode, inputs: &Inputs) -> Result<ModePlan, Unplaceable> {
    let Inputs { application, node_type, reservations, surroundings } = inputs;
    let demand = mode.demand(application, reservations);
    // Without any share first: what fails so can never be placed.
    let unloaded = placement::place(&demand, node_type, surroundings, 0)?;
    let per_node = placement::per_node(&demand, node_type, surroundings);
    let liquid = Liquid::of(&demand, per_node);
    let ideal = liquid.estimate(node_type.capacity, node_type);
    let allocatable = liquid.estimate(node_type.allocatable, node_type);
    let (nodes, share) = match demand.shared_millicores {
        0 => (unloaded, 0),
        _ => place_with_share(&demand, inputs, allocatable.nodes)?,
    };
    let count = nodes.len() as u32;
    let requested = nodes.iter().fold(Resources::default(), |sum, it| sum.plus(it.requested));
    let placed = Estimate { requested, nodes: count, monthly: node_type.monthly(count) };
    let per_node = liquid.per_node.plus(Resources::new(share, 0));
    Ok(ModePlan { mode: mode.name, ideal, allocatable, placed, nodes, demand, per_node })
}

/// The fewest nodes on which everything fits when each carries its share of what all node proxies
/// need together.
fn place_with_share(
    demand: &Demand,
    inputs: &Inputs,
    least: u32,
) -> Result<(Vec<PlacedNode>, u64), Unplaceable> {
    let Inputs { node_type, surroundings, .. } = inputs;
    let share = |nodes: u32| demand.shared_millicores.div_ceil(u64::from(nodes));
    let place = |nodes: u32| placement::place(demand, node_type, surroundings, share(nodes));
    let suffices = |nodes: u32| place(nodes).is_ok_and(|it| it.len() <= nodes as usize);
    let mut below = least.max(1) - 1;
    let mut enough = least.max(1);
    while !suffices(enough) {
        if share(enough) <= 1 {
            // More nodes do not make it less: so many it takes.
            below = enough;
            enough = place(enough)?.len() as u32;
            break;
        }
        below = enough;
        enough = enough.saturating_mul(2);
    }
    while enough - below > 1 {
        let middle = below.midpoint(enough);
        if suffices(middle) { enough = middle } else { below = middle }
    }
    let mut nodes = place(enough)?;
    placement::pad(&mut nodes, enough as usize, demand, node_type, surroundings);
    Ok((nodes, share(enough)))
}

/// A demand without its pods' edges.
struct Liquid {
    total: Resources,
    per_node: Resources,
}

impl Liquid {
    fn of(demand: &Demand, per_node: Resources) -> Self {
        let pods = demand.pods.iter().map(|it| it.requests.total().times(u64::from(it.count)));
        let shared = Resources::new(demand.shared_millicores, 0);
        Self { total: pods.fold(shared, Resources::plus), per_node }
    }

    /// The fewest nodes of `node` that hold it.
    fn estimate(&self, node: Resources, node_type: &NodeType) -> Estimate {
        let left = node.less(self.per_node);
        // If nothing of a resource is left, nothing requests it either, or nothing was placeable.
        let divided = |total: u64, left: u64| total.div_ceil(left.max(1));
        let by_cpu = divided(self.total.cpu_millicores, left.cpu_millicores);
        let by_memory = divided(self.total.memory_bytes, left.memory_bytes);
        let nodes = u32::try_from(by_cpu.max(by_memory)).unwrap_or(u32::MAX);
        Estimate {
            requested: self.total.plus(self.per_node.times(u64::from(nodes))),
            nodes,
            monthly: node_type.monthly(nodes),
        }
    }
}
