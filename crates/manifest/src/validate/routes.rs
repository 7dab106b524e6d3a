//! Rules for what routes attach to, and for ReferenceGrant. What a route's rules mean, and what of
//! them is wrong, is in [`crate::routing`].

use std::collections::BTreeSet;

use super::names::{self, require};
use crate::finding::{Issues, Path};
use crate::routes::{ReferenceGrantSpec, RouteSpec};

/// Checks what a route attaches to.
pub(crate) fn parents<R: Default>(spec: &RouteSpec<R>, at: &Path, issues: &mut Issues) {
    let at = at.field("parentRefs");
    let mut seen = BTreeSet::new();
    for (index, parent) in spec.parent_refs.iter().enumerate() {
        let at = at.index(index);
        require(issues, &at.field("name"), names::dns_subdomain, &parent.name);
        if let Some(namespace) = &parent.namespace {
            require(issues, &at.field("namespace"), names::dns_label, namespace);
        }
        if let Some(what) = parent.port.and_then(names::port_number) {
            issues.error(&at.field("port"), what, "write the number of a port");
        }
        let named = (&parent.group, &parent.kind, &parent.namespace, &parent.name);
        if !seen.insert((named, parent.port, &parent.section_name)) {
            issues.error(&at, "the same parent is there twice", "remove one of the two");
        }
    }
}

/// Checks a ReferenceGrant.
pub(crate) fn reference_grant(spec: &ReferenceGrantSpec, at: &Path, issues: &mut Issues) {
    for (index, from) in spec.from.iter().enumerate() {
        let at = at.field("from").index(index);
        require(issues, &at.field("namespace"), names::dns_label, &from.namespace);
        if from.kind.is_empty() {
            issues.error(&at.field("kind"), "the kind is missing", "name it, as in HTTPRoute");
        }
    }
    for (index, to) in spec.to.iter().enumerate() {
        if to.kind.is_empty() {
            let at = at.field("to").index(index).field("kind");
            issues.error(&at, "the kind is missing", "name it, as in Service");
        }
    }
    for (field, is_empty) in [("from", spec.from.is_empty()), ("to", spec.to.is_empty())] {
        if is_empty {
            issues.error(&at.field(field), "a grant of nothing", "list who may refer to what");
        }
    }
}
