//! The roots by which clients prove themselves to Gateways at the edge, and endpoints to whom a
//! BackendTLSPolicy is for.
//!
//! They are in ConfigMaps, under `ca.crt`, or in ClusterTrustBundles, which are ConfigMaps of no
//! namespace here. Of several those that can be used count together. If none can, nobody can prove
//! anything: such a listener refuses every client, and is not accepted.

use std::collections::BTreeMap;

use ambit_manifest::ObjectName;
use ambit_manifest::gateway::listeners::Fault;
use ambit_manifest::gateway::{CaCertificateRef, FrontendTls};
use ambit_manifest::routes::GrantFrom;
use ambit_model::Text;
use ambit_model::http::gateway::ClientValidation;
use ambit_tls::edge::check_roots;
use ambit_words::error_chain;
use ambit_words::secrets::ROOTS_KEY;
use k8s_openapi::api::core::v1::ConfigMap;

use super::store::Store;

/// The reason where nobody can prove anything.
pub(super) const NO_ROOTS: &str = "NoValidCACertificate";
/// The mode in which clients without a good certificate are taken all the same.
const INSECURE_FALLBACK: &str = "AllowInsecureFallback";

/// All ConfigMaps that may hold roots.
#[derive(Debug, Default)]
pub(crate) struct ClientRoots {
    maps: BTreeMap<ObjectName, Option<Text>>,
}

impl ClientRoots {
    /// Puts or removes a ConfigMap; answers whether its roots are others than before.
    pub(super) fn put(&mut self, name: &ObjectName, map: Option<&ConfigMap>) -> bool {
        let roots = |map: &ConfigMap| {
            let data = map.data.as_ref()?;
            data.get(ROOTS_KEY).map(|roots| Text::from(roots.as_str()))
        };
        let new = map.map(roots);
        let is_news = self.maps.get(name) != new.as_ref();
        match new {
            Some(roots) => drop(self.maps.insert(name.clone(), roots)),
            None => drop(self.maps.remove(name)),
        }
        is_news
    }

    /// The roots of a ConfigMap, or why they cannot be used.
    pub(super) fn find(&self, name: &ObjectName) -> Result<&Text, String> {
        let (at, key) = match name.namespace.is_empty() {
            true => (format!("ClusterTrustBundle {}", name.name), "spec.trustBundle"),
            false => (format!("ConfigMap {}/{}", name.namespace, name.name), ROOTS_KEY),
        };
        let map = self.maps.get(name).ok_or_else(|| format!("there is no {at}"))?;
        let roots = map.as_ref().ok_or_else(|| format!("{at} has no {key}"))?;
        let unusable = |error| format!("{key} of {at} cannot be used: {error}");
        check_roots(roots).map_err(|error| unusable(error_chain(&error)))?;
        Ok(roots)
    }
}

/// What a Gateway asks of the clients of a port.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Asked {
    /// Which clients must prove themselves.
    pub(super) validation: ClientValidation,
    /// What is wrong with the first reference that cannot be used.
    pub(super) unresolved: Option<Fault>,
    /// Why nobody can prove anything.
    pub(super) refused: Option<Fault>,
}

/// What a Gateway of this namespace asks of the clients of a port.
pub(super) fn asked(
    store: &Store,
    namespace: &str,
    frontend: Option<&FrontendTls>,
    port: i32,
) -> Asked {
    let Some(asked) = frontend.and_then(|it| it.validation(port)) else { return Asked::default() };
    let (mut roots, mut unresolved) = (Vec::new(), None);
    for named in &asked.ca_certificate_refs {
        match find(store, namespace, named) {
            Ok(found) => roots.push(&**found),
            Err(fault) => unresolved = unresolved.or(Some(fault)),
        }
    }
    let joined = joined(&roots, "clients");
    let refused = joined.clone().err().map(|what| Fault { reason: NO_ROOTS, what });
    let validation = match joined {
        Err(problem) => ClientValidation::Impossible { problem: problem.into() },
        Ok(roots_pem) if asked.mode.as_deref() == Some(INSECURE_FALLBACK) => {
            ClientValidation::Optional { roots_pem }
        }
        Ok(roots_pem) => ClientValidation::Required { roots_pem },
    };
    Asked { validation, unresolved, refused }
}

/// The roots of several ConfigMaps together, or why nobody can prove anything by them. `whose`
/// roots they are is said then.
pub(super) fn joined(roots: &[&str], whose: &str) -> Result<Text, String> {
    if roots.is_empty() {
        return Err(format!("none of the roots for {whose} can be used"));
    }
    let joined = roots.join("\n");
    check_roots(&joined).map_err(|error| error_chain(&error))?;
    Ok(joined.into())
}

/// What is wrong with naming something that holds no roots.
pub(super) fn unread(named: &CaCertificateRef) -> String {
    format!(
        "{} `{}` is no ConfigMap and no ClusterTrustBundle; roots are read from those",
        named.kind, named.name
    )
}

fn find<'a>(
    store: &'a Store,
    namespace: &str,
    named: &CaCertificateRef,
) -> Result<&'a Text, Fault> {
    let Some(map) = named.holder(namespace) else {
        return Err(Fault { reason: "InvalidCACertificateKind", what: unread(named) });
    };
    let from = GrantFrom::of_gateways(namespace);
    let target = ("", "ConfigMap", &*map.name);
    let is_elsewhere = !named.is_trust_bundle() && *map.namespace != *namespace;
    if is_elsewhere && !store.routes().is_granted(&from, &map.namespace, target) {
        let what = format!(
            "no ReferenceGrant of namespace {} lets Gateways of {namespace} use ConfigMap {}",
            map.namespace, map.name
        );
        return Err(Fault { reason: "RefNotPermitted", what });
    }
    let invalid = |what| Fault { reason: "InvalidCACertificateRef", what };
    store.client_roots().find(&map).map_err(invalid)
}
