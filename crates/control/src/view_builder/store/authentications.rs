//! RequestAuthentications and PeerAuthentications: which are there, and for which services and
//! workloads they hold.

use std::sync::Arc;

use ambit_manifest::istio::{PeerAuthentication, RequestAuthentication};
use ambit_manifest::policy::KeySource;
use ambit_manifest::{ObjectName, policy};
use ambit_model::http::authentication::Authentication;
use ambit_model::names::ServiceName;

use super::{Labels, Store, replace, selector};
use crate::registry::IssuerKeys;
use crate::view_builder::request_policies::{Held, Scope};
use crate::view_builder::{Dirty, Mesh, peer_auth, services};

impl Store {
    pub(super) fn put_peer_authentication(
        &mut self,
        mesh: &Mesh,
        name: ObjectName,
        object: Option<Arc<PeerAuthentication>>,
        dirty: &mut Dirty,
    ) {
        let old = self.peer_authentications.get(&name).cloned();
        for object in old.iter().chain(&object) {
            let is_root = name.namespace == mesh.root_namespace;
            dirty.members.extend(match selector(object.spec.selector.as_ref()) {
                Some(labels) => self.members.select(&name.namespace, labels),
                None if is_root => self.members.select_everywhere(&Labels::new()),
                None => self.members.select(&name.namespace, &Labels::new()),
            });
            // A wider mode is what UNSET means in a narrower object.
            let depending = self.peer_authentications.keys();
            let depending = depending.filter(|it| is_root || it.namespace == name.namespace);
            dirty.policies.extend(depending.map(peer_auth::converted_name));
        }
        dirty.policies.insert(peer_auth::converted_name(&name));
        let labels = object.as_ref().and_then(|object| selector(object.spec.selector.as_ref()));
        match labels {
            Some(labels) => {
                let labels = Arc::new(labels.clone());
                self.peer_selectors.insert(&name.namespace, name.clone(), labels);
            }
            None => self.peer_selectors.remove(&name),
        }
        replace(&mut self.peer_authentications, name, object);
    }

    pub(super) fn put_request_authentication(
        &mut self,
        mesh: &Mesh,
        name: ObjectName,
        object: Option<Arc<RequestAuthentication>>,
        dirty: &mut Dirty,
    ) {
        self.mark_authenticated(mesh, &name, dirty);
        replace(&mut self.request_authentications, name, object);
    }

    /// Marks the services for which an object of this name may hold.
    fn mark_authenticated(&self, mesh: &Mesh, name: &ObjectName, dirty: &mut Dirty) {
        let is_meant = |namespace: &str| {
            name.namespace == mesh.root_namespace || *name.namespace == *namespace
        };
        let services = self.services.keys().filter(|it| is_meant(&it.namespace));
        dirty.services.extend(services.map(|it| services::service_name(mesh, it)));
        dirty.services.extend(self.hosts.keys().filter(|it| is_meant(&it.namespace)).cloned());
    }

    /// Takes what was fetched of an issuer. That the same keys were fetched again concerns nobody.
    pub(super) fn put_issuer_keys(
        &mut self,
        mesh: &Mesh,
        source: KeySource,
        state: Option<IssuerKeys>,
        dirty: &mut Dirty,
    ) {
        let old = self.issuer_keys.get(&source).and_then(|it| it.keys.as_ref());
        if old != state.as_ref().and_then(|it| it.keys.as_ref()) {
            for (name, object) in &self.request_authentications {
                let mut sources = object.spec.jwt_rules.iter().filter_map(KeySource::of);
                if sources.any(|it| it == source) {
                    self.mark_authenticated(mesh, name, dirty);
                }
            }
        }
        replace(&mut self.issuer_keys, source, state);
    }

    /// What is known of the keys of a RequestAuthentication's issuers that it names by URL.
    pub(crate) fn issuer_keys<'a>(
        &'a self,
        object: &RequestAuthentication,
    ) -> Vec<(KeySource, Option<&'a IssuerKeys>)> {
        let sources = object.spec.jwt_rules.iter().filter_map(KeySource::of);
        sources.map(|source| (source.clone(), self.issuer_keys.get(&source))).collect()
    }

    /// The RequestAuthentications.
    pub(crate) fn request_authentications(
        &self,
    ) -> impl Iterator<Item = (&ObjectName, &Arc<RequestAuthentication>)> {
        self.request_authentications.iter()
    }

    /// Which tokens are accepted of requests to a service: those of all objects that hold for it.
    pub(in crate::view_builder) fn authentication(
        &self,
        mesh: &Mesh,
        held: &Held<'_>,
    ) -> Authentication {
        let mut all = Authentication::default();
        for (name, object) in &self.request_authentications {
            if self.authentication_holds(mesh, name, object, held) {
                let mut one = policy::authentication(object, &mesh.root_namespace);
                for (rule, written) in one.rules.iter_mut().zip(&object.spec.jwt_rules) {
                    if let Some(source) = KeySource::of(written) {
                        rule.keys = self.issuer_keys.get(&source).and_then(|it| it.keys.clone());
                    }
                }
                all.rules.extend(one.rules);
                all.problem = all.problem.or(one.problem);
            }
        }
        all
    }

    fn authentication_holds(
        &self,
        mesh: &Mesh,
        name: &ObjectName,
        object: &RequestAuthentication,
        held: &Held<'_>,
    ) -> bool {
        let is_root = name.namespace == mesh.root_namespace;
        let scope = match policy::authentication_targets(object, &mesh.root_namespace) {
            Ok(targets) if !targets.is_empty() => Scope::Targets(targets),
            Ok(_) | Err(_) if is_root => Scope::Mesh,
            Ok(_) | Err(_) => Scope::Namespace,
        };
        let labels = selector(object.spec.selector.as_ref());
        scope.holds(mesh, &name.namespace, held)
            && labels.is_none_or(|labels| self.serves_only(mesh, held.name, labels))
    }

    /// Whether all pods of a service have these labels, because the service asks for them, or
    /// because they are a gateway's.
    fn serves_only(&self, mesh: &Mesh, name: &ServiceName, labels: &Labels) -> bool {
        let edge = self.gateways.edge_behind(mesh, name);
        if edge.is_some_and(|edge| self.gateways.selects(edge, labels)) {
            return true;
        }
        self.kubernetes_service(mesh, name).is_some_and(|(_, record)| {
            labels.iter().all(|(key, value)| record.selector.get(key) == Some(value))
        })
    }
}
