//! Rules for `targetRef` and `targetRefs` of AuthorizationPolicy, RequestAuthentication and
//! Telemetry.
//!
//! An object whose targets cannot be read holds for its whole namespace where it is applied
//! already, so that it never holds for less than its author meant. Before it is applied, it is an
//! error. Whether a target is there is for `manifest::check` to say.

use crate::finding::{Issues, Path};
use crate::istio::TargetRef;
use crate::routes::GROUP as GATEWAY_GROUP;

/// Most objects that one policy is attached to, as in Istio.
pub(crate) const TARGETS_MAX: usize = 16;

/// What a policy can be attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetKind {
    Gateway,
    GatewayClass,
    Service,
    ServiceEntry,
}

/// The kind of a target, or why there is none.
pub(crate) fn kind(target: &TargetRef) -> Result<TargetKind, (String, String)> {
    match (&*target.group, &*target.kind) {
        (GATEWAY_GROUP, "Gateway") => Ok(TargetKind::Gateway),
        (GATEWAY_GROUP, "GatewayClass") => Ok(TargetKind::GatewayClass),
        ("" | "core", "Service") => Ok(TargetKind::Service),
        ("networking.istio.io", "ServiceEntry") => Ok(TargetKind::ServiceEntry),
        (group, kind) => Err((
            format!("a policy cannot be attached to {kind} of group {group:?}"),
            format!(
                "use Gateway or GatewayClass of {GATEWAY_GROUP}, Service, or ServiceEntry of \
                 networking.istio.io"
            ),
        )),
    }
}

/// Checks the targets of an object of this namespace, each by itself.
pub(crate) fn check(
    single: Option<&TargetRef>,
    listed: Option<&[TargetRef]>,
    namespace: Option<&str>,
    issues: &mut Issues,
) {
    let at = Path::at("spec");
    let listed = listed.unwrap_or_default();
    if listed.len() > TARGETS_MAX {
        let what = format!("it is attached to more than {TARGETS_MAX} objects");
        issues.error(&at.field("targetRefs"), what, "make it several");
    }
    let listed = listed.iter().enumerate();
    let listed = listed.map(|(index, target)| (at.field("targetRefs").index(index), target));
    let single = single.into_iter().map(|target| (at.field("targetRef"), target));
    for (at, target) in single.chain(listed) {
        if target.kind.is_empty() || target.name.is_empty() {
            issues.error(&at, "a target needs `kind` and `name`", "add what is missing");
        } else if let Err((what, remedy)) = kind(target) {
            issues.error(&at, what, remedy);
        }
        let own = namespace.unwrap_or("default");
        if target.namespace.as_deref().is_some_and(|of_target| of_target != own) {
            let what = "a policy holds for objects of its own namespace";
            issues.error(&at.field("namespace"), what, "leave it away");
        }
    }
}
