//! The Secrets with certificates that Gateways at the edge name, for their listeners and for
//! backends.
//!
//! A Secret is kept as it came, and its pair is checked once, when a listener first asks for it. A
//! private key leaves this file only in a certificate of a Gateway that names its Secret and may.
//! It is never displayed: what is wrong with a Secret is said without its values.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock};

use ambit_manifest::ObjectName;
use ambit_manifest::gateway::listeners::{Fault, INVALID_CERTIFICATE, Judged};
use ambit_manifest::gateway::{GatewaySpec, SecretRef};
use ambit_manifest::routes::GrantFrom;
use ambit_model::Text;
use ambit_model::http::certificate::{Certificate, CertificateName};
use ambit_model::http::gateway::{Gateway, Proof};
use ambit_model::names::ServiceName;
use ambit_model::view::{Change, View};
use ambit_tls::edge::EdgeCertificate;
use ambit_tls::service::ServerCertificate;
use ambit_words::error_chain;
use ambit_words::secrets::{SECRET_CHAIN, SECRET_KEY, SECRET_TYPE};
use k8s_openapi::api::core::v1::Secret;
use zeroize::Zeroizing;

use super::store::Store;

/// The reason of a listener whose Secret is of a namespace that does not permit it.
const NOT_PERMITTED: &str = "RefNotPermitted";

/// All Secrets with certificates.
#[derive(Default)]
pub(crate) struct Certificates {
    secrets: BTreeMap<ObjectName, Held>,
}

/// One Secret.
struct Held {
    /// What it holds, or why that is no pair.
    pair: Result<ServerCertificate, String>,
    /// Why the pair cannot be used, once that was asked.
    problem: OnceLock<Option<String>>,
}

impl Certificates {
    /// Puts or removes a Secret.
    pub(super) fn put(&mut self, name: ObjectName, secret: Option<&Secret>) {
        match secret {
            Some(secret) => {
                let held = Held { pair: pair_of(secret), problem: OnceLock::new() };
                self.secrets.insert(name, held);
            }
            None => drop(self.secrets.remove(&name)),
        }
    }

    /// The chain in a Secret, if it has a pair.
    pub(crate) fn chain(&self, name: &ObjectName) -> Option<&str> {
        self.secrets.get(name)?.pair.as_ref().ok().map(|pair| pair.chain_pem.as_str())
    }

    /// The pair of a Secret, or why there is none that can be used.
    fn find(&self, name: &ObjectName) -> Result<&ServerCertificate, String> {
        let at = format!("{}/{}", name.namespace, name.name);
        let Some(held) = self.secrets.get(name) else {
            return Err(format!("there is no Secret {at} of type {SECRET_TYPE}"));
        };
        let problem = match &held.pair {
            Err(problem) => Some(problem),
            Ok(pair) => held.problem.get_or_init(|| unusable(&at, pair)).as_ref(),
        };
        match (&held.pair, problem) {
            (Ok(pair), None) => Ok(pair),
            (_, problem) => {
                let problem = problem.map_or("", String::as_str);
                Err(format!("Secret {at} cannot be used: {problem}"))
            }
        }
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificates({} secrets, redacted)", self.secrets.len())
    }
}

/// What a Secret holds, or what it lacks.
fn pair_of(secret: &Secret) -> Result<ServerCertificate, String> {
    let kind = secret.type_.as_deref().unwrap_or("Opaque");
    if kind != SECRET_TYPE {
        return Err(format!("it is of type {kind}, {SECRET_TYPE} is needed"));
    }
    let text = |key: &str| {
        let value = secret.data.as_ref().and_then(|data| data.get(key));
        let value = value.ok_or_else(|| format!("it has no {key}"))?;
        String::from_utf8(value.0.clone()).map_err(|_| format!("its {key} is no PEM"))
    };
    let chain_pem = text(SECRET_CHAIN)?;
    let key_pem = Zeroizing::new(text(SECRET_KEY)?);
    Ok(ServerCertificate { chain_pem, key_pem })
}

fn unusable(name: &str, pair: &ServerCertificate) -> Option<String> {
    let error = EdgeCertificate::new(name.into(), pair).err()?;
    // The outermost only repeats the name.
    Some(std::error::Error::source(&error).map_or_else(|| error.to_string(), error_chain))
}

