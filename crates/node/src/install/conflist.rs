//! A CNI configuration with this plugin at the end of its chain, and without: pure.
//!
//! Nothing else of a configuration is changed, and one that is not understood is not touched.

use std::path::Path;

use ambit_words::names::CNI_PLUGIN;
use serde_json::{Value, json};

use crate::plugin::{AGENT_TIMEOUT_SECONDS, VERSIONS};

/// How the names of configurations end, as container runtimes know them.
const EXTENSIONS: [&str; 3] = ["conf", "conflist", "json"];
/// A list of plugins; the others hold one plugin.
const LIST: &str = "conflist";

/// Why a configuration is not one that a plugin can be added to.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConflistError {
    #[error("it is not JSON: {0}")]
    NotJson(String),
    #[error("it has no list `plugins` with at least one plugin")]
    NoPlugins,
    #[error("it has no `type`")]
    NoType,
    #[error(
        "its cniVersion is {0:?}; chained plugins need one of {known}",
        known = VERSIONS.join(", ")
    )]
    Version(String),
}

/// A configuration to be written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chained {
    /// The name of its file; a single plugin becomes a list of another name.
    pub(crate) name: String,
    pub(crate) content: Vec<u8>,
}

/// The plugin's entry in a list.
pub(crate) fn entry(agent_socket: &Path, mesh_namespace: Option<&str>) -> Value {
    let timeout = AGENT_TIMEOUT_SECONDS;
    let mut entry =
        json!({"type": CNI_PLUGIN, "agentSocket": agent_socket, "agentTimeout": timeout});
    if let Some(namespace) = mesh_namespace {
        entry["meshNamespace"] = namespace.into();
    }
    entry
}

/// Whether container runtimes take a file of this name for a configuration.
pub(crate) fn is_configuration(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}

/// The name of the list that a configuration is or becomes.
pub(crate) fn list_name(name: &str) -> String {
    let name = Path::new(name).with_extension(LIST);
    name.to_str().expect("part of a string").to_owned()
}

/// The configuration with the entry at its end. `None`: it has it already.
pub(crate) fn chain(
    name: &str,
    original: &[u8],
    entry: &Value,
) -> Result<Option<Chained>, ConflistError> {
    let mut list: Value = parse(original)?;
    let is_list = list_name(name) == name;
    if !is_list {
        if list["type"].as_str().is_none_or(str::is_empty) {
            return Err(ConflistError::NoType);
        }
        let (network, version) = (list["name"].clone(), list["cniVersion"].clone());
        list = json!({"cniVersion": version, "name": network, "plugins": [list]});
    }
    check_version(&list)?;
    let plugins = list["plugins"].as_array_mut().ok_or(ConflistError::NoPlugins)?;
    if plugins.contains(entry) {
        return Ok(None);
    }
    plugins.retain(|plugin| !is_ours(plugin));
    if plugins.is_empty() {
        return Err(ConflistError::NoPlugins);
    }
    plugins.push(entry.clone());
    Ok(Some(Chained { name: list_name(name), content: print(&list) }))
}

/// The plugin's entry in a list of plugins.
pub(crate) fn ours(content: &[u8]) -> Option<Value> {
    let list = parse(content).ok()?;
    list["plugins"].as_array()?.iter().find(|plugin| is_ours(plugin)).cloned()
}

/// The list without the plugin's entry. `None`: nothing else is in it.
pub(crate) fn unchain(content: &[u8]) -> Result<Option<Vec<u8>>, ConflistError> {
    let mut list = parse(content)?;
    let plugins = list["plugins"].as_array_mut().ok_or(ConflistError::NoPlugins)?;
    plugins.retain(|plugin| !is_ours(plugin));
    Ok(if plugins.is_empty() { None } else { Some(print(&list)) })
}

fn is_ours(plugin: &Value) -> bool {
    plugin["type"] == CNI_PLUGIN
}

/// With a version that has no chains, every pod would be refused.
fn check_version(list: &Value) -> Result<(), ConflistError> {
    let versions = list["cniVersions"].as_array().into_iter().flatten();
    let mut versions = versions.chain([&list["cniVersion"]]).filter_map(Value::as_str);
    if versions.any(|version| VERSIONS.contains(&version)) {
        return Ok(());
    }
    Err(ConflistError::Version(list["cniVersion"].as_str().unwrap_or_default().to_owned()))
}

fn parse(content: &[u8]) -> Result<Value, ConflistError> {
    let value: Value = serde_json::from_slice(content)
        .map_err(|error| ConflistError::NotJson(error.to_string()))?;
    if value.is_object() { Ok(value) } else { Err(ConflistError::NoPlugins) }
}

