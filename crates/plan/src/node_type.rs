//! Node types: what a node has, how much of it pods may use, what it costs.
//!
//! The table holds only what the provider documents. It has a price only where a published
//! calculation gives one; the user gives all other prices. Nothing here may guess what a provider
//! reserves on types without a documented formula.

use std::fmt;

use serde::Serialize;

use super::quantity::{Price, Resources};

/// The type that is planned with unless another is named.
pub const DEFAULT_NODE_TYPE: &str = "n2-standard-8";
/// Kubernetes' own limit of pods on a node.
pub(crate) const PODS_PER_NODE: u32 = 110;
const MEBIBYTE: u64 = 1 << 20;
const GIBIBYTE: u64 = 1 << 30;

/// One kind of node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeType {
    /// Its name.
    pub name: String,
    /// What the machine has.
    pub capacity: Resources,
    /// What pods may request of it.
    pub allocatable: Resources,
    /// Most pods on it.
    pub pods: u32,
    /// Monthly price of one, if it is known.
    pub price: Option<Price>,
    /// What a month costs whatever the number of nodes.
    pub fixed_fee: Price,
    /// Where the figures come from.
    pub source: String,
}

/// A row of the table.
struct Row {
    name: &'static str,
    cores: u64,
    gibibytes: u64,
    pods: u32,
    reserve: Reserve,
}

/// What the provider keeps back.
#[derive(Clone, Copy)]
enum Reserve {
    /// The published experiment: 7.5 of 8 vCPU, memory as GKE documents it, 284.385 a month each
    /// and 71.79 for the cluster.
    Experiment,
    Gke,
    Eks,
    Aks,
}

const fn row(name: &'static str, cores: u64, gibibytes: u64, pods: u32, reserve: Reserve) -> Row {
    Row { name, cores, gibibytes, pods, reserve }
}

/// EKS' limits of pods are those of the machines' network interfaces, at most 110.
const TABLE: [Row; 15] = [
    row(DEFAULT_NODE_TYPE, 8, 32, PODS_PER_NODE, Reserve::Experiment),
    row("gke/e2-standard-2", 2, 8, PODS_PER_NODE, Reserve::Gke),
    row("gke/e2-standard-4", 4, 16, PODS_PER_NODE, Reserve::Gke),
    row("gke/e2-standard-8", 8, 32, PODS_PER_NODE, Reserve::Gke),
    row("gke/n2-standard-4", 4, 16, PODS_PER_NODE, Reserve::Gke),
    row("gke/n2-standard-8", 8, 32, PODS_PER_NODE, Reserve::Gke),
    row("gke/n2-standard-16", 16, 64, PODS_PER_NODE, Reserve::Gke),
    row("eks/m5.large", 2, 8, 29, Reserve::Eks),
    row("eks/m5.xlarge", 4, 16, 58, Reserve::Eks),
    row("eks/m5.2xlarge", 8, 32, 58, Reserve::Eks),
    row("eks/m5.4xlarge", 16, 64, PODS_PER_NODE, Reserve::Eks),
    row("aks/Standard_D2s_v5", 2, 8, PODS_PER_NODE, Reserve::Aks),
    row("aks/Standard_D4s_v5", 4, 16, PODS_PER_NODE, Reserve::Aks),
    row("aks/Standard_D8s_v5", 8, 32, PODS_PER_NODE, Reserve::Aks),
    row("aks/Standard_D16s_v5", 16, 64, PODS_PER_NODE, Reserve::Aks),
];

/// Why there is no such node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeTypeError {
    /// A name that is not in the table.
    #[error(
        "the node type `{0}` is not known; known are {known}, or describe one with --vcpu, \
         --node-memory and --price",
        known = names().join(", ")
    )]
    Unknown(String),
    /// More for pods than there is.
    #[error("allocatable {what} {allocatable} is more than the node's {capacity}; give less")]
    MoreThanThereIs {
        /// `CPU` or `memory`.
        what: &'static str,
        /// What was asked for.
        allocatable: String,
        /// What there is.
        capacity: String,
    },
    /// Nothing for pods.
    #[error("a node without {0} for pods can run nothing; give more than 0")]
    Nothing(&'static str),
}

fn names() -> Vec<&'static str> {
    TABLE.iter().map(|row| row.name).collect()
}

