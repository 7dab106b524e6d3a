//! What each node's proxy and each waypoint's pod needs to join: a token, the roots, the revocation
//! list.
//!
//! Written for every Node object into its own directory: `token` (private, bound to the node,
//! replaced at half its life), `root-cert.pem`, and `ca-crl.pem` once anything was revoked. The
//! token of a deleted node is removed. Each waypoint's pod has a directory below that of its node,
//! which the machine shows to the pod: its token is bound to the pod and its account. The directory
//! goes when the pod does. Nothing here may write outside the node's directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambit_manifest::names::dns_subdomain;
use ambit_model::Text;
use ambit_net::drain::Guard;
use ambit_tls::token::{Claims, ISSUER, PodClaim, TokenError, TokenSigner};
use ambit_words::error_chain;
use ambit_words::names::{
    POD_TOKEN, REVOCATION_LIST, ROOT_CERTIFICATE, ROOTS, TOKEN_AUDIENCE, TOKENS,
    WAYPOINT_CREDENTIALS,
};

use crate::ca::CertificateAuthority;
use crate::durable::{self, FileError, PRIVATE, PUBLIC};
use crate::world::{WaypointPod, World};

/// How long a token is valid.
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);
/// How often tokens are checked when nothing changes.
const INTERVAL: Duration = Duration::from_secs(30);

/// Why a node's credentials cannot be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialsError {
    /// A file.
    #[error("node credentials")]
    File(#[from] FileError),
    /// A token.
    #[error("cannot sign a token")]
    Token(#[from] TokenError),
}

/// Writes credentials for nodes and waypoints.
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
            self.remove_others(node, &[]);
        }
        for node in &nodes {
            if let Err(error) = self.write(node, now) {
                tracing::error!(%node, error = error_chain(&error), "node credentials not written");
            }
        }
        let pods = self.world.waypoint_pods();
        for pod in &pods {
            if let Err(error) = self.write_pod(pod, now) {
                let (pod, error) = (format!("{:?}", pod.name), error_chain(&error));
                tracing::error!(pod, error, "credentials of a waypoint's pod not written");
            }
        }
        for node in &nodes {
            self.remove_others(node, &pods);
        }
        nodes
    }

    fn of_pods(&self, node: &str) -> PathBuf {
        self.directory.join(node).join(WAYPOINT_CREDENTIALS)
    }

    fn write_pod(&self, pod: &WaypointPod, now: SystemTime) -> Result<(), CredentialsError> {
        // Kubernetes checks both; a path must not depend on that.
        if let Some(what) = dns_subdomain(&pod.node).or_else(|| dns_subdomain(&pod.uid)) {
            tracing::error!(what, "a pod with this node and uid gets no credentials");
            return Ok(());
        }
        let directory = self.of_pods(&pod.node).join(&*pod.uid);
        let (tokens, roots) = (directory.join(TOKENS), directory.join(ROOTS));
        for directory in [&self.of_pods(&pod.node), &directory, &tokens, &roots] {
            durable::private_directory(directory)?;
        }
        self.write_trust(&roots)?;
        // Last: the machine starts the pod when it is there.
        self.write_token(&tokens.join(POD_TOKEN), &Bearer::Pod(pod), now)
    }

    /// Removes the credentials of pods that are gone from a node.
    fn remove_others(&self, node: &str, pods: &[WaypointPod]) {
        let Ok(found) = std::fs::read_dir(self.of_pods(node)) else { return };
        for entry in found.flatten() {
            let is_its = |pod: &&WaypointPod| *pod.node == *node && *entry.file_name() == *pod.uid;
            if pods.iter().any(|pod| is_its(&pod)) {
                continue;
            }
            if let Err(error) = std::fs::remove_dir_all(entry.path()) {
                let path = entry.path();
                let path = path.display();
                tracing::error!(%path, %error, "credentials of a removed pod stay");
            }
        }
    }

    fn write(&self, node: &str, now: SystemTime) -> Result<(), CredentialsError> {
        // Kubernetes checks names of nodes; a path must not depend on that.
        if let Some(what) = dns_subdomain(node) {
            tracing::error!(what, "a node with this name gets no credentials");
            return Ok(());
        }
        let directory = self.directory.join(node);
        durable::private_directory(&directory)?;
        self.write_trust(&directory)?;
        self.write_token(&directory.join("token"), &Bearer::Node(node), now)
    }

    /// Writes what a proxy believes others by.
    fn write_trust(&self, directory: &Path) -> Result<(), CredentialsError> {
        let roots = self.authority.roots_pem();
        durable::update(&directory.join(ROOT_CERTIFICATE), roots.as_bytes(), PUBLIC)?;
        if let Some(crl) = self.authority.crl_pem() {
            durable::update(&directory.join(REVOCATION_LIST), crl.as_bytes(), PUBLIC)?;
        }
        Ok(())
    }

    fn write_token(
        &self,
        path: &Path,
        bearer: &Bearer<'_>,
        now: SystemTime,
    ) -> Result<(), CredentialsError> {
        let claims = self.claims(bearer, now);
        if !self.is_fresh(path, &claims, now)? {
            let signed = self.signer.sign(&claims)?;
            durable::replace(path, signed.as_bytes(), PRIVATE)?;
            let pod = claims.pod.map(|pod| pod.name);
            tracing::info!(node = claims.node, pod, "token written");
        }
        Ok(())
    }

    fn claims(&self, bearer: &Bearer<'_>, now: SystemTime) -> Claims {
        let (namespace, account) = match bearer {
            Bearer::Node(_) => (&self.account.0, &self.account.1),
            Bearer::Pod(pod) => (&pod.name.namespace, &pod.service_account),
        };
        let (node, pod) = match bearer {
            Bearer::Node(node) => ((*node).to_owned(), None),
            Bearer::Pod(pod) => {
                let claim = PodClaim { name: pod.name.name.to_string(), uid: pod.uid.to_string() };
                (pod.node.to_string(), Some(claim))
            }
        };
        Claims {
            issuer: ISSUER.to_owned(),
            audience: vec![TOKEN_AUDIENCE.to_owned()],
            issued_at: now,
            expires_at: now + TOKEN_LIFETIME,
            namespace: namespace.to_string(),
            service_account: account.to_string(),
            node,
            pod,
        }
    }

    /// Whether the token on disk is ours, for this bearer, and in the first half of its life.
    fn is_fresh(&self, path: &Path, wanted: &Claims, now: SystemTime) -> Result<bool, FileError> {
        let Some(bytes) = durable::read(path)? else { return Ok(false) };
        let Ok(text) = String::from_utf8(bytes) else { return Ok(false) };
        let verified = self.signer.verifier().verify(text.trim(), TOKEN_AUDIENCE, now);
        Ok(verified.is_ok_and(|claims| {
            let left = claims.expires_at.duration_since(now).unwrap_or_default();
            let is_its = (&claims.node, &claims.pod) == (&wanted.node, &wanted.pod);
            is_its && claims.subject() == wanted.subject() && left > TOKEN_LIFETIME / 2
        }))
    }
}

/// Whose token it is.
enum Bearer<'a> {
    /// The proxy of a node.
    Node(&'a str),
    /// A waypoint's pod.
    Pod(&'a WaypointPod),
}
