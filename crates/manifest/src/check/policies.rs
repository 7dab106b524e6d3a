//! Checks policies against the existing objects: which workloads each selects, which clients it
//! names.
//!
//! A policy that selects nothing, or that names clients that cannot exist, is well formed, but it
//! protects nothing, or lets nobody in. Only its author knows what was meant, so each is a warning.

use std::collections::BTreeSet;

use ambit_words::labels::{NONE, USE_WAYPOINT};
use ambit_words::names::{DEFAULT_MESH_NAMESPACE, DEFAULT_TRUST_DOMAIN, MESH_CONFIG_MAP};

use super::{All, Pods, listed, selector, selects};
use crate::istio::{
    Action, AuthorizationPolicy, PeerAuthentication, RequestAuthentication, WorkloadSelector,
};
use crate::mesh_config::Provider;
use crate::policy::{Target, Unenforceable};
use crate::{Finding, Kind, Object, ObjectKey, ObjectName, Typed, policy};

/// Warns where a policy means the client behind a proxy: waypoints know the peer alone.
fn remote_addresses(object: &Object, policy: &AuthorizationPolicy, warnings: &mut Vec<Finding>) {
    let what = "waypoints believe no `x-forwarded-for`: it is compared with the peer's address";
    let remedy = "use `ipBlocks` or `source.ip` if the peer is meant";
    for (index, rule) in policy.spec.rules.iter().flatten().enumerate() {
        let from = rule.from.iter().flatten().enumerate();
        let from = from.filter_map(|(from, it)| {
            let source = it.source.as_ref()?;
            let asks = source.remote_ip_blocks.is_some() || source.not_remote_ip_blocks.is_some();
            asks.then(|| format!("from[{from}].source"))
        });
        let when = rule.when.iter().flatten().enumerate();
        let when =
            when.filter(|(_, it)| it.key == "remote.ip").map(|(at, _)| format!("when[{at}]"));
        for at in from.chain(when) {
            warnings.push(object.finding(format!("spec.rules[{index}].{at}"), what, remedy));
        }
    }
}