impl NodeType {
    /// A type of the table.
    pub fn named(name: &str) -> Result<Self, NodeTypeError> {
        let row = TABLE.iter().find(|row| row.name == name);
        row.map(Row::node_type).ok_or_else(|| NodeTypeError::Unknown(name.to_owned()))
    }

    /// A machine of the user's, with what GKE's formula keeps back of it.
    pub fn custom(capacity: Resources) -> Self {
        Self {
            name: "custom".to_owned(),
            capacity,
            allocatable: capacity.less(gke_reserve(capacity)),
            pods: PODS_PER_NODE,
            price: None,
            fixed_fee: Price::default(),
            source: "as given; allocatable by GKE's documented formula unless given".to_owned(),
        }
    }

    /// Fails for a node that nothing can run on.
    pub fn check(&self) -> Result<(), NodeTypeError> {
        let Self { capacity, allocatable, .. } = self;
        let more = |what, allocatable: String, capacity: String| {
            Err(NodeTypeError::MoreThanThereIs { what, allocatable, capacity })
        };
        if allocatable.cpu_millicores > capacity.cpu_millicores {
            return more("CPU", allocatable.cores(), capacity.cores());
        }
        if allocatable.memory_bytes > capacity.memory_bytes {
            let gibibytes = |it: &Resources| format!("{} GiB", it.gibibytes());
            return more("memory", gibibytes(allocatable), gibibytes(capacity));
        }
        if allocatable.cpu_millicores == 0 {
            return Err(NodeTypeError::Nothing("CPU"));
        }
        if allocatable.memory_bytes == 0 {
            return Err(NodeTypeError::Nothing("memory"));
        }
        if self.pods == 0 { Err(NodeTypeError::Nothing("place")) } else { Ok(()) }
    }

    /// What so many of them cost, if the price is known.
    pub(crate) fn monthly(&self, nodes: u32) -> Option<Price> {
        self.price.map(|price| price.for_nodes(nodes, self.fixed_fee))
    }
}

impl fmt::Display for NodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, capacity, allocatable, pods, .. } = self;
        let (cores, gibibytes) = (capacity.cores(), capacity.gibibytes());
        write!(f, "{name}: {cores} vCPU and {gibibytes} GiB, of which pods may request ")?;
        write!(f, "{} and {}; at most {pods} pods", allocatable.cores(), allocatable.gibibytes())?;
        match self.price {
            None => f.write_str("; price not known, give --price"),
            Some(price) => {
                let exact =
                    |it: Price| format!("{}.{:03}", it.0 / 1_000_000, it.0 % 1_000_000 / 1000);
                write!(f, "; {} a month each and {} fixed", exact(price), self.fixed_fee)
            }
        }
    }
}

impl Row {
    fn node_type(&self) -> NodeType {
        let capacity = Resources::new(self.cores * 1000, self.gibibytes * GIBIBYTE);
        let reserved = match self.reserve {
            Reserve::Experiment => Resources { cpu_millicores: 500, ..gke_reserve(capacity) },
            Reserve::Gke => gke_reserve(capacity),
            Reserve::Eks => eks_reserve(capacity, self.pods),
            Reserve::Aks => aks_reserve(capacity, self.pods),
        };
        let (price, fixed_fee) = match self.reserve {
            Reserve::Experiment => {
                (Some(Price::of_thousandths(284_385)), Price::of_thousandths(71_790))
            }
            _ => (None, Price::default()),
        };
        let source = match self.reserve {
            Reserve::Experiment => {
                "the published experiment: 7.5 of 8 vCPU for pods, and its prices"
            }
            Reserve::Gke => "GKE's documented reservations",
            Reserve::Eks => "EKS' documented reservations and pods per machine",
            Reserve::Aks => "AKS' documented reservations (1.29 and later, 110 pods)",
        };
        NodeType {
            name: self.name.to_owned(),
            capacity,
            allocatable: capacity.less(reserved),
            pods: self.pods,
            price,
            fixed_fee,
            source: source.to_owned(),
        }
    }
}

/// 6 % of the first core, 1 % of the second, 0.5 % of the next two, 0.25 % of the rest, rounded up.
/// GKE and EKS agree on it.
fn reserved_millicores(millicores: u64) -> u64 {
    let band = |from: u64, to: u64| millicores.clamp(from, to) - from;
    let parts = band(0, 1000) * 600
        + band(1000, 2000) * 100
        + band(2000, 4000) * 50
        + band(4000, u64::MAX) * 25;
    parts.div_ceil(10_000)
}

