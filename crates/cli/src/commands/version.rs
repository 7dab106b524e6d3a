//! `ambit version`: the version of this program and of each part of the mesh.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;

use ambit_machine::layout::Layout;
use ambit_machine::{Client, ForwardRequest};
use ambit_manifest::Kind;
use ambit_wire::admin::ApiVersion;
use ambit_words::exposition::build_tag;
use ambit_words::labels::GATEWAY_MANAGED;
use ambit_words::ports::PROXY_METRICS;
use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use super::ask::{self, Role};
use super::mesh::{self, Mesh};
use crate::args::{VersionArgs, VersionOutput};
use crate::progress;

/// What `ambit version -o json` prints.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    /// The version of this form.
    api_version: ApiVersion,
    /// Of this program.
    client: String,
    /// Of the mesh, if it was asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Part>,
    /// Why no mesh was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// A part of the mesh.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Part {
    /// `control`, `machine`, `node`, `proxy` or `waypoint`.
    part: &'static str,
    /// Its node if it has one on each, or else its pod; empty if there is one only.
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(flatten)]
    says: Says,
}

/// What a part says.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
enum Says {
    /// Its version.
    Version(String),
    /// Nothing, for this reason.
    Error(String),
}

/// Prints the versions; fails if a part does not say its own.
pub(super) async fn version(args: &VersionArgs) -> Result<ExitCode> {
    let asked = if args.client { Ok(Vec::new()) } else { parts(args).await };
    let (mut parts, error) = match asked {
        Ok(parts) => (parts, None),
        Err(error) => (Vec::new(), Some(format!("{error:#}"))),
    };
    parts.sort();
    let is_whole = error.is_none() && parts.iter().all(|it| matches!(it.says, Says::Version(_)));
    let client = env!("CARGO_PKG_VERSION").to_owned();
    let versions = Versions { api_version: ApiVersion, client, parts, error };
    match args.output {
        Some(VersionOutput::Json) => super::print_json(&versions)?,
        Some(VersionOutput::Yaml) => super::print_text(&serde_saphyr::to_string(&versions)?)?,
        None => {
            super::print_text(&text(&versions))?;
            for line in silent(&versions) {
                ambit_load::tell(format_args!("ambit: {line}"));
            }
        }
    }
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn parts(args: &VersionArgs) -> Result<Vec<Part>> {
    match mesh::find(&args.state, &args.kube).await? {
        Mesh::Machine(layout) => of_machine(layout).await,
        Mesh::Cluster(cluster) => {
            let _shown = progress::shown("asking the cluster");
            let found = cluster.versions().await?.into_iter();
            Ok(found.map(|it| part(it.part, it.name, it.version.map_err(Into::into))).collect())
        }
    }
}

/// A part, and what came of asking it.
fn part(part: &'static str, name: String, version: Result<Option<String>>) -> Part {
    let says = match version {
        Ok(Some(version)) => Says::Version(version),
        Ok(None) => Says::Error("it does not say its version; is it another program?".to_owned()),
        Err(error) => Says::Error(format!("{error:#}")),
    };
    Part { part, name, says }
}

/// Asks all parts of a machine at once, so that silent ones cost one timeout in all.
async fn of_machine(layout: Layout) -> Result<Vec<Part>> {
    let client = Client::new(layout.clone());
    let status = client.status().await?;
    let mut asked = JoinSet::new();
    if status.mesh {
        let socket = layout.control_socket();
        asked.spawn(async move {
            let metrics = ask::metrics(Role { name: "control", socket: &socket }).await;
            part("control", String::new(), tag(metrics))
        });
        for node in status.nodes.into_iter().map(|node| node.name) {
            let sockets =
                [("node", layout.cni_socket(&node)), ("proxy", layout.proxy_admin_socket(&node))];
            for (role, socket) in sockets {
                let node = node.clone();
                asked.spawn(async move {
                    let name = format!("{role}/{node}");
                    let metrics = ask::metrics(Role { name: &name, socket: &socket }).await;
                    part(role, node, tag(metrics))
                });
            }
        }
        for pod in client.objects(Kind::Pod.plural()).await?.iter().filter_map(waypoint) {
            let layout = layout.clone();
            asked.spawn(async move {
                let name = format!("{}/{}", pod.namespace, pod.name);
                let metrics = metrics_of_pod(&layout, &name, pod).await;
                part("waypoint", name, tag(metrics))
            });
        }
    }
    let mut parts = asked.join_all().await;
    parts.push(part("machine", String::new(), Ok(status.version)));
    Ok(parts)
}

fn tag(metrics: Result<String>) -> Result<Option<String>> {
    metrics.map(|text| build_tag(&text).map(str::to_owned))
}

/// The port with the metrics of a pod, if it was made for a Gateway.
fn waypoint(pod: &Value) -> Option<ForwardRequest> {
    let metadata = &pod["metadata"];
    metadata["labels"].get(GATEWAY_MANAGED)?;
    let text = |name: &str| metadata[name].as_str().map(str::to_owned);
    let (namespace, name) = (text("namespace")?, text("name")?);
    Some(ForwardRequest { namespace, name, kind: None, port: PROXY_METRICS })
}

/// Connects to a pod as `ambit port-forward` does, and asks it.
async fn metrics_of_pod(layout: &Layout, name: &str, pod: ForwardRequest) -> Result<String> {
    let (ours, theirs) = UnixStream::pair().context("make a pair of sockets")?;
    let theirs = theirs.into_std().context("make a pair of sockets")?;
    tokio::select! {
        metrics = ask::metrics_over(name, ours) => metrics,
        // It goes on for as long as the connection does.
        Err(error) = ambit_machine::forward(layout, &pod, theirs) => Err(error.into()),
    }
}

/// A line for all parts of one kind and version. Where one kind has several versions, each line
/// says whose it is.
fn text(versions: &Versions) -> String {
    let mut text = format!("client {}\n", versions.client);
    let mut found: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for Part { part, name, says } in &versions.parts {
        if let Says::Version(version) = says {
            found.entry(part).or_default().entry(version).or_default().push(name);
        }
    }
    for (part, of_part) in found {
        for (version, names) in &of_part {
            let count = match names.len() {
                1 if names[0].is_empty() => String::new(),
                count => format!(" ({count})"),
            };
            let whose =
                if of_part.len() > 1 { format!(": {}", names.join(", ")) } else { String::new() };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{part} {version}{count}{whose}");
        }
    }
    text
}

/// A line for each part that does not say its version.
fn silent(versions: &Versions) -> Vec<String> {
    let line = |it: &Part| {
        let Says::Error(error) = &it.says else { return None };
        let whole = [it.part, &it.name].into_iter().filter(|word| !word.is_empty());
        let whole = whole.collect::<Vec<_>>().join("/");
        // Most errors begin with the part.
        let is_named = error.starts_with(&whole);
        Some(if is_named { error.clone() } else { format!("{whole}: {error}") })
    };
    versions.error.iter().cloned().chain(versions.parts.iter().filter_map(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(parts: &[(&'static str, &str, Result<&str, &str>)]) -> Versions {
        let part = |(part, name, says): &(&'static str, &str, Result<&str, &str>)| {
            let says = match says {
                Ok(version) => Says::Version((*version).to_owned()),
                Err(error) => Says::Error((*error).to_owned()),
            };
            Part { part, name: (*name).to_owned(), says }
        };
        Versions {
            api_version: ApiVersion,
            client: "0.2.0".to_owned(),
            parts: parts.iter().map(part).collect(),
            error: None,
        }
    }

    #[test]
    fn parts_of_one_version_are_one_line() {
        let same = versions(&[
            ("control", "", Ok("0.1.0")),
            ("proxy", "node-1", Ok("0.1.0")),
            ("proxy", "node-2", Ok("0.1.0")),
            ("waypoint", "shop/wp-1", Ok("0.1.0")),
        ]);
        let expected = "client 0.2.0\ncontrol 0.1.0\nproxy 0.1.0 (2)\nwaypoint 0.1.0 (1)\n";
        assert_eq!(text(&same), expected);
        assert!(silent(&same).is_empty());
    }

    #[test]
    fn an_upgrade_that_is_not_done_is_seen() {
        let mixed = versions(&[
            ("proxy", "node-1", Ok("0.2.0")),
            ("proxy", "node-2", Ok("0.1.0")),
            ("proxy", "node-3", Ok("0.2.0")),
            ("proxy", "node-4", Err("no answer")),
        ]);
        let expected = "client 0.2.0\nproxy 0.1.0 (1): node-2\nproxy 0.2.0 (2): node-1, node-3\n";
        assert_eq!(text(&mixed), expected);
        assert_eq!(silent(&mixed), ["proxy/node-4: no answer"]);
    }

    #[test]
    fn what_is_printed_as_json() {
        let found = versions(&[("control", "", Ok("0.1.0")), ("proxy", "node-1", Err("silent"))]);
        let printed = serde_json::to_value(&found).expect("it is JSON");
        let expected = serde_json::json!({
            "apiVersion": "admin.ambit.io/v1",
            "client": "0.2.0",
            "parts": [
                {"part": "control", "version": "0.1.0"},
                {"part": "proxy", "name": "node-1", "error": "silent"},
            ],
        });
        assert_eq!(printed, expected);
    }

    #[test]
    fn pods_of_gateways_are_asked() {
        let pod = |labels: Value| {
            let metadata =
                serde_json::json!({"namespace": "shop", "name": "wp-1", "labels": labels});
            waypoint(&serde_json::json!({"metadata": metadata}))
        };
        assert!(pod(serde_json::json!({"app": "web"})).is_none());
        let found = pod(serde_json::json!({GATEWAY_MANAGED: "x"})).expect("it is one");
        assert_eq!((&*found.name, found.port), ("wp-1", 15020));
    }
}
