//! How a node proxy introduces itself to a control plane.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ambit_model::Text;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

use crate::proto::envoy::config::core::v3::Node;

/// Longest text of an introduction that is kept.
const MAX_TEXT_BYTES: usize = 1024;

/// A node proxy's introduction.
#[derive(Clone, Debug, PartialEq)]
pub struct ProxyNode {
    /// The proxy's own address.
    pub ip: IpAddr,
    /// Its pod.
    pub pod: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The node it serves.
    pub node: String,
    /// Further metadata, from proxy metadata and ISTIO_METAJSON_ variables.
    pub metadata: BTreeMap<String, Value>,
}

impl From<ProxyNode> for Node {
    fn from(proxy: ProxyNode) -> Self {
        let ProxyNode { ip, pod, namespace, node, metadata } = proxy;
        let text = |text: String| Value { kind: Some(Kind::StringValue(text)) };
        let id = format!("ztunnel~{ip}~{pod}.{namespace}~{namespace}.svc.cluster.local");
        let mut fields = BTreeMap::from([
            ("NAME".to_owned(), text(pod)),
            ("NAMESPACE".to_owned(), text(namespace)),
            ("INSTANCE_IPS".to_owned(), text(ip.to_string())),
            ("NODE_NAME".to_owned(), text(node)),
        ]);
        fields.extend(metadata);
        Self { id, cluster: String::new(), metadata: Some(Struct { fields }), locality: None }
    }
}

/// The kept parts of a client's node message, which may be long. They are claims: the token proves
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Its name for people.
    pub id: Text,
    /// The node that it says it serves; empty if it says nothing.
    pub node: Text,
}

impl From<&Node> for Introduction {
    fn from(node: &Node) -> Self {
        Self { id: bounded(&node.id), node: bounded(node_name(node).unwrap_or_default()) }
    }
}

/// Nothing that exists has a name that is cut here.
fn bounded(text: &str) -> Text {
    text[..text.floor_char_boundary(MAX_TEXT_BYTES)].into()
}

fn node_name(node: &Node) -> Option<&str> {
    match node.metadata.as_ref()?.fields.get("NODE_NAME")?.kind.as_ref()? {
        Kind::StringValue(name) => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_proxy_introduces_itself_as_ztunnel_does() {
        let node = Node::from(ProxyNode {
            ip: "10.0.0.1".parse().unwrap(),
            pod: "ztunnel-1".into(),
            namespace: "istio-system".into(),
            node: "node-1".into(),
            metadata: BTreeMap::new(),
        });
        let id = "ztunnel~10.0.0.1~ztunnel-1.istio-system~istio-system.svc.cluster.local";
        let told = Introduction { id: id.into(), node: "node-1".into() };
        assert_eq!(Introduction::from(&node), told);
        let long = Node { id: "é".repeat(MAX_TEXT_BYTES), ..Node::default() };
        let told = Introduction::from(&long);
        assert_eq!((told.id.len(), &*told.node), (MAX_TEXT_BYTES, ""));
    }
}
