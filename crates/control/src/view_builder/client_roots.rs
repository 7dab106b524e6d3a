//! The roots by which clients prove themselves to Gateways at the edge.
//!
//! They are in ConfigMaps, under `ca.crt`. Of several those that can be used count together. If
//! none can, nobody can prove anything: such a listener refuses every client, and is not accepted.

use std::collections::BTreeMap;

use ambit_manifest::ObjectName;
use ambit_manifest::gateway::listeners::Fault;
use ambit_manifest::gateway::{CaCertificateRef, FrontendTls};
use ambit_manifest::routes::GrantFrom;
use ambit_model::Text;
use ambit_model::http::gateway::ClientValidation;
use ambit_tls::edge::check_roots;
use ambit_words::error_chain;
use k8s_openapi::api::core::v1::ConfigMap;

use super::records::ROOTS_KEY;
use super::store::Store;

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
    fn find(&self, name: &ObjectName) -> Result<&Text, String> {
        let at = format!("ConfigMap {}/{}", name.namespace, name.name);
        let map = self.maps.get(name).ok_or_else(|| format!("there is no {at}"))?;
        let roots = map.as_ref().ok_or_else(|| format!("{at} has no {ROOTS_KEY}"))?;
        let unusable = |error| format!("{ROOTS_KEY} of {at} cannot be used: {error}");
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

/// A ConfigMap as a Gateway of this namespace names it.
pub(super) fn map_of(namespace: &str, named: &CaCertificateRef) -> ObjectName {
    ObjectName::new(named.namespace.as_deref().unwrap_or(namespace), &named.name)
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
    let roots_pem = roots.join("\n");
    let problem = match (roots.is_empty(), check_roots(&roots_pem)) {
        (true, _) => Some("none of the roots for clients can be used".to_owned()),
        (false, Err(error)) => Some(error_chain(&error)),
        (false, Ok(())) => None,
    };
    let roots_pem = Text::from(roots_pem);
    let validation = match &problem {
        Some(problem) => ClientValidation::Impossible { problem: problem.as_str().into() },
        None if asked.mode.as_deref() == Some(INSECURE_FALLBACK) => {
            ClientValidation::Optional { roots_pem }
        }
        None => ClientValidation::Required { roots_pem },
    };
    let refused = problem.map(|what| Fault { reason: "NoValidCACertificate", what });
    Asked { validation, unresolved, refused }
}

fn find<'a>(
    store: &'a Store,
    namespace: &str,
    named: &CaCertificateRef,
) -> Result<&'a Text, Fault> {
    let map = map_of(namespace, named);
    if !named.is_config_map() {
        let what =
            format!("{} `{}` is no ConfigMap; roots are read from those", named.kind, named.name);
        return Err(Fault { reason: "InvalidCACertificateKind", what });
    }
    let from = GrantFrom::of_gateways(namespace);
    let target = ("", "ConfigMap", &*map.name);
    if *map.namespace != *namespace && !store.routes().is_granted(&from, &map.namespace, target) {
        let what = format!(
            "no ReferenceGrant of namespace {} lets Gateways of {namespace} use ConfigMap {}",
            map.namespace, map.name
        );
        return Err(Fault { reason: "RefNotPermitted", what });
    }
    let invalid = |what| Fault { reason: "InvalidCACertificateRef", what };
    store.client_roots().find(&map).map_err(invalid)
}