/// A Secret as a Gateway or ListenerSet of this namespace names it.
pub(super) fn secret_of(namespace: &str, named: &SecretRef) -> ObjectName {
    ObjectName::new(named.namespace.as_deref().unwrap_or(namespace), &named.name)
}

/// The Secrets of a listener that can be used; its Gateway is of this namespace.
pub(super) fn usable(store: &Store, namespace: &str, judged: &Judged<'_>) -> Vec<Text> {
    let from = judged.refers_as(namespace);
    let secrets = judged.certificates().filter_map(|named| find(store, &from, named).ok());
    secrets.map(|(secret, _)| text_of(&secret)).collect()
}

/// What is wrong with the Secrets of a listener whose Gateway is of this namespace.
pub(super) fn fault(store: &Store, namespace: &str, judged: &Judged<'_>) -> Option<Fault> {
    let from = judged.refers_as(namespace);
    judged.certificates().find_map(|named| find(store, &from, named).err())
}

/// What proves a Gateway of this namespace to backends, and what is wrong with what it names.
pub(super) fn proof(store: &Store, namespace: &str, spec: &GatewaySpec) -> (Proof, Option<Fault>) {
    let Some(named) = spec.client_certificate() else { return (Proof::None, None) };
    let found = match named.is_secret() {
        true => {
            let found = find(store, &GrantFrom::of_gateways(namespace), named);
            found.map(|(secret, _)| text_of(&secret))
        }
        false => {
            let what = format!("`{}` is no Secret; certificates are read from those", named.name);
            Err(Fault { reason: INVALID_CERTIFICATE, what })
        }
    };
    match found {
        Ok(secret) => (Proof::Certificate(secret), None),
        Err(fault) => {
            let problem = fault.what.as_str().into();
            (Proof::Impossible { problem }, Some(fault.of_client_certificate()))
        }
    }
}

/// What changes of the certificates of a Gateway that was behind one service and is this now.
pub(super) fn changes(
    store: &Store,
    view: &View,
    old: &BTreeSet<&ServiceName>,
    built: Option<&Gateway>,
) -> Vec<Change> {
    let named = |it: &Gateway| it.certificates().collect::<BTreeSet<_>>();
    let before: BTreeSet<_> =
        old.iter().filter_map(|old| view.gateway(old)).flat_map(|it| named(it)).collect();
    let after = built.map(named).unwrap_or_default();
    let removed = before.difference(&after).cloned().map(Change::RemoveCertificate);
    let mut changes: Vec<Change> = removed.collect();
    for certificate in after.into_iter().filter_map(|name| build(store, name)) {
        let CertificateName { gateway, secret } = &certificate.key;
        if view.certificate(gateway, secret) != Some(&certificate) {
            changes.push(Change::Certificate(certificate));
        }
    }
    changes
}

/// The certificate of a Gateway by this name.
fn build(store: &Store, name: CertificateName) -> Option<Arc<Certificate>> {
    let (namespace, secret) = name.secret.split_once('/')?;
    let pair = store.certificates().find(&ObjectName::new(namespace, secret)).ok()?;
    let (chain_pem, key_pem) = (pair.chain_pem.clone(), pair.key_pem.clone());
    Some(Arc::new(Certificate { key: name, chain_pem, key_pem }))
}

/// A Secret that a Gateway or ListenerSet names, with its pair.
fn find<'a>(
    store: &'a Store,
    from: &GrantFrom,
    named: &SecretRef,
) -> Result<(ObjectName, &'a ServerCertificate), Fault> {
    let (kind, namespace) = (from.kind(), from.namespace());
    let secret = secret_of(namespace, named);
    let target = ("", "Secret", &*secret.name);
    if *secret.namespace != *namespace
        && !store.routes().is_granted(from, &secret.namespace, target)
    {
        let what = format!(
            "no ReferenceGrant of namespace {} lets {kind}s of {namespace} use Secret {}",
            secret.namespace, secret.name
        );
        return Err(Fault { reason: NOT_PERMITTED, what });
    }
    match store.certificates().find(&secret) {
        Ok(pair) => Ok((secret, pair)),
        Err(what) => Err(Fault { reason: INVALID_CERTIFICATE, what }),
    }
}

fn text_of(secret: &ObjectName) -> Text {
    format!("{}/{}", secret.namespace, secret.name).into()
}
