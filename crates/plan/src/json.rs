//! A plan as JSON.

use serde_json::{Value, json};

use super::estimate::Inputs;
use super::estimate::{ModePlan, Plan};
use super::explain::explain;
use super::modes::Component;

/// Everything that the terminal shows, and each node with its pods.
pub fn json(inputs: &Inputs, plan: &Plan) -> Value {
    let reservations =
        Component::ALL.map(|it| (it.name().to_owned(), json!(inputs.reservations.of(it))));
    json!({
        "nodeType": plan.node_type,
        "reservations": serde_json::Map::from_iter(reservations),
        "istiodReplicas": inputs.reservations.istiod_replicas,
        "waypointReplicas": inputs.reservations.waypoint_replicas,
        "measured": inputs.reservations.measured,
        "modes": plan.modes.iter().map(mode).collect::<Vec<_>>(),
        "explanation": explain(plan),
    })
}

fn mode(mode: &ModePlan) -> Value {
    let nodes = mode.nodes.iter().map(|node| {
        let groups = mode.demand.pods.iter().chain(&mode.demand.daemons).enumerate();
        let on_it = groups.filter_map(|(index, group)| {
            let count = node.groups.get(&index)?;
            Some(json!({ "namespace": group.namespace, "name": group.name, "count": count }))
        });
        json!({
            "name": node.name,
            "requested": node.requested,
            "mesh": node.mesh,
            "podCount": node.pods,
            "pods": on_it.collect::<Vec<_>>(),
        })
    });
    json!({
        "mode": mode.mode,
        "ideal": mode.ideal,
        "allocatable": mode.allocatable,
        "placed": mode.placed,
        "nodes": nodes.collect::<Vec<_>>(),
    })
}
