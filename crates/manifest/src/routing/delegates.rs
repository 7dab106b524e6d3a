//! VirtualServices that others delegate to.
//!
//! Routes of a delegate take the place of the route that delegates, with the matches of both. As
//! in Istio a match must be narrower than one of those that it is put below; a route with one that
//! is not is left out, and what the delegate does not say it takes over.

use std::collections::BTreeMap;

use crate::virtual_service::{HttpMatch, HttpRoute, StringMatch};

/// The routes of a delegate in place of `root`, each with its index in the delegate, and whether
/// it can be put there.
pub(super) fn placed(
    root: &HttpRoute,
    delegate: &[HttpRoute],
) -> Vec<(usize, Result<HttpRoute, ()>)> {
    let placed = delegate.iter().map(|route| match merged_matches(&root.matches, &route.matches) {
        Some(matches) => Ok(merged(root, route, matches)),
        None => Err(()),
    });
    placed.enumerate().collect()
}

fn merged(root: &HttpRoute, route: &HttpRoute, matches: Vec<HttpMatch>) -> HttpRoute {
    let name = match (&root.name, &route.name) {
        (Some(root), Some(own)) => Some(format!("{root}-{own}")),
        (root, own) => own.clone().or_else(|| root.clone()),
    };
    let has_mirror = route.mirror.is_some() || !route.mirrors.is_empty();
    let mirrors = if has_mirror { route } else { root };
    HttpRoute {
        name,
        matches,
        delegate: None,
        rewrite: route.rewrite.clone().or_else(|| root.rewrite.clone()),
        timeout: route.timeout.clone().or_else(|| root.timeout.clone()),
        retries: route.retries.clone().or_else(|| root.retries.clone()),
        fault: route.fault.clone().or_else(|| root.fault.clone()),
        mirror: mirrors.mirror.clone(),
        mirrors: mirrors.mirrors.clone(),
        mirror_percent: mirrors.mirror_percent,
        mirror_percentage: mirrors.mirror_percentage,
        cors_policy: route.cors_policy.clone().or_else(|| root.cors_policy.clone()),
        headers: route.headers.clone().or_else(|| root.headers.clone()),
        unread: root.unread.clone().or_else(|| route.unread.clone()),
        ..route.clone()
    }
}

fn merged_matches(root: &[HttpMatch], leaves: &[HttpMatch]) -> Option<Vec<HttpMatch>> {
    if root.is_empty() || leaves.is_empty() {
        return Some(if root.is_empty() { leaves } else { root }.to_vec());
    }
    let mut all = Vec::new();
    for leaf in leaves {
        let before = all.len();
        all.extend(root.iter().filter(|root| is_below(root, leaf)).map(|root| both(root, leaf)));
        if all.len() == before {
            return None;
        }
    }
    Some(all)
}

fn both(root: &HttpMatch, leaf: &HttpMatch) -> HttpMatch {
    let or = |own: &Option<StringMatch>, outer: &Option<StringMatch>| {
        own.clone().or_else(|| outer.clone())
    };
    let all = |outer: &BTreeMap<String, StringMatch>, own: &BTreeMap<String, StringMatch>| {
        outer.iter().chain(own).map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    // It is for the mesh where both say so.
    let gateways = &[root, leaf].into_iter().find(|it| !it.is_of_mesh()).unwrap_or(leaf).gateways;
    HttpMatch {
        uri: or(&leaf.uri, &root.uri),
        scheme: or(&leaf.scheme, &root.scheme),
        method: or(&leaf.method, &root.method),
        authority: or(&leaf.authority, &root.authority),
        headers: all(&root.headers, &leaf.headers),
        without_headers: all(&root.without_headers, &leaf.without_headers),
        query_params: all(&root.query_params, &leaf.query_params),
        port: leaf.port.or(root.port),
        // What the one that delegates says of clients holds, and a delegate may say more.
        source_namespace: leaf.source_namespace.clone().or_else(|| root.source_namespace.clone()),
        source_labels: root
            .source_labels
            .iter()
            .chain(&leaf.source_labels)
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
        gateways: gateways.clone(),
        ..leaf.clone()
    }
}

/// Whether everything that `leaf` names is within what `root` names.
fn is_below(root: &HttpMatch, leaf: &HttpMatch) -> bool {
    let within = |outer: &BTreeMap<String, StringMatch>, own: &BTreeMap<String, StringMatch>| {
        own.iter().all(|(name, value)| is_within(outer.get(name), Some(value)))
    };
    let namespaces = root.source_namespace.as_ref().zip(leaf.source_namespace.as_ref());
    is_within(root.uri.as_ref(), leaf.uri.as_ref())
        && is_within(root.scheme.as_ref(), leaf.scheme.as_ref())
        && is_within(root.method.as_ref(), leaf.method.as_ref())
        && is_within(root.authority.as_ref(), leaf.authority.as_ref())
        && within(&root.headers, &leaf.headers)
        && within(&root.without_headers, &leaf.without_headers)
        && within(&root.query_params, &leaf.query_params)
        && root.ignore_uri_case.unwrap_or_default() == leaf.ignore_uri_case.unwrap_or_default()
        && root.port.zip(leaf.port).is_none_or(|(root, leaf)| root == leaf)
        && namespaces.is_none_or(|(root, leaf)| root == leaf)
}

fn is_within(root: Option<&StringMatch>, leaf: Option<&StringMatch>) -> bool {
    let (Some(root), Some(leaf)) = (root, leaf) else { return true };
    if root == leaf {
        return true;
    }
    match (&root.exact, &root.prefix, &leaf.exact, &leaf.prefix) {
        (Some(root), _, Some(leaf), _) => root == leaf,
        (None, Some(root), Some(leaf), _) | (None, Some(root), None, Some(leaf)) => {
            leaf.starts_with(root)
        }
        _ => false,
    }
}
