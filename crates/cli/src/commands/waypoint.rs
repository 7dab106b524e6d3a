//! `ambit waypoint apply|generate|list|status|delete`: Gateways of a waypoint's class, on a machine
//! and in a cluster.
//!
//! It only writes and reads Gateways and one label of a namespace; the controllers do the rest.

mod naming;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ambit_machine::objects::ObjectRef;
use ambit_machine::{Client, Expected};
use ambit_manifest::gateway::{CLASSES, is_waypoint_class};
use ambit_manifest::{Input, Kind, Unenforced};
use ambit_words::labels::{AMBIENT, DATAPLANE_MODE, REVISION, USE_WAYPOINT, WAYPOINT_FOR};
use ambit_words::ports::HBONE;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::mesh::{self, Mesh};
use crate::args::{WaypointCommand, WaypointShape, WaypointTarget};
use crate::{progress, table};

/// How long a waypoint may take to run.
const LIMIT: Duration = Duration::from_secs(90);
/// How often is looked.
const INTERVAL: Duration = Duration::from_millis(500);

/// Carries out a command.
pub(super) async fn waypoint(command: WaypointCommand) -> Result<ExitCode> {
    match command {
        WaypointCommand::Generate(args) => {
            let gateway = gateway(&args.shape, args.target.namespace())?;
            super::print_text(&serde_saphyr::to_string(&gateway)?)?;
        }
        WaypointCommand::Apply(args) => {
            let place = find(&args.target).await?;
            let (name, namespace) = (&args.shape.name, args.target.namespace());
            let gateway = gateway(&args.shape, namespace)?;
            if args.enroll_namespace {
                place.check_enrolment(namespace, name, args.overwrite).await?;
            }
            let verb = if place.apply(gateway).await? { "created" } else { "configured" };
            super::print_text(&format!("waypoint {namespace}/{name} {verb}\n"))?;
            // First: what names a waypoint that is not ready is refused.
            if args.wait {
                wait(&place, namespace, Some(name)).await?;
                super::print_text(&format!("waypoint {namespace}/{name} is ready\n"))?;
            }
            if args.enroll_namespace {
                place.enrol(namespace, name).await?;
                let said = format!("namespace {namespace} labelled {USE_WAYPOINT}={name}\n");
                super::print_text(&said)?;
            }
        }
        WaypointCommand::List(args) => {
            let namespace = (!args.all_namespaces).then(|| args.target.namespace());
            let found = find(&args.target).await?.waypoints(namespace).await?;
            if found.is_empty() {
                eprintln!("No waypoints found.");
            } else {
                super::print_text(&list(&found, args.all_namespaces))?;
            }
        }
        WaypointCommand::Status(args) => {
            let place = find(&args.target).await?;
            let (name, namespace) = (args.name.as_deref(), args.target.namespace());
            let waited = match args.wait {
                true => wait(&place, namespace, name).await,
                false => Ok(()),
            };
            let found = named(place.waypoints(Some(namespace)).await?, namespace, name)?;
            super::print_text(&status(&found))?;
            waited?;
        }
        WaypointCommand::Delete(args) => {
            let (place, namespace) = (find(&args.target).await?, args.target.namespace());
            let all = place.waypoints(Some(namespace)).await?;
            let mut doomed = if args.all { all.clone() } else { Vec::new() };
            for name in &args.names {
                doomed.extend(named(all.clone(), namespace, Some(name))?);
            }
            if doomed.is_empty() {
                eprintln!("No waypoints found in {namespace}.");
            }
            if !args.force {
                naming::check(&place, &doomed).await?;
            }
            for gateway in doomed {
                place.delete(&gateway).await?;
                let name = name_of(&gateway);
                super::print_text(&format!("waypoint {namespace}/{name} deleted\n"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The Gateway of a waypoint, checked as a manifest is.
fn gateway(shape: &WaypointShape, namespace: &str) -> Result<Value> {
    // Nothing else here would find a Gateway of another class again.
    if !is_waypoint_class(&shape.class, None) {
        let known = CLASSES.map(|(class, _)| class).join(" or ");
        bail!("the class `{}` is none of a waypoint; use {known}", shape.class);
    }
    let mut labels = BTreeMap::new();
    labels.extend(shape.traffic.map(|it| (WAYPOINT_FOR, it.word())));
    labels.extend(shape.revision.as_deref().map(|it| (REVISION, it)));
    let mut metadata = json!({"name": shape.name, "namespace": namespace});
    if !labels.is_empty() {
        metadata["labels"] = json!(labels);
    }
    let gateway = json!({
        "apiVersion": Kind::Gateway.api_versions()[0],
        "kind": Kind::Gateway.name(),
        "metadata": metadata,
        "spec": {
            "gatewayClassName": shape.class,
            "listeners": [{"name": "mesh", "port": HBONE, "protocol": "HBONE"}],
        },
    });
    let input = Input::Text { name: "waypoint".to_owned(), text: gateway.to_string() };
    ambit_manifest::load_as(&[input], Unenforced::Refused)?;
    Ok(gateway)
}

/// Where waypoints are.
enum Place {
    Machine(Client),
    Cluster(Box<ambit_cluster::Cluster>),
}

async fn find(target: &WaypointTarget) -> Result<Place> {
    Ok(match mesh::find(&target.state, &target.kube).await? {
        Mesh::Machine(layout) => Place::Machine(Client::new(layout)),
        Mesh::Cluster(cluster) => Place::Cluster(cluster),
    })
}

impl Place {
    /// The Gateways of waypoints' classes.
    async fn waypoints(&self, namespace: Option<&str>) -> Result<Vec<Value>> {
        let mut found = match self {
            Self::Machine(client) => client.objects(Kind::Gateway.plural()).await?,
            Self::Cluster(cluster) => cluster.gateways(namespace).await?,
        };
        found.retain(|gateway| {
            let class = text(gateway, "/spec/gatewayClassName");
            let is_there = namespace.is_none_or(|it| text(gateway, "/metadata/namespace") == it);
            is_there && is_waypoint_class(class, None)
        });
        found
            .sort_by_key(|it| (text(it, "/metadata/namespace").to_owned(), name_of(it).to_owned()));
        Ok(found)
    }

    /// Whether it is new.
    async fn apply(&self, gateway: Value) -> Result<bool> {
        match self {
            Self::Machine(client) => {
                let changes = client.apply(vec![gateway], false).await?;
                for warning in &changes.warnings {
                    eprintln!("warning: {warning}");
                }
                let created = ambit_machine::objects::Outcome::Created;
                Ok(changes.changes.iter().any(|it| it.outcome == created))
            }
            Self::Cluster(cluster) => Ok(cluster.apply_gateway(&gateway).await?),
        }
    }

    async fn delete(&self, gateway: &Value) -> Result<()> {
        match self {
            Self::Machine(client) => {
                let namespace = Some(text(gateway, "/metadata/namespace"));
                let object = ObjectRef::new(Kind::Gateway, namespace, name_of(gateway));
                client.delete(&[object], false, false).await?;
            }
            Self::Cluster(cluster) => cluster.delete_gateway(gateway).await?,
        }
        Ok(())
    }

    async fn namespace(&self, name: &str) -> Result<Value> {
        match self {
            Self::Machine(client) => {
                let all = client.objects(Kind::Namespace.plural()).await?;
                let found = all.into_iter().find(|it| name_of(it) == name);
                found.with_context(|| format!("the machine has no namespace {name}"))
            }
            Self::Cluster(cluster) => Ok(cluster.namespace(name).await?),
        }
    }

    /// Nothing is applied if the namespace may not be labelled afterwards.
    async fn check_enrolment(
        &self,
        namespace: &str,
        waypoint: &str,
        overwrite: bool,
    ) -> Result<()> {
        let object = self.namespace(namespace).await?;
        let label = |key: &str| object["metadata"]["labels"][key].as_str();
        if label(DATAPLANE_MODE) != Some(AMBIENT) {
            eprintln!(
                "warning: namespace {namespace} is not in the mesh, and only clients in the mesh \
                 go through the waypoint; label it {DATAPLANE_MODE}={AMBIENT}"
            );
        }
        match label(USE_WAYPOINT) {
            Some(other) if other != waypoint && !overwrite => bail!(
                "namespace {namespace} names the waypoint {other} already; add --overwrite to \
                 replace it"
            ),
            _ => Ok(()),
        }
    }

    async fn enrol(&self, namespace: &str, waypoint: &str) -> Result<()> {
        match self {
            Self::Machine(client) => {
                let mut value = self.namespace(namespace).await?;
                let version = text(&value, "/metadata/resourceVersion").to_owned();
                value["metadata"]["labels"][USE_WAYPOINT] = json!(waypoint);
                let object = ObjectRef::new(Kind::Namespace, None, namespace);
                let expected = vec![Expected { object, version: Some(version) }];
                client.replace_expecting(vec![value], expected).await?;
            }
            Self::Cluster(cluster) => cluster.use_waypoint(namespace, waypoint).await?,
        }
        Ok(())
    }
}

/// Waits until every waypoint that is meant runs.
async fn wait(place: &Place, namespace: &str, name: Option<&str>) -> Result<()> {
    let _shown = progress::shown("waiting for the waypoint");
    let start = Instant::now();
    loop {
        let found = named(place.waypoints(Some(namespace)).await?, namespace, name)?;
        let waits = found.iter().find(|gateway| condition(gateway).status != "True");
        let Some(waits) = waits else { return Ok(()) };
        if start.elapsed() > LIMIT {
            bail!(
                "waypoint {namespace}/{} does not run after {} s: {}",
                name_of(waits),
                LIMIT.as_secs(),
                condition(waits).message
            );
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn named(all: Vec<Value>, namespace: &str, name: Option<&str>) -> Result<Vec<Value>> {
    let Some(name) = name else { return Ok(all) };
    let found: Vec<Value> = all.into_iter().filter(|it| name_of(it) == name).collect();
    if found.is_empty() {
        bail!("there is no waypoint {namespace}/{name}; see `ambit waypoint list -n {namespace}`");
    }
    Ok(found)
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn name_of(gateway: &Value) -> &str {
    text(gateway, "/metadata/name")
}

/// Whether a waypoint runs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Programmed {
    status: String,
    reason: String,
    message: String,
}

fn condition(gateway: &Value) -> Programmed {
    let all = gateway.pointer("/status/conditions").and_then(Value::as_array);
    let found = all.into_iter().flatten().find(|it| it["type"] == "Programmed");
    let read = found.and_then(|it| Programmed::deserialize(it).ok());
    read.unwrap_or_else(|| Programmed {
        status: "Unknown".to_owned(),
        reason: "Pending".to_owned(),
        message: "no controller has looked at it; does control run?".to_owned(),
    })
}

fn list(found: &[Value], with_namespace: bool) -> String {
    let label = |gateway: &Value, key: &str, or: &str| {
        gateway["metadata"]["labels"][key].as_str().unwrap_or(or).to_owned()
    };
    let columns = |gateway: &Value| {
        let all = [
            text(gateway, "/metadata/namespace").to_owned(),
            name_of(gateway).to_owned(),
            label(gateway, REVISION, "default"),
            label(gateway, WAYPOINT_FOR, "service"),
            condition(gateway).status,
        ];
        all[usize::from(!with_namespace)..].to_vec()
    };
    let header = ["NAMESPACE", "NAME", "REVISION", "TRAFFIC TYPE", "PROGRAMMED"];
    let rows: Vec<Vec<String>> = found.iter().map(columns).collect();
    table::format(&header[usize::from(!with_namespace)..], &rows)
}

fn status(found: &[Value]) -> String {
    let row = |gateway: &Value| {
        let it = condition(gateway);
        let name = name_of(gateway).to_owned();
        vec![name, it.status, "Programmed".to_owned(), it.reason, it.message]
    };
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    table::format(&["NAME", "STATUS", "TYPE", "REASON", "MESSAGE"], &rows)
}

#[cfg(test)]
mod tests {
    use ambit_manifest::gateway::Gateway;
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn shape(words: &str) -> WaypointShape {
        let words = ["ambit", "waypoint", "generate"].into_iter().chain(words.split_whitespace());
        let Command::Waypoint(args) = Cli::try_parse_from(words).expect("right").command else {
            panic!("another command")
        };
        let Some(WaypointCommand::Generate(args)) = args.command else { panic!("another one") };
        args.shape
    }

    #[test]
    fn a_waypoint_is_a_gateway_with_one_listener() {
        let generated = gateway(&shape("--for all --revision r1 --name way"), "shop").unwrap();
        let read: Gateway = serde_json::from_value(generated).unwrap();
        assert!(read.spec.waypoint_listener().is_some());
        let labels = read.metadata.labels.unwrap();
        assert_eq!((&*labels[WAYPOINT_FOR], &*labels[REVISION]), ("all", "r1"));
        let plain = gateway(&shape(""), "default").unwrap();
        assert_eq!(plain["metadata"].get("labels"), None);
        let wrong = gateway(&shape("--name Way_1"), "shop").unwrap_err().to_string();
        assert!(wrong.contains("metadata.name"), "{wrong}");
        assert!(gateway(&shape("--class istio-waypoint"), "shop").is_ok());
        let wrong = gateway(&shape("--class foo"), "shop").unwrap_err().to_string();
        assert!(wrong.contains("`foo`") && wrong.contains("istio-waypoint"), "{wrong}");
    }

    #[test]
    fn lists_say_what_is_there_and_how_it_is() {
        let mut one = gateway(&shape("--name one"), "shop").unwrap();
        one["status"] = json!({"conditions": [{"type": "Programmed", "status": "False",
            "reason": "AddressNotUsable", "message": "none of its pods is ready (0 of 1)"}]});
        let two = gateway(&shape("--name two --for workload"), "bank").unwrap();
        let listed = list(&[one.clone(), two.clone()], true);
        let words: Vec<Vec<&str>> =
            listed.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["shop", "one", "default", "service", "False"]);
        assert_eq!(words[2], ["bank", "two", "default", "workload", "Unknown"]);
        assert!(!list(&[one.clone()], false).contains("shop"));
        assert!(status(&[one]).contains("none of its pods is ready"));
        assert!(status(&[two]).contains("does control run?"));
    }
}
