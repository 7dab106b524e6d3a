//! What a machine makes of manifests before it takes them: the same for `ambit apply`, and for who
//! writes through the Kubernetes API.
//!
//! It only judges; that nothing which is refused here is stored is the caller's duty.

use std::collections::BTreeSet;

use ambit_manifest::{Errors, Finding, Kind, Manifests, Typed};

use crate::import::ImageArguments;
use crate::objects::refused_fields;
use crate::unknown_images::unknown_images;

/// What manifests mean beside the objects that are there: the surprises, also if there are errors,
/// and the errors. These are references to nothing, nodes that the machine does not have, fields
/// that it refuses, and images that mean nothing.
pub fn judge(
    manifests: &Manifests,
    existing: &[Typed],
    images: &ImageArguments,
) -> (Vec<Finding>, Vec<Finding>) {
    let (surprises, mut errors) = match manifests.check(existing) {
        Ok(surprises) => (surprises, Vec::new()),
        Err(Errors(errors)) => (Vec::new(), errors),
    };
    errors.extend(unknown_nodes(manifests, existing));
    errors.extend(refused_fields(manifests));
    errors.extend(unknown_images(manifests, Some(&images.commands), &images.sources));
    (surprises, errors)
}

/// Nodes that the machine does not have, if it is known which it has.
fn unknown_nodes(manifests: &Manifests, existing: &[Typed]) -> Vec<Finding> {
    let is_node = |it: &&Typed| it.kind() == Kind::Node;
    let names = existing.iter().filter(is_node).filter_map(|it| it.metadata().name.as_deref());
    let names: BTreeSet<&str> = names.collect();
    // node-10 comes behind node-9.
    let number = |name: &&&str| (name.len(), name.to_string());
    let ends = (names.iter().min_by_key(number), names.iter().max_by_key(number));
    let (Some(first), Some(last)) = ends else { return Vec::new() };
    let remedy = match names.len() {
        1 => format!("call it {first}, or start more nodes with `ambit up --nodes`"),
        _ => format!("name one of {first} to {last}, or start more with `ambit up --nodes`"),
    };
    let unknown = manifests
        .objects
        .iter()
        .filter(|object| object.key.kind == Kind::Node && !names.contains(&*object.key.name));
    let what = "it is none of the machine's nodes";
    unknown.map(|object| object.finding("metadata.name", what, remedy.clone())).collect()
}

#[cfg(test)]
mod tests {
    use ambit_manifest::{Input, Unenforced};

    use super::*;
    use crate::node_labels::NodeLabels;

    #[test]
    fn a_node_is_one_of_the_machines() {
        let manifest = |name: &str| {
            let text = format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n");
            let input = Input::Text { name: "t.yaml".to_owned(), text };
            ambit_manifest::load_as(&[input], Unenforced::Refused).expect("it is a Node")
        };
        let nodes = (1..=2).map(|number| {
            let node = crate::node_object(number, &NodeLabels::default()).to_string();
            ambit_manifest::stored(Kind::Node, node.as_bytes()).expect("it is a Node")
        });
        let nodes: Vec<Typed> = nodes.collect();
        let errors = |name: &str, nodes: &[Typed]| {
            let (_, errors) = judge(&manifest(name), nodes, &ImageArguments::default());
            errors.into_iter().map(|it| it.to_string()).collect::<Vec<_>>()
        };
        assert!(errors("node-2", &nodes).is_empty());
        assert!(errors("worker", &[]).is_empty(), "it is not known which there are");
        let expected = "t.yaml:3: Node worker: metadata.name: it is none of the machine's nodes; \
                        name one of node-1 to node-2, or start more with `ambit up --nodes`";
        assert_eq!(errors("worker", &nodes), [expected]);
    }
}