fn print(list: &Value) -> Vec<u8> {
    format!("{list:#}\n").into_bytes()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const CALICO: &str = r#"{
  "name": "k8s-pod-network", "cniVersion": "0.3.1",
  "plugins": [
    {"type": "calico", "log_level": "info", "mtu": 0, "ipam": {"type": "calico-ipam"},
     "policy": {"type": "k8s"}, "kubernetes": {"kubeconfig": "/etc/cni/net.d/calico-kubeconfig"}},
    {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
    {"type": "bandwidth", "capabilities": {"bandwidth": true}}
  ]
}"#;
    pub(crate) const CILIUM: &str = r#"{"cniVersion":"0.3.1","name":"cilium","plugins":[
  {"type":"cilium-cni","enable-debug":false,"log-file":"/var/run/cilium/cilium-cni.log"}]}"#;
    const FLANNEL: &str = r#"{"name":"cbr0","cniVersion":"0.3.1","plugins":[
  {"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},
  {"type":"portmap","capabilities":{"portMappings":true}}]}"#;
    pub(crate) const BRIDGE: &str = r#"{"cniVersion":"1.0.0","name":"bridge","type":"bridge",
  "bridge":"cni0","isGateway":true,"ipam":{"type":"host-local"}}"#;

    fn types(content: &[u8]) -> Vec<String> {
        let list: Value = serde_json::from_slice(content).expect("JSON");
        let plugins = list["plugins"].as_array().expect("a list").iter();
        plugins.map(|plugin| plugin["type"].as_str().expect("a type").to_owned()).collect()
    }

    /// The name and the plugins of the chained configuration, or the error.
    fn check(name: &str, original: &str, expected: Result<(&str, &[&str]), ConflistError>) {
        let entry = entry(Path::new("/s"), None);
        let chained = chain(name, original.as_bytes(), &entry);
        match (chained, expected) {
            (Ok(Some(chained)), Ok((as_name, plugins))) => {
                assert_eq!(
                    (chained.name.as_str(), types(&chained.content)),
                    (as_name, plugins.iter().map(ToString::to_string).collect())
                );
                let again = chain(&chained.name, &chained.content, &entry);
                assert_eq!(again, Ok(None), "chained once");
                let without = unchain(&chained.content).expect("a list").expect("others");
                assert_eq!(types(&without), plugins[..plugins.len() - 1]);
            }
            (found, expected) => {
                assert_eq!(found.err(), expected.err(), "{name}");
            }
        }
    }

    #[test]
    fn the_plugin_follows_those_of_every_network() {
        let ours = CNI_PLUGIN;
        let calico: &[&str] = &["calico", "portmap", "bandwidth", ours];
        check("10-calico.conflist", CALICO, Ok(("10-calico.conflist", calico)));
        check("05-cilium.conflist", CILIUM, Ok(("05-cilium.conflist", &["cilium-cni", ours])));
        let flannel: &[&str] = &["flannel", "portmap", ours];
        check("10-flannel.conflist", FLANNEL, Ok(("10-flannel.conflist", flannel)));
        check("10-bridge.conf", BRIDGE, Ok(("10-bridge.conflist", &["bridge", ours])));
        check("10-bridge.json", BRIDGE, Ok(("10-bridge.conflist", &["bridge", ours])));
        let several = CILIUM.replacen(r#""cniVersion":"0.3.1""#, r#""cniVersions":["1.1.0"]"#, 1);
        check("05-cilium.conflist", &several, Ok(("05-cilium.conflist", &["cilium-cni", ours])));
    }

    #[test]
    fn an_earlier_entry_is_replaced_and_a_good_one_left_where_it_is() {
        let old = entry(Path::new("/old"), None);
        let new = entry(Path::new("/new"), Some("istio-system"));
        let first = chain("a.conflist", CILIUM.as_bytes(), &old).expect("valid").expect("written");
        assert_eq!(ours(&first.content), Some(old));
        let second = chain("a.conflist", &first.content, &new).expect("valid").expect("written");
        assert_eq!(types(&second.content), ["cilium-cni", CNI_PLUGIN]);
        assert_eq!(ours(&second.content), Some(new.clone()));
        let mut followed: Value = serde_json::from_slice(&second.content).expect("JSON");
        followed["plugins"].as_array_mut().expect("a list").push(json!({"type": "portmap"}));
        assert_eq!(chain("a.conflist", &print(&followed), &new), Ok(None));
        assert_eq!(ours(CILIUM.as_bytes()), None);
    }

    #[test]
    fn what_is_not_understood_is_not_touched() {
        let not_json = chain("a.conflist", b"{", &Value::Null).expect_err("refused");
        assert!(matches!(not_json, ConflistError::NotJson(_)));
        check("a.conflist", "[]", Err(ConflistError::NoPlugins));
        check("a.conflist", r#"{"cniVersion":"1.0.0"}"#, Err(ConflistError::NoPlugins));
        let empty = r#"{"cniVersion":"1.0.0","plugins":[]}"#;
        check("a.conflist", empty, Err(ConflistError::NoPlugins));
        check("a.conf", r#"{"cniVersion":"1.0.0","name":"a"}"#, Err(ConflistError::NoType));
        let old = BRIDGE.replace("1.0.0", "0.2.0");
        check("a.conf", &old, Err(ConflistError::Version("0.2.0".to_owned())));
        check("a.conf", r#"{"type":"bridge"}"#, Err(ConflistError::Version(String::new())));
    }

    #[test]
    fn runtimes_and_this_plugin_agree_on_what_a_configuration_is() {
        for (name, expected) in [
            ("10-a.conf", true),
            ("10-a.conflist", true),
            ("10-a.json", true),
            (".hidden.conf", true),
            ("calico-kubeconfig", false),
            ("10-a.conf.saved", false),
            ("10-a.conf.cilium_bak", false),
        ] {
            assert_eq!(is_configuration(name), expected, "{name}");
        }
    }
}
