//! Labels of nodes that a command gives: `--node-labels`.
//!
//! They are a machine's own for as long as it lives: a Node manifest adds to them or gives them
//! other values, and whoever removes one gets it back.

use std::collections::BTreeMap;

use ambit_manifest::names::{label_value, qualified_name};
use ambit_words::labels::{ARCHITECTURE, BETA_ARCHITECTURE, BETA_OS, HOSTNAME, JOINED, OS};
use serde::{Deserialize, Serialize};

use crate::addresses::NodeNetwork;

/// Labels that say what a node is, and that nothing else than the machine sets.
pub(crate) const FIXED: [&str; 6] =
    [HOSTNAME, JOINED, OS, ARCHITECTURE, BETA_OS, BETA_ARCHITECTURE];

/// Labels by node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeLabels(BTreeMap<String, BTreeMap<String, String>>);

/// A `--node-labels` that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("--node-labels {written:?}: {what}; write [NODE:]KEY=VALUE,..., as in node-1:disk=ssd")]
pub struct NodeLabelsError {
    written: String,
    what: String,
}

impl NodeLabels {
    /// Reads what a command says. Labels without a node are of all `nodes`; those of a node that
    /// is named come before them.
    pub fn all(written: &[String], nodes: u8) -> Result<Self, NodeLabelsError> {
        let names: Vec<String> =
            (1..=nodes).map(|number| NodeNetwork::new(number).name()).collect();
        let (mut of_all, mut of_one) = (BTreeMap::new(), Self::default());
        for text in written {
            let wrong = |what| NodeLabelsError { written: text.clone(), what };
            let (node, labels) = match text.split_once(':') {
                Some((node, labels)) => (Some(node), labels),
                None => (None, text.as_str()),
            };
            let labels = labels.split(',').map(label).collect::<Result<Vec<_>, _>>();
            let labels = labels.map_err(wrong)?;
            match node {
                None => of_all.extend(labels),
                Some(node) if names.iter().any(|name| name == node) => {
                    of_one.0.entry(node.to_owned()).or_default().extend(labels);
                }
                Some(node) => {
                    let last = names.last().map_or("", String::as_str);
                    let what = format!("there is no {node}; the nodes are node-1 to {last}");
                    return Err(wrong(what));
                }
            }
        }
        let of = |name: String| {
            let mut labels = of_all.clone();
            labels.extend(of_one.of(&name).map(|(key, value)| (key.clone(), value.clone())));
            (name, labels)
        };
        Ok(Self(names.into_iter().map(of).collect()))
    }

    /// The labels of a node.
    pub(crate) fn of(&self, node: &str) -> impl Iterator<Item = (&String, &String)> {
        self.0.get(node).into_iter().flatten()
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("{text:?} has no `=`"))?;
    if let Some(what) = qualified_name(key).or_else(|| label_value(value)) {
        return Err(what);
    }
    if FIXED.contains(&key) {
        return Err(format!("{key} says what the node is, and cannot be another"));
    }
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_of_all_nodes_or_of_one() {
        let written = ["node-2:disk=ssd,tier=gold", "tier=iron", "node-2:gpu="].map(str::to_owned);
        let labels = NodeLabels::all(&written, 2).expect("they are labels");
        let of = |node: &str| {
            let of = labels.of(node).map(|(key, value)| format!("{key}={value}"));
            of.collect::<Vec<_>>()
        };
        assert_eq!(of("node-1"), ["tier=iron"]);
        assert_eq!(of("node-2"), ["disk=ssd", "gpu=", "tier=gold"]);
        assert!(of("node-3").is_empty());
    }

    #[test]
    fn what_is_no_label_is_refused() {
        let check = |text: &str, part: &str| {
            let refused = NodeLabels::all(&[text.to_owned()], 2).expect_err(text).to_string();
            assert!(refused.contains(part), "{refused}");
        };
        check("node-3:disk=ssd", "there is no node-3; the nodes are node-1 to node-2");
        check("disk", "\"disk\" has no `=`");
        check("disk=ssd,", "\"\" has no `=`");
        check("-x=1", "the key `-x`");
        check("x=a b", "label value `a b`");
        check("node-1:kubernetes.io/hostname=x", "says what the node is");
        check("kubernetes.io/arch=s390x", "says what the node is");
        check("beta.kubernetes.io/os=plan9", "says what the node is");
    }
}
