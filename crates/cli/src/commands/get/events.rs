//! `ambit events` and `ambit get events`: what happened to pods and to what makes them.

use std::process::ExitCode;

use ambit_machine::{Client, PodInfo};
use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::Value;

use super::columns::{Column, Row, narrow, text_of, wide};
use super::{Mesh, Objects, Printer, show_or_watch};
use crate::args::{EventType, EventsArgs, ShownKind, Target};

/// One event.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Event(Value);

impl Row for Event {
    fn columns() -> Vec<Column<Self>> {
        let object = |it: &Self| {
            let kind = text_of(&it.0, "/involvedObject/kind").to_lowercase();
            format!("{kind}/{}", text_of(&it.0, "/involvedObject/name"))
        };
        vec![
            narrow("NAMESPACE", |it| text_of(&it.0, "/metadata/namespace")),
            narrow("LAST SEEN", |it| text_of(&it.0, "/lastTimestamp")),
            narrow("TYPE", |it| text_of(&it.0, "/type")),
            narrow("REASON", |it| text_of(&it.0, "/reason")),
            narrow("OBJECT", object),
            wide("FIRST SEEN", |it| text_of(&it.0, "/firstTimestamp")),
            wide("COUNT", |it| it.0["count"].to_string()),
            wide("NAME", |it| text_of(&it.0, "/metadata/name")),
            narrow("MESSAGE", |it| text_of(&it.0, "/message")),
        ]
    }
}

/// Which events are shown.
#[derive(Debug, Default)]
pub(super) struct Filter {
    about: Option<Target>,
    types: Vec<EventType>,
}

impl Filter {
    fn takes(&self, event: &Value, owned_pods: &[String]) -> bool {
        let is_type = |it: &EventType| event["type"] == it.word();
        if !self.types.is_empty() && !self.types.iter().any(is_type) {
            return false;
        }
        let about = &event["involvedObject"];
        self.about.as_ref().is_none_or(|wanted| {
            let is_it = about["kind"] == wanted.kind.name() && about["name"] == *wanted.name;
            let uid = about["uid"].as_str().unwrap_or_default();
            is_it || owned_pods.iter().any(|it| it == uid)
        })
    }
}

/// Prints events, and with `-w` goes on.
pub(in crate::commands) async fn events(args: EventsArgs) -> Result<ExitCode> {
    let mesh = Mesh::Machine(super::super::layout(&args.state));
    let mut printer = Printer::new(&mesh, ShownKind::Events, args.output.output);
    printer.namespace = args.namespace.as_deref();
    printer.events = Filter { about: args.about, types: args.types };
    show_or_watch(printer, args.watch).await
}

/// Lists the events of a machine.
pub(super) async fn list(printer: &mut Printer<'_>) -> Result<()> {
    let Mesh::Machine(layout) = printer.mesh else {
        bail!("in a cluster this is kubectl's job: `kubectl get events`");
    };
    let client = Client::new(layout.clone());
    let pods = match &printer.events.about {
        Some(wanted) if wanted.kind.has_pod_template() => {
            let pods = client.pods().await?.into_iter();
            let is_its =
                |it: &PodInfo| it.owner == wanted.name && it.owner_kind == wanted.kind.name();
            pods.filter(is_its).map(|it| it.uid).collect()
        }
        _ => Vec::new(),
    };
    let is_here = |event: &Value| {
        printer.namespace.is_none_or(|wanted| event["metadata"]["namespace"] == wanted)
    };
    let mut events = client.events().await?;
    events.retain(|event| is_here(event) && printer.events.takes(event, &pods));
    let items = events.into_iter().map(Event).collect();
    printer.show(Objects::new(items, printer.names.len() == 1)).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use ambit_manifest::Kind as StoredKind;

    use super::*;

    #[test]
    fn events_are_of_an_object_and_of_a_type() {
        let event = json!({
            "type": "Warning",
            "involvedObject": {"kind": "Pod", "name": "web-1", "uid": "u"},
        });
        let check = |kind: Option<(StoredKind, &str)>, types: &[EventType], pods: &[&str], yes| {
            let about = kind.map(|(kind, name)| Target { kind, name: name.to_owned() });
            let filter = Filter { about, types: types.to_vec() };
            let pods: Vec<String> = pods.iter().map(|it| (*it).to_owned()).collect();
            assert_eq!(filter.takes(&event, &pods), yes, "{filter:?}");
        };
        check(None, &[], &[], true);
        check(None, &[EventType::Warning], &[], true);
        check(None, &[EventType::Normal], &[], false);
        check(Some((StoredKind::Pod, "web-1")), &[], &[], true);
        check(Some((StoredKind::Pod, "web-2")), &[], &[], false);
        check(Some((StoredKind::Service, "web-1")), &[], &[], false);
        check(Some((StoredKind::Deployment, "web")), &[], &["u"], true);
        check(Some((StoredKind::Deployment, "web")), &[], &["v"], false);
    }
}
