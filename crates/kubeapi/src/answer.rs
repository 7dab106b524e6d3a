//! Objects, lists and the events of a watch, in the form that the client asks for.
//!
//! An object is written in the version that was asked for: all versions of a kind are alike but for
//! their name, and those of HorizontalPodAutoscalers.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::call::Watch;
use crate::form::{Beside, Form};
use crate::history::{Change, ChangeKind, Key};
use crate::request::{Listing, Single};
use crate::resource::Resource;
use crate::{autoscalers, defaults, scale as scales, table};

/// The version of forms that are not of a kind's own.
const META: &str = "meta.k8s.io/v1";
/// What marks the bookmark behind everything that was there when a watch began.
const INITIAL_END: &str = "k8s.io/initial-events-end";

impl Listing {
    /// Whether an object is among those that are asked for.
    pub fn holds(&self, namespace: &str, object: &Value) -> bool {
        self.namespace.as_deref().is_none_or(|it| it == namespace) && self.selectors.matches(object)
    }
}

/// Writes one object.
pub fn object(single: &Single, object: &Value, now: Timestamp) -> Value {
    let object = of_version(object, &single.resource, single.api_version);
    match single.form {
        Form::Objects => whole(object),
        Form::Metadata => metadata(&object),
        Form::Table(beside) => {
            let version = object["metadata"]["resourceVersion"].clone();
            table(&single.resource, &[object], beside, &version, now)
        }
    }
}

/// Writes the `Scale` of an object.
pub fn scale(object: &Value) -> Value {
    scales::of(object)
}

/// Writes those of a kind's objects that are asked for, as they are at a version.
pub fn list<'a>(
    listing: &Listing,
    objects: impl Iterator<Item = (&'a Key, &'a Arc<Value>)>,
    version: u64,
    now: Timestamp,
) -> Value {
    let Listing { resource, api_version, .. } = listing;
    let meant = objects.filter(|(key, object)| listing.holds(&key.namespace, object));
    let meant = meant.map(|(_, object)| of_version(object, resource, api_version));
    let version = Value::String(version.to_string());
    let (kind, api_version, items) = match listing.form {
        Form::Table(beside) => {
            let objects: Vec<Value> = meant.collect();
            return table(resource, &objects, beside, &version, now);
        }
        Form::Objects => {
            (format!("{}List", resource.kind), *api_version, meant.map(whole).collect())
        }
        Form::Metadata => {
            let items: Vec<Value> = meant.map(|it| metadata(&it)).collect();
            ("PartialObjectMetadataList".to_owned(), META, items)
        }
    };
    json!({
        "kind": kind,
        "apiVersion": api_version,
        "metadata": {"resourceVersion": version},
        "items": items,
    })
}

/// Writes a change as an event of a watch, if it is one of those objects, or was.
pub fn event(watch: &Watch, change: &Change, now: Timestamp) -> Option<Value> {
    let of = &watch.of;
    let is_meant = of.holds(&change.namespace, &change.object);
    let word = match &change.kind {
        ChangeKind::Added => is_meant.then_some("ADDED"),
        ChangeKind::Deleted => is_meant.then_some("DELETED"),
        ChangeKind::Modified(before) => match (of.holds(&change.namespace, before), is_meant) {
            (true, true) => Some("MODIFIED"),
            (false, true) => Some("ADDED"),
            (true, false) => Some("DELETED"),
            (false, false) => None,
        },
    };
    let object = of_version(&change.object, &of.resource, of.api_version);
    Some(json!({"type": word?, "object": in_form(of, object, now)}))
}

/// Tells the client which version it has seen, without a change.
pub fn bookmark(watch: &Watch, version: u64, now: Timestamp) -> Value {
    mark(watch, json!({"resourceVersion": version.to_string()}), now)
}

/// Tells the client that it has seen all that was there when the watch began.
pub fn initial_end(watch: &Watch, version: u64, now: Timestamp) -> Value {
    let annotations = json!({INITIAL_END: "true"});
    let metadata = json!({"resourceVersion": version.to_string(), "annotations": annotations});
    mark(watch, metadata, now)
}

