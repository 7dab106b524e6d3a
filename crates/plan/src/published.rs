//! The published experiment's two tables, from their own inputs, and where they do not add up.
//!
//! 200 pods of 700m/500Mi in 50 namespaces on n2-standard-8, once over 8 vCPU and once over the 7.5
//! that pods may request. The tables count neither the control plane nor the capturing agent, and
//! take 1000 Mi for a GB.

use std::collections::BTreeSet;

use super::estimate::Inputs;
use super::estimate::{Estimate, Plan, PlanError, plan};
use super::modes::{Application, Component, MODES, Reservations};
use super::node_type::{DEFAULT_NODE_TYPE, NodeType, NodeTypeError};
use super::placement::Surroundings;
use super::pods::PodGroup;
use super::quantity::{Price, Resources};

const NAMESPACES: u32 = 50;
const DEPLOYMENTS: [&str; 4] =
    ["tier-1-app-a", "tier-2-app-a-v1", "tier-2-app-b-v1", "tier-3-app-a-v1"];
const POD: Resources = Resources::of_mebibytes(700, 500);
/// More nodes than any published price can mean.
const NODES_MAX: u32 = 1000;

/// The published figures of one mode. Prices are in cents.
#[derive(Clone, Copy, Debug)]
pub struct PublishedRow {
    cores: u64,
    gigabytes: u64,
    ideal: (u32, u64),
    allocatable: (u32, u64),
}

/// In the order of the table of modes.
const PUBLISHED: [PublishedRow; 4] = [
    row(140, 100, (18, 519_072), (19, 547_511)),
    row(190, 126, (24, 689_703), (26, 746_580)),
    row(144, 110, (18, 519_072), (20, 575_949)),
    row(149, 117, (19, 547_511), (20, 632_826)),
];

const fn row(
    cores: u64,
    gigabytes: u64,
    ideal: (u32, u64),
    allocatable: (u32, u64),
) -> PublishedRow {
    PublishedRow { cores, gigabytes, ideal, allocatable }
}

/// The published tables, compared with the results of their inputs.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// For each mode: its name, then published and computed vCPU, GB, nodes and price of the ideal
    /// division, nodes and price of that by allocatable.
    pub rows: Vec<Vec<String>>,
    /// Where the two differ, and what lies behind it.
    pub remarks: Vec<String>,
}

impl Comparison {
    /// The header of the rows.
    pub const HEADER: [&'static str; 7] =
        ["PUBLISHED / COMPUTED", "vCPU", "GB", "NODES OF 8", "$/MONTH", "NODES OF 7.5", "$/MONTH"];
}

/// The tables' own inputs.
pub fn published_inputs() -> Result<Inputs, NodeTypeError> {
    let namespaces: Vec<String> = (1..=NAMESPACES).map(|it| format!("ns-{it}")).collect();
    let pods = namespaces
        .iter()
        .flat_map(|namespace| DEPLOYMENTS.map(|name| PodGroup::plain(namespace, name, 1, POD)));
    let mut reservations = Reservations::default();
    reservations.set(Component::Cni, Resources::default());
    reservations.set(Component::Istiod, Resources::default());
    let service_namespaces = BTreeSet::from_iter(namespaces.clone());
    Ok(Inputs {
        application: Application { pods: pods.collect(), daemons: vec![], service_namespaces },
        node_type: NodeType::named(DEFAULT_NODE_TYPE)?,
        reservations,
        surroundings: Surroundings::default(),
    })
}

/// Whether an application is the published one, whatever its names.
pub fn is_published(application: &Application) -> bool {
    let pods = application.pods.iter();
    let alike = pods.clone().filter(|it| it.count > 0).all(|it| it.requests.total() == POD);
    let count: u32 = pods.map(|it| it.count).sum();
    alike
        && count == NAMESPACES * DEPLOYMENTS.len() as u32
        && application.daemons.is_empty()
        && application.service_namespaces.len() == NAMESPACES as usize
}

/// Compares a plan of [`published_inputs`] with the tables.
pub fn compare(inputs: &Inputs, planned: &Plan) -> Result<Comparison, PlanError> {
    let mut remarks = vec![
        "GB are counted as 1000 Mi there: 200 pods of 500Mi are 97.66 GiB, published as 100. \
         vCPU and GB are those of the nodes by 7.5; istio-cni and istiod are not counted."
            .to_owned(),
    ];
    let rows = PUBLISHED.iter().zip(&planned.modes).map(|(published, mode)| {
        let totals = mode.allocatable.requested;
        let cores = (totals.cpu_millicores + 500) / 1000;
        let gigabytes = ((totals.memory_bytes >> 20) + 500) / 1000;
        let mut row = vec![
            mode.mode.to_owned(),
            beside(published.cores, cores),
            beside(published.gigabytes, gigabytes),
        ];
        for (published, computed) in
            [(published.ideal, mode.ideal), (published.allocatable, mode.allocatable)]
        {
            row.push(beside(published.0, computed.nodes));
            let price = computed.monthly.unwrap_or_default();
            row.push(beside(dollars(published.1), price.to_string()));
            remarks.extend(price_remark(mode.mode, published, computed, &planned.node_type));
        }
        row
    });
    let rows = rows.collect();
    remarks.push(doubled(inputs)?);
    Ok(Comparison { rows, remarks })
}

fn beside<T: PartialEq + ToString>(published: T, computed: T) -> String {
    let (left, right) = (published.to_string(), computed.to_string());
    if published == computed { format!("{left} = {right}") } else { format!("{left} # {right}") }
}

fn dollars(cents: u64) -> String {
    Price::of_thousandths(cents * 10).to_string()
}

/// How many nodes a published price is really for, if it is not for those beside it.
fn price_remark(
    mode: &str,
    (nodes, cents): (u32, u64),
    computed: Estimate,
    node_type: &NodeType,
) -> Option<String> {
    let price_of = |nodes: u32| node_type.monthly(nodes);
    if price_of(nodes)?.cents() == cents && computed.nodes == nodes {
        return None;
    }
    let meant = (1..=NODES_MAX).find(|it| price_of(*it).is_some_and(|it| it.cents() == cents));
    let meant = meant.map_or("no number of".to_owned(), |it| it.to_string());
    Some(format!(
        "{mode}: the published {} is the price of {meant} nodes; the {nodes} nodes beside it cost \
         {}, and {} nodes come out of its inputs.",
        dollars(cents),
        price_of(nodes)?,
        computed.nodes
    ))
}

/// What the last row would be if its waypoints were what its name says, highly available.
fn doubled(inputs: &Inputs) -> Result<String, PlanError> {
    let mut twice = inputs.clone();
    twice.reservations.waypoint_replicas = 2;
    let planned = plan(&twice)?;
    let last = planned.modes.last().expect("there are modes");
    Ok(format!(
        "{}: the published 149 vCPU hold one waypoint replica for each namespace; two, as \"highly \
         available\" says, are {} vCPU: {} nodes by 7.5 and {} placed.",
        MODES[MODES.len() - 1].name,
        last.allocatable.requested.cores(),
        last.allocatable.nodes,
        last.placed.nodes
    ))
}