/// 25 % of the first 4 GiB, 20 % of the next 4, 10 % of the next 8, 6 % of the next 112, 2 % of the
/// rest, and 100 MiB for eviction. Below 1 GiB, 255 MiB and the same.
fn gke_reserve(capacity: Resources) -> Resources {
    let bytes = capacity.memory_bytes;
    let band = |from: u64, to: u64| bytes.clamp(from * GIBIBYTE, to * GIBIBYTE) - from * GIBIBYTE;
    let above = bytes.saturating_sub(128 * GIBIBYTE);
    let percents =
        band(0, 4) * 25 + band(4, 8) * 20 + band(8, 16) * 10 + band(16, 128) * 6 + above * 2;
    let kept = if bytes < GIBIBYTE { 255 * MEBIBYTE } else { percents.div_ceil(100) };
    Resources::new(reserved_millicores(capacity.cpu_millicores), kept + 100 * MEBIBYTE)
}

/// 255 MiB and 11 MiB for each pod, and 100 MiB for eviction.
fn eks_reserve(capacity: Resources, pods: u32) -> Resources {
    let mebibytes = 255 + 11 * u64::from(pods) + 100;
    Resources::of_mebibytes(reserved_millicores(capacity.cpu_millicores), mebibytes)
}

/// 60, 100, 140, 180 and 260 millicores for 1, 2, 4, 8 and 16 cores; 50 MiB and 20 MiB for each
/// pod but at most a quarter, and 100 MiB for eviction.
fn aks_reserve(capacity: Resources, pods: u32) -> Resources {
    let millicores = match capacity.cpu_millicores / 1000 {
        0 | 1 => 60,
        2 | 3 => 100,
        4..=7 => 140,
        8..=15 => 180,
        _ => 260,
    };
    let kubelet = (50 + 20 * u64::from(pods)) * MEBIBYTE;
    let kept = kubelet.min(capacity.memory_bytes / 4) + 100 * MEBIBYTE;
    Resources::new(millicores, kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocatable_is_as_documented() {
        let check = |name: &str, cores: &str, gibibytes: &str| {
            let node = NodeType::named(name).unwrap();
            let got = (node.allocatable.cores(), node.allocatable.gibibytes());
            assert_eq!(got, (cores.to_owned(), gibibytes.to_owned()), "{name}");
            node.check().unwrap();
        };
        check("n2-standard-8", "7.5", "28.34");
        // 8 cores: 60 + 10 + 10 + 10 millicores; 32 GiB: 1 + 0.8 + 0.8 + 0.96 GiB and 100 MiB.
        check("gke/n2-standard-8", "7.91", "28.34");
        check("gke/e2-standard-4", "3.92", "13.3");
        // 255 + 11 * 58 + 100 MiB.
        check("eks/m5.xlarge", "3.92", "15.03");
        check("eks/m5.large", "1.93", "7.34");
        // 50 + 20 * 110 + 100 MiB.
        check("aks/Standard_D4s_v5", "3.86", "13.71");
        check("aks/Standard_D2s_v5", "1.9", "5.9");
        names().iter().for_each(|name| NodeType::named(name).unwrap().check().unwrap());
    }

    #[test]
    fn nodes_that_cannot_be_are_refused() {
        let unknown = NodeType::named("m99").unwrap_err().to_string();
        assert!(unknown.contains("`m99`") && unknown.contains("eks/m5.large"), "{unknown}");
        let small = NodeType::custom(Resources::of_mebibytes(1000, 512));
        assert_eq!(small.allocatable, Resources::of_mebibytes(940, 512 - 355));
        small.check().unwrap();
        let big = NodeType { allocatable: Resources::of_mebibytes(1001, 1), ..small.clone() };
        let expected = "allocatable CPU 1.001 is more than the node's 1; give less";
        assert_eq!(big.check().unwrap_err().to_string(), expected);
        let none = NodeType { allocatable: Resources::of_mebibytes(0, 1), ..small };
        let expected = "a node without CPU for pods can run nothing; give more than 0";
        assert_eq!(none.check().unwrap_err().to_string(), expected);
    }
}