fn mark(watch: &Watch, metadata: Value, now: Timestamp) -> Value {
    let of = &watch.of;
    let object = match of.form {
        Form::Table(beside) => {
            let mut empty = table(&of.resource, &[], beside, &Value::Null, now);
            empty["metadata"] = metadata;
            empty
        }
        Form::Metadata => {
            json!({"kind": "PartialObjectMetadata", "apiVersion": META, "metadata": metadata})
        }
        Form::Objects => {
            json!({"kind": of.resource.kind, "apiVersion": of.api_version, "metadata": metadata})
        }
    };
    json!({"type": "BOOKMARK", "object": object})
}

fn in_form(of: &Listing, object: Value, now: Timestamp) -> Value {
    match of.form {
        Form::Objects => whole(object),
        Form::Metadata => metadata(&object),
        Form::Table(beside) => {
            let version = object["metadata"]["resourceVersion"].clone();
            table(&of.resource, &[object], beside, &version, now)
        }
    }
}

fn of_version(object: &Value, resource: &Resource, api_version: &str) -> Value {
    let mut object = object.clone();
    object["kind"] = json!(resource.kind);
    object["apiVersion"] = json!(api_version);
    defaults::fill(resource, &mut object);
    object
}

/// An object with the fields of its version, of which cells are not made.
fn whole(mut object: Value) -> Value {
    autoscalers::age(&mut object);
    object
}

fn metadata(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": META,
        "metadata": object.get("metadata"),
    })
}

