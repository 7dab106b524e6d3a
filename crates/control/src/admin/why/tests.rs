//! Questions, each with a part of its answer.

use ambit_manifest::stored;
use serde_json::{Value, json};

use super::*;
use crate::registry::{CaptureNotes, Event, PodStatus};
use crate::view_builder::{Mesh, Vips};

fn put(kind: Kind, name: &str, mut object: Value) -> Event {
    object["apiVersion"] = kind.api_versions()[0].into();
    object["kind"] = kind.name().into();
    object["metadata"]["namespace"] = "app".into();
    object["metadata"]["name"] = name.into();
    object["metadata"]["uid"] = name.into();
    Event::Put(stored(kind, object.to_string().as_bytes()).expect("valid"))
}

/// A pod of a Deployment; with an address it runs and is captured.
fn pod(owner: &str, name: &str, ip: Option<&str>, ready: bool) -> Vec<Event> {
    let owners = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": owner,
        "uid": owner, "controller": true}]);
    let object = json!({
        "metadata": {"ownerReferences": owners, "labels": {"app": owner}},
        "spec": {"nodeName": "node-1", "containers": []},
    });
    let mut events = vec![put(Kind::Pod, name, object)];
    let Some(ip) = ip else { return events };
    let status = PodStatus {
        uid: name.into(),
        phase: "Running".into(),
        pod_ips: vec![ip.parse().expect("an address")],
        ready,
        ..PodStatus::default()
    };
    events.push(Event::Captured {
        namespace: "app".into(),
        name: name.into(),
        uid: Some(name.into()),
        notes: CaptureNotes::default(),
    });
    let status = Some(status);
    events.push(Event::PodStatus { namespace: "app".into(), name: name.into(), status });
    events
}

/// Pods of `load` and of `web`, which has a service of its name; nothing of `late` runs, and
/// `unready` is not ready.
fn builder() -> Builder {
    let mut builder = Builder::new(Mesh::sample(), Vips::default());
    let ports = json!([{"port": 80, "targetPort": 8080}]);
    let spec = json!({"clusterIP": "10.96.0.1", "selector": {"app": "web"}, "ports": ports});
    builder.apply(
        [
            pod("load", "load-1", Some("10.0.0.1"), false),
            pod("load", "load-2", Some("10.0.0.2"), true),
            pod("backend", "backend-1", Some("10.0.0.3"), true),
            pod("unready", "unready-1", Some("10.0.0.5"), false),
            pod("late", "late-1", None, false),
            pod("web", "web-1", Some("10.0.0.4"), true),
            vec![put(Kind::Service, "web", json!({"spec": spec}))],
        ]
        .concat(),
    );
    builder
}

fn error(builder: &Builder, source: &str, destination: &str) -> String {
    explain(builder, source, destination).expect_err("no answer").to_string()
}

#[test]
fn a_deployment_means_a_pod_of_it_that_is_ready() {
    let builder = builder();
    let check = |source: &str, destination: &str, pod: &str, address: &str| {
        let answer = explain(&builder, source, destination).expect("an answer");
        let meant = (answer.source.pod, answer.destination.address.to_string());
        assert_eq!(meant, (pod.to_owned(), address.to_owned()), "{source} {destination}");
        answer.notes
    };
    for source in ["app/load", "deploy/app/load", "deployment/app/load"] {
        let notes = check(source, "web", "app/load-2", "10.96.0.1:80");
        assert_eq!(notes, ["app/load has 2 pods that run; this is app/load-2"]);
    }
    let one = check("app/backend", "app/load-1:80", "app/backend-1", "10.0.0.1:80");
    assert_eq!(one, [""; 0], "there is no choice");
    let unready = check("app/unready", "web", "app/unready-1", "10.96.0.1:80");
    assert_eq!(unready, ["app/unready-1 is not ready"]);
    let named = check("app/unready-1", "web", "app/unready-1", "10.96.0.1:80");
    assert_eq!(named, [""; 0], "nothing was picked");
    check("app/load-1", "app/backend:9000", "app/load-1", "10.0.0.3:9000");
    check("app/load-1", "app/web", "app/load-1", "10.96.0.1:80");
    check("app/load-1", "deploy/web", "app/load-1", "10.0.0.4:8080");
    check("app/load-1", "pod/web-1", "app/load-1", "10.0.0.4:8080");
}

#[test]
fn what_does_not_exist_is_said_with_what_may_be_meant() {
    let builder = builder();
    let check = |source: &str, destination: &str, expected: &str| {
        let error = error(&builder, source, destination);
        assert!(error.starts_with(expected), "{source} {destination}: {error}");
    };
    check("app/nosuch", "web", "there is no running pod app/nosuch, nor a workload of that");
    let near = "there is no running pod app/laod, nor a workload of that name with one; did you \
        mean app/load?";
    check("app/laod", "web", near);
    check("pod/app/load", "web", "there is no running pod pod/app/load");
    let from = |destination: &str, expected: &str| check("app/load", destination, expected);
    let any = "there is no service, pod or workload app/";
    from("app/nosuch:80", &format!("{any}nosuch; see `ambit get services`"));
    from("app/wbe:80", &format!("{any}wbe; did you mean app/web?"));
    from("app/bakend:80", &format!("{any}bakend; did you mean app/backend?"));
    from("svc/nosuch:80", "there is no service app/nosuch; see");
    from("svc/backend:80", "there is no service app/backend; see");
    from("pod/app/web:80", "there is no pod app/web");
    from("deploy/app/web-1", "there is no Deployment app/web-1; did you mean app/web?");
    from("app/late:80", "app/late has no address");
    from("app/late-1:80", "app/late-1 has no address");
    from("nosuch.example:80", "no service is called \"nosuch.example\"; for a host outside");
    from("wbe", "no service is called \"wbe\"; did you mean web?");
    from("web.ap:80", "no service is called \"web.ap\"; did you mean web.app?");
    from("app/web:http", "\"app/web:http\" is no destination; write NAMESPACE/POD");
}

#[test]
fn the_port_of_an_ipv6_address_is_asked_for_with_brackets() {
    let builder = builder();
    for (destination, expected) in [
        ("::1", "say which port of ::1, as in [::1]:8080"),
        ("[::1]", "say which port of ::1, as in [::1]:8080"),
        ("fd00::2:80", "say which port of fd00::2:80, as in [fd00::2:80]:8080"),
        ("10.0.0.1", "say which port of 10.0.0.1, as in 10.0.0.1:8080"),
    ] {
        let error = error(&builder, "app/load", destination);
        assert!(error.starts_with(expected), "{destination}: {error}");
    }
}
