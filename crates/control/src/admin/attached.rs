//! What is attached to waypoints and has no effect there, for `ambit status`.

use ambit_manifest::policy::StatusCondition;
use ambit_manifest::routing::ParentKind;
use ambit_manifest::{Kind, ObjectName};
use ambit_wire::admin::{Finding, Severity};
use ambit_words::labels::USE_WAYPOINT_CANARY;

use crate::attached::{self, Fronted};
use crate::view_builder::edge::Edges;
use crate::view_builder::http_services::RESOLVED_WAYPOINTS;
use crate::view_builder::{Builder, http_services};

/// Canaries that get nothing.
pub(super) fn canaries(builder: &Builder) -> Vec<Finding> {
    let store = builder.store();
    let services = store.services().map(|(name, _)| (ParentKind::Service, name.clone()));
    let entries = store.service_entries().map(|(it, _)| (ParentKind::ServiceEntry, it.clone()));
    let finding = |parent: (ParentKind, ObjectName)| {
        let binding = store.binding(&parent)?;
        let (canary, share) = binding.canary?;
        let unfit = share.err()?;
        Some(Finding {
            severity: Severity::Warning,
            rule: "canary".into(),
            object: object(parent.0.into(), &parent.1),
            what: format!(
                "the canary waypoint {} that {USE_WAYPOINT_CANARY} names {}: all connections go \
                 to the waypoint {}",
                canary.name,
                unfit.what(),
                binding.waypoint.name
            ),
            remedy: unfit.remedy().to_owned(),
        })
    };
    services.chain(entries).filter_map(finding).collect()
}

/// Policies that waypoints do not enforce as they are written, and routes that nobody follows.
pub(super) fn findings(builder: &Builder) -> Vec<Finding> {
    let (store, fronted) = (builder.store(), Fronted::of(builder));
    let policies = store.policies().filter_map(|(name, policy)| {
        let condition = attached::of_policy(builder, &fronted, name, policy)?;
        of_condition(Kind::AuthorizationPolicy, name, condition)
    });
    let tokens = store.request_authentications().filter_map(|(name, object)| {
        let condition = attached::of_authentication(builder, &fronted, name, object)?;
        of_condition(Kind::RequestAuthentication, name, condition)
    });
    let edges = Edges::new(store);
    let routes = store.routes().iter().flat_map(|(name, route)| {
        let routing = builder.routing(name);
        let conditions = routing.map(|it| http_services::conditions(&edges, route, it));
        let parents = conditions.unwrap_or_default().into_iter();
        let unread = parents.filter_map(|(parent, conditions)| {
            let is_unread =
                |it: &StatusCondition| it.kind == RESOLVED_WAYPOINTS && it.status == "False";
            let condition = conditions.into_iter().find(is_unread)?;
            Some(Finding {
                severity: Severity::Warning,
                rule: "route-waypoint".into(),
                object: object(name.0, &name.1),
                what: format!("for {}: {}", parent.name, condition.message),
                remedy: "give its parent a waypoint: `ambit waypoint apply --enroll-namespace`"
                    .to_owned(),
            })
        });
        unread.collect::<Vec<_>>()
    });
    policies.chain(tokens).chain(routes).collect()
}

fn of_condition(kind: Kind, name: &ObjectName, condition: StatusCondition) -> Option<Finding> {
    let is_unenforced = condition.status == "False" || condition.reason == "PartiallyInvalid";
    is_unenforced.then(|| Finding {
        severity: if condition.reason == "Invalid" { Severity::Error } else { Severity::Warning },
        rule: "policy-waypoint".into(),
        object: object(kind, name),
        what: condition.message,
        remedy: "correct it, or give what it is attached to a waypoint".to_owned(),
    })
}

fn object(kind: Kind, name: &ObjectName) -> String {
    format!("{} {}/{}", kind.name(), name.namespace, name.name)
}
