//! What a machine's objects make of the listeners of a Gateway at the edge and of its ListenerSets,
//! and of its certificate for backends.
//!
//! It counts the routes that are attached, and says which Secrets with certificates are not there
//! or may not be used. The control plane reads the same objects and sends what they say; nothing
//! here changes what is served.

use std::collections::BTreeMap;

use ambit_manifest::gateway::acme::{Acme, secret};
use ambit_manifest::gateway::attach::{Attaching, attach};
use ambit_manifest::gateway::listeners::{Fault, INVALID_CERTIFICATE, Judged};
use ambit_manifest::gateway::sets::ListenerSet;
use ambit_manifest::gateway::{Gateway, SecretRef};
use ambit_manifest::istio::IstioObject;
use ambit_manifest::routes::{GrantFrom, ReferenceGrant, RouteSpec};
use ambit_manifest::routing::{ParentKind, grants, parents};
use ambit_manifest::waypoint::ListenerMade;
use serde_json::Value;

use super::super::{decode, text};
use crate::objects::{Kind, ObjectRef, Store};

/// The kinds of routes.
const ROUTES: [Kind; 5] =
    [Kind::HttpRoute, Kind::GrpcRoute, Kind::TlsRoute, Kind::TcpRoute, Kind::UdpRoute];
/// What a Secret with a certificate holds.
const KEYS: [&str; 2] = ["/data/tls.crt", "/data/tls.key"];

/// What is known of the listeners of a Gateway and of the sets that it takes, by their full names.
pub(super) fn listeners(
    store: &Store,
    object: &ObjectRef,
    gateway: &Gateway,
    judged: &[Judged<'_>],
) -> BTreeMap<String, ListenerMade> {
    let own = object.namespace.as_deref().unwrap_or_default();
    let mut counts = vec![0; judged.len()];
    for kind in ROUTES {
        for (route, value) in store.of_plural(kind.plural()) {
            let attached = attached(store, (own, &object.name), judged, kind, (route, value));
            for (count, is_attached) in counts.iter_mut().zip(attached) {
                *count += usize::from(is_attached);
            }
        }
    }
    let made = judged.iter().zip(counts).map(|(judged, count)| {
        let from = judged.refers_as(own);
        let mut unresolved = judged.certificates().find_map(|it| wrong(store, &from, it));
        let is_ordered = Acme::of(gateway).is_some() && secret(gateway, judged).is_some();
        if let Some(fault) = unresolved.as_mut().filter(|_| is_ordered) {
            fault.what.push_str("; certificates by ACME are ordered on Kubernetes alone");
        }
        let made = ListenerMade { attached_routes: Some(count), unresolved, refused: None };
        (judged.full_name().into_owned(), made)
    });
    made.collect()
}

/// What is wrong with the certificate by which a Gateway proves itself to backends.
pub(super) fn client_certificate(
    store: &Store,
    object: &ObjectRef,
    gateway: &Gateway,
) -> Option<Fault> {
    let named = gateway.spec.client_certificate().filter(|it| it.is_secret())?;
    let own = object.namespace.as_deref().unwrap_or_default();
    wrong(store, &GrantFrom::of_gateways(own), named).map(Fault::of_client_certificate)
}

/// To which listeners of a Gateway a route is attached.
fn attached(
    store: &Store,
    (own, gateway): (&str, &str),
    judged: &[Judged<'_>],
    kind: Kind,
    (object, value): (&ObjectRef, &Value),
) -> Vec<bool> {
    let route: IstioObject<RouteSpec<Value>> = decode(value);
    let namespace = object.namespace.as_deref().unwrap_or_default();
    let labels = labels(store, namespace);
    let is_of_hosts = !matches!(kind, Kind::TcpRoute | Kind::UdpRoute);
    let hosts = if is_of_hosts { route.spec.hosts() } else { &[] };
    let attaching = Attaching { kind, namespace, labels: &labels, hosts };
    let mut attached = vec![false; judged.len()];
    let here = parents(&route.spec, namespace).filter(|it| {
        let named = (it.namespace, it.name);
        match it.kind {
            ParentKind::Gateway => named == (own, gateway),
            ParentKind::ListenerSet => {
                let sets = judged.iter().filter_map(|it| it.set);
                sets.map(ListenerSet::namespaced_name).any(|it| it == named)
            }
            ParentKind::Service | ParentKind::ServiceEntry => false,
        }
    });
    for it in here.filter_map(|it| attach(own, judged, &it, &attaching).ok()).flatten() {
        attached[it.listener] = true;
    }
    attached
}

/// The labels of a namespace.
pub(super) fn labels(store: &Store, namespace: &str) -> BTreeMap<String, String> {
    let object = store.object(&ObjectRef::new(Kind::Namespace, None, namespace));
    let labels = object.and_then(|it| it.pointer("/metadata/labels")).cloned();
    labels.and_then(|it| serde_json::from_value(it).ok()).unwrap_or_default()
}

/// What is wrong with the Secret of a certificate.
fn wrong(store: &Store, from: &GrantFrom, named: &SecretRef) -> Option<Fault> {
    let own = from.namespace();
    let (namespace, name) = (named.namespace.as_deref().unwrap_or(own), &*named.name);
    // First, so that nobody learns what another namespace has.
    if namespace != own && !is_granted(store, from, namespace, name) {
        let what = format!(
            "no ReferenceGrant of `{namespace}` lets {}s of `{own}` refer to its Secret `{name}`",
            from.kind()
        );
        return Some(Fault { reason: "RefNotPermitted", what });
    }
    let secret = store.object(&ObjectRef::new(Kind::Secret, Some(namespace), name));
    let what = match secret {
        None => "does not exist".to_owned(),
        Some(it) => {
            let key = KEYS.iter().find(|key| text(it, key).is_empty())?;
            format!("has no {}", key.trim_start_matches("/data/"))
        }
    };
    let what = format!("the Secret `{namespace}/{name}` {what}");
    Some(Fault { reason: INVALID_CERTIFICATE, what })
}

/// Whether these objects may refer to a Secret of another namespace.
fn is_granted(store: &Store, from: &GrantFrom, namespace: &str, secret: &str) -> bool {
    let mut all = store.of_plural(Kind::ReferenceGrant.plural());
    all.any(|(object, value)| {
        let is_there = object.namespace.as_deref() == Some(namespace);
        is_there && grants(&decode::<ReferenceGrant>(value).spec, from, ("", "Secret", secret))
    })
}