impl All<'_> {
    /// Warns about a policy that is not enforced as written, and names the clients it concerns.
    pub(super) fn policy(
        &self,
        object: &Object,
        policy: &AuthorizationPolicy,
        warnings: &mut Vec<Finding>,
    ) {
        self.strangers(object, policy, warnings);
        let namespace = &*object.key.namespace;
        let scope = (namespace != DEFAULT_MESH_NAMESPACE).then_some(namespace);
        self.selects_nothing(object, scope, policy.spec.selector.as_ref(), warnings);
        self.provider(object, policy, warnings);
        let attached = policy::attachments(policy, DEFAULT_MESH_NAMESPACE);
        if let Ok(targets) = &attached
            && !targets.is_empty()
            && self.absent(object, targets, warnings) == targets.len()
        {
            return;
        }
        if self.is_for_waypoints(policy) {
            if let Err(Unenforceable { field, problem }) = policy::request_policy(policy) {
                let what = format!("{problem}: all that it is for is denied");
                warnings.push(object.finding(&field, what, "correct it, or remove it"));
            }
            remote_addresses(object, policy, warnings);
            return;
        }
        let converted = policy::convert(policy, DEFAULT_MESH_NAMESPACE);
        if converted.condition.status == "True" {
            return;
        }
        let held = self.pods(scope).into_iter().filter(|pods| !pods.is_owned);
        let held = held.filter(|pods| self.holds_for(policy, pods));
        let held: BTreeSet<String> =
            held.map(|pods| format!("{}/{}", pods.namespace, pods.name)).collect();
        let held: Vec<&str> = held.iter().map(String::as_str).collect();
        let whom = match (&converted.policy, held.is_empty()) {
            (Some(_), false) => format!("; it holds for {}", listed(&held)),
            _ => String::new(),
        };
        warnings.push(
            object.finding(
                "spec",
                format!(
                    "will be Accepted=False ({}): \
                 {}{whom}",
                    converted.condition.reason, converted.condition.message
                ),
                match attached {
                    Err(_) => "correct the target".to_owned(),
                    Ok(targets) if converted.policy.is_none() && !targets.is_empty() => {
                        format!("let its targets name a waypoint, by the label {USE_WAYPOINT}")
                    }
                    Ok(_) => "write it with source and destination.port only, or attach it to a \
                          waypoint"
                        .to_owned(),
                },
            ),
        );
    }

    /// Warns about a RequestAuthentication that nobody asks for tokens.
    pub(super) fn tokens(
        &self,
        object: &Object,
        tokens: &RequestAuthentication,
        warnings: &mut Vec<Finding>,
    ) {
        match policy::authentication_targets(tokens, DEFAULT_MESH_NAMESPACE) {
            Ok(targets) => {
                self.absent(object, &targets, warnings);
            }
            Err(Unenforceable { field, problem }) => {
                let whose = policy::unreadable_reach(&tokens.metadata, DEFAULT_MESH_NAMESPACE);
                let what = format!("{problem}: all requests to {whose} are refused");
                warnings.push(object.finding(&field, what, "correct it, or remove it"));
            }
        }
    }

    /// Warns about targets that are not there: nothing holds for what was meant. Returns how many.
    fn absent(&self, object: &Object, targets: &[Target], warnings: &mut Vec<Finding>) -> usize {
        let before = warnings.len();
        for (index, target) in targets.iter().enumerate() {
            let (kind, name) = match target {
                Target::Gateway(name) => (Kind::Gateway, name),
                Target::Service(name) => (Kind::Service, name),
                Target::ServiceEntry(name) => (Kind::ServiceEntry, name),
                // Control makes those that Istio has too.
                Target::GatewayClass(_) => continue,
            };
            let ObjectName { namespace, name } = name;
            if !self.has(kind, namespace, name) {
                warnings.push(object.finding(
                    format!("spec.targetRefs[{index}]"),
                    format!("the {kind} `{namespace}/{name}` does not exist: nothing holds for it"),
                    "correct the name, or add the object",
                ));
            }
        }
        warnings.len() - before
    }

    /// A provider that the mesh configuration does not have, or whose service is not there.
    fn provider(&self, object: &Object, policy: &AuthorizationPolicy, warnings: &mut Vec<Finding>) {
        let asks = policy.spec.action == Action::Custom;
        let Some(named) = policy.spec.provider.as_ref().filter(|_| asks) else { return };
        let name = &named.name;
        let why = match self.mesh_config().providers.get(name) {
            Some(Provider::ExtAuthz(it)) if self.provider_service(&it.service).is_some() => return,
            Some(Provider::ExtAuthz(it)) => {
                let host = &it.service.host;
                format!("the service `{host}` of the provider `{name}` does not exist")
            }
            Some(Provider::Telemetry(_)) => format!("the provider `{name}` does not authorize"),
            Some(Provider::Unusable(why)) => format!("the provider `{name}` is wrong: {why}"),
            None => format!("the mesh configuration has no provider `{name}`"),
        };
        let what = format!("{why}: all requests that it matches are refused");
        let remedy = format!(
            "define it in extensionProviders of the ConfigMap \
             {DEFAULT_MESH_NAMESPACE}/{MESH_CONFIG_MAP}"
        );
        warnings.push(object.finding("spec.provider.name", what, remedy));
    }

    /// Whether a policy is attached, and all that it is attached to is a waypoint or names one.
    fn is_for_waypoints(&self, policy: &AuthorizationPolicy) -> bool {
        let Ok(targets) = policy::attachments(policy, DEFAULT_MESH_NAMESPACE) else { return false };
        !targets.is_empty()
            && targets.iter().all(|target| match target {
                Target::GatewayClass(_) => true,
                Target::Gateway(name) => {
                    let key = ObjectKey::new(Kind::Gateway, &name.namespace, &name.name);
                    self.objects.contains_key(&key)
                }
                Target::Service(name) => self.names_waypoint(Kind::Service, name),
                Target::ServiceEntry(name) => self.names_waypoint(Kind::ServiceEntry, name),
            })
    }

    /// Whether an object is there and names a waypoint, or its namespace does.
    pub(super) fn names_waypoint(&self, kind: Kind, name: &ObjectName) -> bool {
        let object = self.objects.get(&ObjectKey::new(kind, &name.namespace, &name.name));
        let namespace = ObjectKey::new(Kind::Namespace, "", &name.namespace);
        let named = [object, self.objects.get(&namespace)]
            .into_iter()
            .find_map(|it| it?.metadata().labels.as_ref()?.get(USE_WAYPOINT));
        object.is_some() && named.is_some_and(|name| ![NONE, ""].contains(&name.as_str()))
    }

    /// Whether a policy holds for pods that are where it looks.
    fn holds_for(&self, policy: &AuthorizationPolicy, pods: &Pods<'_>) -> bool {
        let mut attached = policy::services(policy).peekable();
        match &policy.spec.selector {
            Some(selector) if pods.are_meant(&selector.match_labels) => true,
            None if attached.peek().is_none() => true,
            _ => attached.any(|service| {
                let key = ObjectKey::new(Kind::Service, &service.namespace, &service.name);
                let Some(Typed::Service(object)) = self.objects.get(&key) else { return false };
                *service.namespace == *pods.namespace
                    && selector(object).is_some_and(|it| pods.are_meant(it))
            }),
        }
    }

    /// A PeerAuthentication; one with a selector is of its own namespace, that of the mesh
    /// included.
    pub(super) fn modes(
        &self,
        object: &Object,
        modes: &PeerAuthentication,
        warnings: &mut Vec<Finding>,
    ) {
        let scope = Some(&*object.key.namespace);
        self.selects_nothing(object, scope, modes.spec.selector.as_ref(), warnings);
    }

    /// A selector that no workload answers to; `scope` is its namespace, or all.
    fn selects_nothing(
        &self,
        object: &Object,
        scope: Option<&str>,
        selector: Option<&WorkloadSelector>,
        warnings: &mut Vec<Finding>,
    ) {
        let Some(labels) = selector.map(|it| &it.match_labels).filter(|it| !it.is_empty()) else {
            return;
        };
        let entries = self.objects.iter().filter(|(key, typed)| {
            let Typed::WorkloadEntry(entry) = typed else { return false };
            scope.is_none_or(|scope| scope == &*key.namespace)
                && (selects(labels, Some(&entry.spec.labels))
                    || selects(labels, entry.metadata.labels.as_ref()))
        });
        let pods = self.pods(scope);
        if pods.iter().any(|pods| pods.are_meant(labels)) || entries.count() > 0 {
            return;
        }
        let place = match scope {
            Some(namespace) => format!("of namespace `{namespace}`"),
            None => "of any namespace".to_owned(),
        };
        warnings.push(object.finding(
            "spec.selector",
            format!("no workload {place} has these labels: it holds for nobody"),
            "make the selector and the pods' labels agree",
        ));
    }

    /// Clients of namespaces that do not exist.
    fn strangers(
        &self,
        object: &Object,
        policy: &AuthorizationPolicy,
        warnings: &mut Vec<Finding>,
    ) {
        for named in policy::named_namespaces(policy) {
            if self.has_namespace(&named.namespace) || !named.is_of(DEFAULT_TRUST_DOMAIN) {
                continue;
            }
            let what = format!("{} does not exist: no client matches it", named.named());
            warnings.push(object.finding(
                named.field,
                what,
                "correct the name, or create the namespace",
            ));
        }
    }
}