fn table(
    resource: &Resource,
    objects: &[Value],
    beside: Beside,
    version: &Value,
    now: Timestamp,
) -> Value {
    let row = |object: &Value| {
        let beside = match beside {
            Beside::Nothing => Value::Null,
            Beside::Metadata => metadata(object),
            Beside::Object => whole(object.clone()),
        };
        json!({"cells": table::cells(resource, object, now), "object": beside})
    };
    json!({
        "kind": "Table",
        "apiVersion": META,
        "metadata": {"resourceVersion": version},
        "columnDefinitions": table::definitions(resource),
        "rows": objects.iter().map(row).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::call::{Api, Call};
    use crate::history::History;
    use crate::request::Request;

    const PLAIN: &str = "*/*";
    const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

    fn api() -> Api {
        let pods = Resource {
            kind: "Pod",
            plural: "pods",
            namespaced: true,
            api_versions: &["v1"],
            only_read: None,
        };
        let routes = Resource {
            kind: "HTTPRoute",
            plural: "httproutes",
            namespaced: true,
            api_versions: &["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"],
            only_read: None,
        };
        Api { resources: vec![pods, routes], server: "test".to_owned() }
    }

    fn ask(path: &str, query: &str, accept: &str) -> Call {
        let request =
            Request { method: &Method::GET, path, query, accept: Some(accept), content_type: None };
        api().call(&request).expect(path)
    }

    fn now() -> Timestamp {
        "2026-01-31T12:00:00Z".parse().expect("a time")
    }

    fn pod(namespace: &str, name: &str, app: &str) -> (Key, Value) {
        let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
        let object = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": namespace, "labels": {"app": app},
                "creationTimestamp": "2026-01-31T11:59:00Z"},
        });
        (key, object)
    }

    fn history() -> History {
        let mut history = History::default();
        history
            .look("pods", [pod("a", "one", "web"), pod("a", "two", "db"), pod("b", "one", "web")]);
        history
    }

    fn listed(path: &str, query: &str, accept: &str) -> Value {
        let (Call::List(listing), history) = (ask(path, query, accept), history()) else {
            panic!("{path} is a list");
        };
        list(&listing, history.objects("pods"), history.version(), now())
    }

    #[test]
    fn a_list_holds_what_is_asked_for() {
        let check = |path: &str, query: &str, expected: &[&str]| {
            let list = listed(path, query, PLAIN);
            assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("PodList"), &json!("v1")));
            assert_eq!(list["metadata"]["resourceVersion"], "4");
            let items = list["items"].as_array().expect("items");
            let names = items.iter().map(|it| &it["metadata"]);
            let names: Vec<String> = names
                .map(|it| format!("{}/{}", it["namespace"], it["name"]).replace('"', ""))
                .collect();
            assert_eq!(names, expected, "{path}?{query}");
        };
        check("/api/v1/pods", "", &["a/one", "a/two", "b/one"]);
        check("/api/v1/namespaces/a/pods", "limit=500", &["a/one", "a/two"]);
        check("/api/v1/pods", "labelSelector=app%3Dweb", &["a/one", "b/one"]);
        check("/api/v1/pods", "fieldSelector=metadata.name%3Dtwo", &["a/two"]);
        check("/api/v1/namespaces/c/pods", "", &[]);
    }

    #[test]
    fn a_list_has_the_form_that_is_asked_for() {
        let table = listed("/api/v1/namespaces/a/pods", "", TABLE);
        assert_eq!(table["kind"], "Table");
        assert_eq!(table["rows"][0]["cells"][0], "one");
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        let bare = listed("/api/v1/namespaces/a/pods", "includeObject=None", TABLE);
        assert_eq!(bare["rows"][0]["object"], Value::Null);
        let whole = listed("/api/v1/namespaces/a/pods", "includeObject=Object", TABLE);
        assert_eq!(whole["rows"][0]["object"]["kind"], "Pod");
        let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        let metadata = listed("/api/v1/pods", "", partial);
        assert_eq!(metadata["kind"], "PartialObjectMetadataList");
        assert_eq!(metadata["items"][2]["metadata"]["namespace"], "b");
    }

    #[test]
    fn an_object_has_the_version_that_is_asked_for() {
        let path = "/apis/gateway.networking.k8s.io/v1beta1/namespaces/a/httproutes/web";
        let Call::Get(single) = ask(path, "", PLAIN) else { panic!("{path} is an object") };
        let stored = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "web"}});
        let shown = object(&single, &stored, now());
        assert_eq!(shown["apiVersion"], "gateway.networking.k8s.io/v1beta1");
        let Call::Get(single) = ask(path, "", TABLE) else { panic!("{path} is an object") };
        assert_eq!(object(&single, &stored, now())["rows"][0]["cells"][0], "web");
    }

    #[test]
    fn events_say_what_the_selector_sees() {
        let query = "watch=1&labelSelector=app%3Dweb";
        let Call::Watch(watch) = ask("/api/v1/namespaces/a/pods", query, PLAIN) else {
            panic!("it is a watch");
        };
        let mut history = history();
        let start = history.version();
        let three = pod("a", "three", "web");
        history.look("pods", [pod("a", "one", "db"), pod("a", "two", "web"), three.clone()]);
        history.look("pods", [pod("a", "two", "web")]);
        let changes = history.since("pods", start).expect("known");
        let seen: Vec<String> = changes
            .filter_map(|change| event(&watch, change, now()))
            .map(|it| format!("{} {}", it["type"], it["object"]["metadata"]["name"]))
            .map(|it| it.replace('"', ""))
            .collect();
        let expected = ["DELETED one", "ADDED two", "ADDED three", "DELETED three"];
        assert_eq!(seen, expected);
    }

    #[test]
    fn marks_carry_a_version() {
        let query = "watch=1&allowWatchBookmarks=1&sendInitialEvents=true";
        for accept in [PLAIN, TABLE] {
            let Call::Watch(watch) = ask("/api/v1/pods", query, accept) else {
                panic!("it is a watch");
            };
            let end = initial_end(&watch, 7, now());
            assert_eq!(end["type"], "BOOKMARK");
            let metadata = &end["object"]["metadata"];
            assert_eq!(metadata["resourceVersion"], "7");
            assert_eq!(metadata["annotations"][INITIAL_END], "true");
            let plain = bookmark(&watch, 8, now());
            assert_eq!(plain["object"]["metadata"], json!({"resourceVersion": "8"}));
        }
    }
}
