//! Certificates that must be refused, and one that must not.
//!
//! They are made with the machine's own authority, whose key lies in the state directory with mode
//! 0600: whoever may run the demonstration owns it anyway.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use ambit_model::identity::Identity;
use ambit_tls::{Authority, AuthorityBundle, WorkloadCertificate, WorkloadKey};
use ambit_words::names::DEFAULT_TRUST_DOMAIN;
use ambit_words::ports;
use anyhow::{Context, Result};

use super::report::CertificateProof;
use super::stage::{Stage, address_of};
use crate::handshake::{Answer, Knock};

const LIFETIME: Duration = Duration::from_secs(3600);
/// How long ago the expired certificate was made.
const LONG_AGO: Duration = Duration::from_secs(7200);

/// Knocks at a pod of the mesh from outside of it.
pub(super) async fn knock(stage: &Stage) -> Result<Vec<CertificateProof>> {
    let pod = stage.pod("ns-1", "tier-1-app-a").await?;
    let target = SocketAddr::new(address_of(&pod)?, ports::HBONE);
    let server = Identity::new(DEFAULT_TRUST_DOMAIN, "ns-1", &*pod.service_account);
    let read = |name: &str| {
        let path = stage.layout.control().join(name);
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    let (roots_pem, now) = (read("root-cert.pem")?, SystemTime::now());
    let mesh = Authority::from_root_pem(&roots_pem, &read("root-key.pem")?, now)?;
    let mesh = AuthorityBundle::new(mesh);
    let foreign = AuthorityBundle::new(Authority::generate(DEFAULT_TRUST_DOMAIN, now)?);
    let client = Identity::new(DEFAULT_TRUST_DOMAIN, "client", "vegeta");
    let stranger = Identity::new("elsewhere.example", "client", "vegeta");
    let good = credentials(&mesh, &client, now, &roots_pem)?;
    let expired = credentials(&mesh, &client, now - LONG_AGO, &roots_pem)?;
    let foreign_domain = credentials(&mesh, &stranger, now, &roots_pem)?;
    let foreign_root = credentials(&foreign, &client, now, &roots_pem)?;
    let knock = |name: &str, credentials: Vec<u8>, expected: &Identity| Knock {
        name: name.to_owned(),
        target,
        roots_pem: roots_pem.clone(),
        credentials,
        expected: expected.to_string(),
    };
    let knocks = [
        knock("a valid certificate (the control)", good.clone(), &server),
        knock("no certificate", Vec::new(), &server),
        knock("an expired certificate", expired, &server),
        knock("a certificate of a foreign trust domain", foreign_domain, &server),
        knock("a certificate of a foreign authority", foreign_root, &server),
        knock("a server whose SAN is not the one expected", good, &client),
    ];
    let input = serde_json::to_string(&knocks).context("write the knocks")?;
    let answers = stage.in_pod("outside/stranger", &["lab-handshake"], &input).await?;
    let answers: Vec<Answer> = serde_json::from_value(answers).context("read the answers")?;
    let proof = |(index, answer): (usize, Answer)| CertificateProof {
        holds: answer.let_in == (index == 0),
        answer,
    };
    Ok(answers.into_iter().enumerate().map(proof).collect())
}

fn credentials(
    authority: &AuthorityBundle,
    identity: &Identity,
    now: SystemTime,
    mesh_roots_pem: &str,
) -> Result<Vec<u8>> {
    let key = WorkloadKey::generate()?;
    let mut chain = authority.sign(&key.csr_pem(identity)?, identity, LIFETIME, now)?;
    let roots = chain.last_mut().context("the answer ends with the roots")?;
    if !roots.contains(mesh_roots_pem.trim()) {
        roots.push_str(mesh_roots_pem);
    }
    let certificate = WorkloadCertificate::new(key, &chain, identity, now)?;
    Ok(certificate.to_bytes().to_vec())
}
