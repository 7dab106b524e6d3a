//! Why the three estimates differ, in words made of the plan's own figures.

use std::collections::BTreeMap;

use super::chart::{alike, nodes};
use super::estimate::{ModePlan, Plan};
use super::node_type::NodeType;
use super::placement::PlacedNode;
use super::pods::Part;
use super::quantity::Resources;

/// One sentence or two for each mode, then how the modes compare.
pub fn explain(plan: &Plan) -> Vec<String> {
    let mut sentences: Vec<String> =
        plan.modes.iter().map(|mode| mode_in_words(mode, &plan.node_type)).collect();
    sentences.extend(comparison(plan));
    sentences
}

fn mode_in_words(mode: &ModePlan, node_type: &NodeType) -> String {
    let mut text = format!("{}: {}", mode.mode, divisions(mode, node_type));
    let (placed, divided) = (mode.placed.nodes, mode.allocatable.nodes);
    if placed == divided {
        return text + &format!("; placing whole pods needs those {placed} too.");
    }
    let more = placed.saturating_sub(divided);
    text += &format!("; whole pods need {placed}, {more} more than if a pod could be split. ");
    let kinds = alike(mode);
    let typical = kinds.iter().max_by_key(|kind| kind.count);
    let crowd = typical.and_then(|kind| Some((kind, crowd(mode, kind.node)?)));
    let Some((kind, (pods, needs))) = crowd else { return text };
    let left = node_type.allocatable.less(kind.node.requested);
    let count =
        if kind.count == 1 { "One node".to_owned() } else { format!("{} nodes", kind.count) };
    let each = if kind.count == 1 { "holds" } else { "hold" };
    text += &format!(
        "{count} {each} {pods} pods of {needs} and {}. ",
        stopped(left, needs, kind.node, node_type)
    );
    let idle = node_type.allocatable.times(u64::from(placed)).less(mode.placed.requested);
    text += &format!(
        "On all {placed} together {} vCPU and {} GiB are paid for and stay free.",
        idle.cores(),
        idle.gibibytes()
    );
    text
}

/// The sum that the two divisions do, for the resource that decides.
fn divisions(mode: &ModePlan, node_type: &NodeType) -> String {
    let Resources { cpu_millicores: cpu, memory_bytes: memory } = node_type.allocatable;
    let asked = mode.allocatable.requested;
    let by_cpu = u128::from(asked.cpu_millicores) * u128::from(memory)
        >= u128::from(asked.memory_bytes) * u128::from(cpu);
    let shown = |it: Resources| if by_cpu { it.cores() } else { it.gibibytes() };
    let unit = if by_cpu { "vCPU" } else { "GiB" };
    let of_pods = mode.demand.pods.iter().map(|it| it.requests.total().times(u64::from(it.count)));
    let of_pods = of_pods.fold(Resources::default(), Resources::plus);
    let less = if mode.per_node == Resources::default() {
        String::new()
    } else {
        format!(", less {} for what runs on each,", shown(mode.per_node))
    };
    format!(
        "{} {unit} of pods over nodes of {}{less} is {}, over the {} that pods may request {}",
        shown(of_pods),
        shown(node_type.capacity),
        nodes(mode.ideal.nodes as usize),
        shown(node_type.allocatable),
        mode.allocatable.nodes
    )
}

/// The most frequent size of the application's pods on a node, and how many have it.
fn crowd(mode: &ModePlan, node: &PlacedNode) -> Option<(u32, Resources)> {
    let mut sizes: BTreeMap<Resources, u32> = BTreeMap::new();
    for (index, count) in &node.groups {
        let group = mode.demand.pods.get(*index);
        if let Some(group) = group.filter(|it| it.part == Part::Application) {
            *sizes.entry(group.requests.total()).or_default() += count;
        }
    }
    sizes.into_iter().max_by_key(|(_, count)| *count).map(|(needs, count)| (count, needs))
}

/// What keeps one more pod of this size off a node.
fn stopped(left: Resources, needs: Resources, node: &PlacedNode, node_type: &NodeType) -> String {
    if needs.cpu_millicores > left.cpu_millicores {
        format!("{} vCPU are left, less than one more needs", left.cores())
    } else if needs.memory_bytes > left.memory_bytes {
        format!("{} GiB are left, less than one more needs", left.gibibytes())
    } else if node.pods >= node_type.pods {
        format!("no more than {} pods are allowed", node_type.pods)
    } else {
        "have room, but rules keep pods apart or there are no more".to_owned()
    }
}

/// What each mode costs beside the first, by the placed estimate.
fn comparison(plan: &Plan) -> Option<String> {
    let (first, others) = plan.modes.split_first()?;
    let base = i64::from(first.placed.nodes);
    let each = others.iter().map(|mode| {
        let more = i64::from(mode.placed.nodes) - base;
        let cost = match (first.placed.monthly, mode.placed.monthly) {
            (Some(before), Some(now)) if before.cents() > 0 => {
                let more = i128::from(now.cents()) - i128::from(before.cents());
                let tenths = more * 1000 / i128::from(before.cents());
                let sign = if tenths < 0 { "-" } else { "+" };
                let tenths = tenths.abs();
                format!(" ({sign}{}.{} % of its price)", tenths / 10, tenths % 10)
            }
            _ => String::new(),
        };
        {
            let sign = if more < 0 { "-" } else { "+" };
            format!("{} {sign}{}{cost}", mode.mode, nodes(more.unsigned_abs() as usize))
        }
    });
    let each: Vec<String> = each.collect();
    Some(format!("Beside {}, by whole pods: {}.", first.mode, each.join(", ")))
}
