//! How full each node is, for a terminal: a bar for each node, identical nodes on one line.

use std::fmt::Write;

use super::estimate::{ModePlan, Plan};
use super::placement::PlacedNode;
use super::quantity::Resources;

/// Characters of a whole bar.
const BAR_WIDTH: u64 = 40;
/// Lines of one mode; the rest is counted.
const LINES_MAX: usize = 24;

/// The resource that is drawn: the one that is used more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    Cpu,
    Memory,
}

impl Axis {
    pub(crate) fn of(plan: &Plan) -> Self {
        let used = plan.modes.iter().map(|it| it.placed.requested);
        let used = used.fold(Resources::default(), Resources::plus);
        let node = plan.node_type.allocatable;
        let cpu = u128::from(used.cpu_millicores) * u128::from(node.memory_bytes);
        let memory = u128::from(used.memory_bytes) * u128::from(node.cpu_millicores);
        if cpu >= memory { Self::Cpu } else { Self::Memory }
    }

    pub(crate) fn part(self, of: Resources) -> u64 {
        match self {
            Self::Cpu => of.cpu_millicores,
            Self::Memory => of.memory_bytes,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "vCPU",
            Self::Memory => "memory",
        }
    }

    pub(crate) fn shown(self, of: Resources) -> String {
        match self {
            Self::Cpu => format!("{} vCPU", of.cores()),
            Self::Memory => format!("{} GiB", of.gibibytes()),
        }
    }
}

/// Nodes that are alike.
pub(crate) struct Alike<'a> {
    pub(crate) count: usize,
    pub(crate) node: &'a PlacedNode,
}

/// The nodes of a mode grouped by their content, in the order of the first of each group.
pub(crate) fn alike(mode: &ModePlan) -> Vec<Alike<'_>> {
    let mut kinds: Vec<Alike<'_>> = Vec::new();
    for node in &mode.nodes {
        let is_like = |it: &&mut Alike<'_>| {
            (it.node.requested, it.node.mesh, it.node.pods)
                == (node.requested, node.mesh, node.pods)
        };
        match kinds.iter_mut().find(is_like) {
            Some(kind) => kind.count += 1,
            None => kinds.push(Alike { count: 1, node }),
        }
    }
    kinds
}

/// Bars of all modes, and what their characters mean.
pub fn chart(plan: &Plan) -> String {
    let axis = Axis::of(plan);
    let allocatable = axis.shown(plan.node_type.allocatable);
    let mut text = format!(
        "How full each node is: {} of the {allocatable} that pods may request\n\
         # application, + mesh, . free\n",
        axis.name()
    );
    for mode in &plan.modes {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\n{}, {}", mode.mode, nodes(mode.placed.nodes as usize));
        let kinds = alike(mode);
        let width = kinds.iter().map(|it| nodes(it.count).len()).max().unwrap_or_default();
        for kind in kinds.iter().take(LINES_MAX) {
            let _ =
                writeln!(text, "  {:>width$} {}", nodes(kind.count), bar(plan, axis, kind.node));
        }
        let more: usize = kinds.iter().skip(LINES_MAX).map(|it| it.count).sum();
        if more > 0 {
            let _ = writeln!(text, "  and {} more, each unlike the others", nodes(more));
        }
    }
    text
}

/// So many nodes, in words.
pub(crate) fn nodes(count: usize) -> String {
    if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") }
}

fn bar(plan: &Plan, axis: Axis, node: &PlacedNode) -> String {
    let whole = axis.part(plan.node_type.allocatable);
    let columns = |amount: u64| {
        let wide = u128::from(amount) * u128::from(BAR_WIDTH) + u128::from(whole) / 2;
        (wide / u128::from(whole)) as usize
    };
    let (used, mesh) = (axis.part(node.requested), axis.part(node.mesh));
    let (application, all) = (columns(used - mesh), columns(used));
    let percent = u128::from(used) * 100 / u128::from(whole);
    let other = match axis {
        Axis::Cpu => Axis::Memory,
        Axis::Memory => Axis::Cpu,
    };
    format!(
        "|{}{}{}| {} ({percent} %), {}, {} pods",
        "#".repeat(application),
        "+".repeat(all - application),
        ".".repeat((BAR_WIDTH as usize).saturating_sub(all)),
        axis.shown(node.requested),
        other.shown(node.requested),
        node.pods
    )
}
