//! What each node's proxy needs to join: a token, the roots, the revocation list.
//!
//! Written for every Node object into a directory of its own: `token` (private, bound to the node,
//! replaced at half its life), `root-cert.pem`, and `ca-crl.pem` once anything was revoked. The
//! token of a node that is gone is removed. Nothing here may write outside of the node's directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambit_manifest::names::dns_subdomain;
use ambit_model::Text;
use ambit_net::drain::Guard;
use ambit_tls::token::{Claims, ISSUER, TokenError, TokenSigner};
use ambit_words::error_chain;
use ambit_words::names::TOKEN_AUDIENCE;

use crate::ca::CertificateAuthority;
use crate::durable::{self, FileError, PRIVATE, PUBLIC};
use crate::world::World;

/// How long a token is valid.
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);
/// How often tokens are looked at, when nothing else gives a reason.
const INTERVAL: Duration = Duration::from_secs(30);

/// Why a node's credentials cannot be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialsError {
    /// A file.
    #[error("node credentials")]
    File(#[from] FileError),
    /// A token.
    #[error("cannot sign a node's token")]
    Token(#[from] TokenError),
}

/// Writes credentials for nodes.
pub(crate) struct NodeCredentials {
    pub(crate) directory: PathBuf,
    pub(crate) signer: TokenSigner,
    pub(crate) authority: Arc<CertificateAuthority>,
    pub(crate) world: Arc<World>,
    /// Namespace and name of the account that proxies run as.
    pub(crate) account: (Text, Text),
}

impl NodeCredentials {
    /// Keeps credentials up to date until asked to drain.
    pub(crate) async fn run(self, mut guard: Guard) {
        let mut objects = self.world.objects();
        let mut authority = self.authority.changes();
        let mut written: Vec<Text> = Vec::new();
        loop {
            // Seen before looking, so that a change while looking is looked at again.
            objects.mark_unchanged();
            authority.mark_unchanged();
            written = self.write_all(&written, SystemTime::now());
            tokio::select! {
                _ = guard.draining() => return,
                changed = objects.changed() => if changed.is_err() { return },
                changed = authority.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    /// Writes for all nodes, removes the tokens of those that are gone; answers with the nodes that
    /// were written.
    fn write_all(&self, before: &[Text], now: SystemTime) -> Vec<Text> {
        let nodes = self.world.nodes();
        for node in before.iter().filter(|node| !nodes.contains(node)) {
            if let Err(error) = durable::remove(&self.directory.join(&**node).join("token")) {
                let error = error_chain(&error);
                tracing::error!(%node, error, "token of a removed node stays");
            }
        }
        for node in &nodes {
            if let Err(error) = self.write(node, now) {
                tracing::error!(%node, error = error_chain(&error), "node credentials not written");
            }
        }
        nodes
    }

    fn write(&self, node: &str, now: SystemTime) -> Result<(), CredentialsError> {
        // Kubernetes checks names of nodes; a path must not depend on that.
        if let Some(what) = dns_subdomain(node) {
            tracing::error!(what, "a node with this name gets no credentials");
            return Ok(());
        }
        let directory = self.directory.join(node);
        durable::private_directory(&directory)?;
        let roots = self.authority.roots_pem();
        durable::update(&directory.join("root-cert.pem"), roots.as_bytes(), PUBLIC)?;
        if let Some(crl) = self.authority.crl_pem() {
            durable::update(&directory.join("ca-crl.pem"), crl.as_bytes(), PUBLIC)?;
        }
        let token = directory.join("token");
        if !self.is_fresh(&token, node, now)? {
            let signed = self.signer.sign(&self.claims(node, now))?;
            durable::replace(&token, signed.as_bytes(), PRIVATE)?;
            tracing::info!(node, "node token written");
        }
        Ok(())
    }

    fn claims(&self, node: &str, now: SystemTime) -> Claims {
        Claims {
            issuer: ISSUER.to_owned(),
            audience: vec![TOKEN_AUDIENCE.to_owned()],
            issued_at: now,
            expires_at: now + TOKEN_LIFETIME,
            namespace: self.account.0.to_string(),
            service_account: self.account.1.to_string(),
            node: node.to_owned(),
        }
    }

    /// Whether the token on disk is ours, for this node, and in the first half of its life.
    fn is_fresh(&self, path: &Path, node: &str, now: SystemTime) -> Result<bool, FileError> {
        let Some(bytes) = durable::read(path)? else { return Ok(false) };
        let Ok(text) = String::from_utf8(bytes) else { return Ok(false) };
        let verified = self.signer.verifier().verify(text.trim(), TOKEN_AUDIENCE, now);
        Ok(verified.is_ok_and(|claims| {
            let left = claims.expires_at.duration_since(now).unwrap_or_default();
            claims.node == node && left > TOKEN_LIFETIME / 2
        }))
    }
}
