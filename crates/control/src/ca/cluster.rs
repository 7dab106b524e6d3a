//! The authority of a cluster: one root for all replicas, and one list of what was taken back.
//!
//! The Secret `cacerts` (plugged in by an operator, with Istio's names or those of a
//! `kubernetes.io/tls` Secret) goes before `istio-ca-secret`, which holds a root of its own and is
//! made by whichever replica is first. The ConfigMap `ambit-revoked` holds the serials that were
//! taken back, and the orders by which they were: a replica knows only the certificates that it
//! signed itself, so each carries out every order on its own ledger. Nothing is ever removed from
//! it before its certificates have ended. Keys are never logged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambit_net::drain::Guard;
use ambit_tls::Authority;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use zeroize::Zeroizing;

use super::ledger::Shared;
use super::{CaError, CertificateAuthority};
use crate::error_text::chain;
use crate::kubernetes::{ApiError, FIELD_MANAGER, answer};

/// The Secret of an operator's own authority.
const PLUGGED_IN: &str = "cacerts";
/// The Secret of the root that replicas make.
const OWN: &str = "istio-ca-secret";
/// The type that istiod gives it.
const OWN_TYPE: &str = "istio.io/ca-root";
/// The ConfigMap of what was taken back, and its key.
const REVOKED: &str = "ambit-revoked";
const REVOKED_KEY: &str = "revoked.json";
/// Longest list in a ConfigMap; the API server refuses objects above 1 MiB.
const REVOKED_SIZE_MAX_BYTES: usize = 900 << 10;
/// How often replicas look at the list; at the Secrets every sixth time.
const INTERVAL: Duration = Duration::from_secs(5);
const LOOKS_PER_ROOT: u32 = 6;
/// How often a write is tried against other replicas'.
const ATTEMPTS: usize = 8;
/// Pause before the API server is asked again at the start.
const PAUSE: Duration = Duration::from_secs(1);

/// Why the cluster's authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The API server.
    #[error("{what} in namespace {namespace}")]
    Api {
        /// Which object.
        what: &'static str,
        /// Where.
        namespace: String,
        /// Why.
        source: ApiError,
    },
    /// A Secret lacks an entry.
    #[error(
        "Secret {namespace}/{name} has no entry {entry:?} with PEM text; it needs {needs}; \
         correct it, or delete it to go without"
    )]
    Entry {
        /// Namespace of the Secret.
        namespace: String,
        /// The Secret.
        name: &'static str,
        /// The entry.
        entry: &'static str,
        /// What there must be.
        needs: &'static str,
    },
    /// The list cannot be read.
    #[error(
        "ConfigMap {namespace}/{REVOKED} is damaged; restore it, or delete it: replicas that run \
         write it again"
    )]
    Damaged {
        /// Where.
        namespace: String,
        /// Why.
        source: serde_json::Error,
    },
    /// The list is full.
    #[error(
        "the list of revoked certificates is full ({REVOKED_SIZE_MAX_BYTES} bytes); it becomes \
         shorter as certificates end; to distrust all at once, plug in a new root"
    )]
    Full,
    /// Other replicas were faster each time.
    #[error("other replicas keep writing {what}; try again")]
    Contended {
        /// Which object.
        what: &'static str,
    },
    /// The authority itself.
    #[error("the authority in Secret {name}")]
    Authority {
        /// The Secret.
        name: &'static str,
        /// Why.
        source: Box<ambit_tls::authority::AuthorityError>,
    },
    /// What the list says cannot be carried out here.
    #[error("carrying out the revocations")]
    Revoke(#[source] Box<CaError>),
}

/// What the replicas of a cluster share of their authority.
pub(crate) struct ClusterAuthority {
    client: Client,
    namespace: String,
    trust_domain: String,
}

impl ClusterAuthority {
    /// What is kept in `namespace`.
    pub(crate) fn new(client: Client, namespace: &str, trust_domain: &str) -> Self {
        let (namespace, trust_domain) = (namespace.to_owned(), trust_domain.to_owned());
        Self { client, namespace, trust_domain }
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn failed(&self, what: &'static str) -> impl FnOnce(ApiError) -> ClusterError {
        let namespace = self.namespace.clone();
        move |source| ClusterError::Api { what, namespace, source }
    }

    /// The authority, as soon as the API server tells.
    pub(crate) async fn wait_for_root(&self) -> Result<Authority, ClusterError> {
        let mut is_said = false;
        loop {
            match self.root(SystemTime::now()).await {
                Err(error) if error.is_away() => {
                    if !std::mem::replace(&mut is_said, true) {
                        let error = chain(&error);
                        tracing::warn!(error, "waiting for the certificate authority's Secret");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                known => return known,
            }
        }
    }

    /// The authority: plugged in, or our own, made if there is none.
    async fn root(&self, now: SystemTime) -> Result<Authority, ClusterError> {
        let secrets = self.secrets();
        let plugged_in = answer(secrets.get_opt(PLUGGED_IN)).await;
        if let Some(secret) = plugged_in.map_err(self.failed("Secret cacerts"))? {
            return self.plugged_in(&secret, now);
        }
        for _ in 0..ATTEMPTS {
            let own = answer(secrets.get_opt(OWN)).await;
            if let Some(secret) = own.map_err(self.failed("Secret istio-ca-secret"))? {
                return self.own(&secret, now);
            }
            let failed = |source| ClusterError::Authority { name: OWN, source: Box::new(source) };
            let made = Authority::generate(&self.trust_domain, now).map_err(failed)?;
            let secret = own_secret(&made);
            match answer(secrets.create(&created(), &secret)).await {
                Ok(_) => {
                    tracing::info!("a root was made, Secret {}/{OWN}", self.namespace);
                    return Ok(made);
                }
                // Another replica made one: that is everybody's.
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(self.failed("Secret istio-ca-secret")(error)),
            }
        }
        Err(ClusterError::Contended { what: OWN })
    }

    fn plugged_in(&self, secret: &Secret, now: SystemTime) -> Result<Authority, ClusterError> {
        let is_tls = entry(secret, "ca-cert.pem").is_none() && entry(secret, "tls.crt").is_some();
        let needs = "ca-cert.pem, ca-key.pem, cert-chain.pem and root-cert.pem, or tls.crt, \
                     tls.key and ca.crt";
        let [certificate, key, chain, root] = if is_tls {
            ["tls.crt", "tls.key", "tls.crt", "ca.crt"]
        } else {
            ["ca-cert.pem", "ca-key.pem", "cert-chain.pem", "root-cert.pem"]
        }
        .map(|name| self.text(secret, PLUGGED_IN, name, needs));
        Authority::from_intermediate_pem(&certificate?, &key?, &chain?, &root?, now).map_err(
            |source| ClusterError::Authority { name: PLUGGED_IN, source: Box::new(source) },
        )
    }

    fn own(&self, secret: &Secret, now: SystemTime) -> Result<Authority, ClusterError> {
        let needs = "ca-cert.pem and ca-key.pem";
        let certificate = self.text(secret, OWN, "ca-cert.pem", needs)?;
        let key = self.text(secret, OWN, "ca-key.pem", needs)?;
        Authority::from_root_pem(&certificate, &key, now)
            .map_err(|source| ClusterError::Authority { name: OWN, source: Box::new(source) })
    }

    fn text(
        &self,
        secret: &Secret,
        name: &'static str,
        entry_name: &'static str,
        needs: &'static str,
    ) -> Result<Zeroizing<String>, ClusterError> {
        entry(secret, entry_name).ok_or_else(|| ClusterError::Entry {
            namespace: self.namespace.clone(),
            name,
            entry: entry_name,
            needs,
        })
    }

    /// Tells the other replicas what was taken back here, and takes back what they did.
    pub(crate) async fn exchange(
        &self,
        authority: &CertificateAuthority,
    ) -> Result<(), ClusterError> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let what = "ConfigMap ambit-revoked";
        for _ in 0..ATTEMPTS {
            let known = answer(maps.get_opt(REVOKED)).await.map_err(self.failed(what))?;
            let shared = self.read(known.as_ref())?;
            let now = SystemTime::now();
            let all = authority
                .absorb(&shared, now)
                .map_err(|source| ClusterError::Revoke(Box::new(source)))?;
            if all == shared {
                return Ok(());
            }
            let json = serde_json::to_string(&all).expect("texts and numbers are JSON");
            if json.len() > REVOKED_SIZE_MAX_BYTES {
                return Err(ClusterError::Full);
            }
            let map = ConfigMap {
                metadata: ObjectMeta {
                    name: Some(REVOKED.to_owned()),
                    resource_version: known
                        .as_ref()
                        .and_then(|it| it.metadata.resource_version.clone()),
                    ..ObjectMeta::default()
                },
                data: Some(BTreeMap::from([(REVOKED_KEY.to_owned(), json)])),
                ..ConfigMap::default()
            };
            let written = match known {
                Some(_) => answer(maps.replace(REVOKED, &created(), &map)).await,
                None => answer(maps.create(&created(), &map)).await,
            };
            match written {
                Ok(_) => return Ok(()),
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                Err(error) => return Err(self.failed(what)(error)),
            }
        }
        Err(ClusterError::Contended { what })
    }

    fn read(&self, map: Option<&ConfigMap>) -> Result<Shared, ClusterError> {
        let json = map.and_then(|map| map.data.as_ref()?.get(REVOKED_KEY));
        let Some(json) = json else { return Ok(Shared::default()) };
        serde_json::from_str(json)
            .map_err(|source| ClusterError::Damaged { namespace: self.namespace.clone(), source })
    }

    /// Follows the Secrets and the list until asked to drain.
    pub(crate) async fn run(
        self: Arc<Self>,
        authority: Arc<CertificateAuthority>,
        mut guard: Guard,
    ) {
        let mut looks = 0;
        let mut problem = None;
        loop {
            tokio::select! {
                _ = guard.draining() => return,
                () = tokio::time::sleep(INTERVAL) => {}
            }
            looks += 1;
            let mut looked = self.exchange(&authority).await;
            if looks % LOOKS_PER_ROOT == 0 {
                looked = looked.and(self.follow_root(&authority).await);
            }
            let now_wrong = looked.err().map(|error| chain(&error));
            if now_wrong != problem {
                match &now_wrong {
                    Some(error) => {
                        tracing::error!(error, "the authority that replicas share; trying again");
                    }
                    None => tracing::info!("the authority that replicas share is at hand again"),
                }
                problem = now_wrong;
            }
        }
    }

    async fn follow_root(&self, authority: &CertificateAuthority) -> Result<(), ClusterError> {
        let now = SystemTime::now();
        let root = self.root(now).await?;
        authority.take_over(root, now).map_err(|source| ClusterError::Revoke(Box::new(source)))
    }
}

impl ClusterError {
    fn is_away(&self) -> bool {
        matches!(self, Self::Api { source: ApiError::Away(_), .. })
    }
}

fn created() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

/// An entry that is text and not empty.
fn entry(secret: &Secret, name: &str) -> Option<Zeroizing<String>> {
    let bytes = &secret.data.as_ref()?.get(name)?.0;
    let text = std::str::from_utf8(bytes).ok().filter(|text| !text.trim().is_empty())?;
    Some(Zeroizing::new(text.to_owned()))
}

/// As istiod writes it, so that it could read it too.
fn own_secret(authority: &Authority) -> Secret {
    let data = [
        ("ca-cert.pem", authority.certificate_pem().into_bytes()),
        ("ca-key.pem", authority.key_pem().as_bytes().to_vec()),
        ("cert-chain.pem", Vec::new()),
        ("key.pem", Vec::new()),
        ("root-cert.pem", Vec::new()),
    ];
    Secret {
        metadata: ObjectMeta { name: Some(OWN.to_owned()), ..ObjectMeta::default() },
        type_: Some(OWN_TYPE.to_owned()),
        data: Some(data.map(|(name, bytes)| (name.to_owned(), ByteString(bytes))).into()),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use ambit_model::identity::Identity;
    use ambit_tls::WorkloadKey;
    use serde_json::json;

    use super::super::Which;
    use super::*;
    use crate::kubernetes::fake::FakeApi;

    const SECRETS: &str = "/api/v1/namespaces/istio-system/secrets";
    const MAXIMUM: Duration = Duration::from_secs(600);

    /// One replica with a state directory of its own.
    struct Replica {
        cluster: ClusterAuthority,
        authority: CertificateAuthority,
        directory: std::path::PathBuf,
    }

    impl Replica {
        async fn start(api: &FakeApi, name: &str) -> Self {
            let name = format!("ambit-replica-{name}-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&directory);
            let cluster = ClusterAuthority::new(api.client(), "istio-system", "cluster.local");
            let root = cluster.wait_for_root().await.unwrap();
            let now = SystemTime::now();
            let authority =
                CertificateAuthority::of_cluster(&directory, root, MAXIMUM, now).unwrap();
            Self { cluster, authority, directory }
        }

        fn sign(&self, identity: &Identity) -> String {
            let csr = WorkloadKey::generate().unwrap().csr_pem(identity).unwrap();
            let signed = self.authority.sign(&csr, identity, "node-1", MAXIMUM, SystemTime::now());
            signed.unwrap().1.serial
        }

        async fn exchange(&self) {
            self.cluster.exchange(&self.authority).await.unwrap();
        }

        fn revoked(&self) -> Vec<String> {
            let (_, revoked) = self.authority.certificates();
            revoked.into_iter().map(|it| it.serial).collect()
        }
    }

    impl Drop for Replica {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }

    fn secret(name: &str, authority: &Authority, root: &str) -> serde_json::Value {
        let encode = |text: &str| serde_json::to_value(ByteString(text.as_bytes().to_vec()));
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
            "data": {
                "ca-cert.pem": encode(&authority.certificate_pem()).unwrap(),
                "ca-key.pem": encode(&authority.key_pem()).unwrap(),
                "cert-chain.pem": encode(&authority.certificate_pem()).unwrap(),
                "root-cert.pem": encode(root).unwrap(),
            },
        })
    }

    #[tokio::test]
    async fn replicas_that_start_together_share_one_root() {
        let api = FakeApi::default();
        let starts = (0..4).map(|index| {
            let api = api.clone();
            async move { Replica::start(&api, &format!("race-{index}")).await }
        });
        let replicas = futures::future::join_all(starts).await;
        let roots: Vec<String> = replicas.iter().map(|it| it.authority.roots_pem()).collect();
        assert!(roots.iter().all(|root| *root == roots[0]), "{roots:?}");
        let made = api.get(&format!("{SECRETS}/istio-ca-secret")).unwrap();
        assert_eq!(made["type"], "istio.io/ca-root");
        let later = Replica::start(&api, "race-later").await;
        assert_eq!(later.authority.roots_pem(), roots[0]);
    }

    #[tokio::test]
    async fn a_plugged_in_authority_goes_before_the_own_and_is_never_replaced_by_it() {
        let api = FakeApi::default();
        let own = Replica::start(&api, "own").await;
        let before = own.authority.roots_pem();
        let plugged = Authority::generate("cluster.local", SystemTime::now()).unwrap();
        let object = secret("cacerts", &plugged, &plugged.roots_pem());
        api.put(&format!("{SECRETS}/cacerts"), object.clone());
        let other = Replica::start(&api, "plugged").await;
        assert_eq!(other.authority.roots_pem(), plugged.roots_pem());
        own.cluster.follow_root(&own.authority).await.unwrap();
        let both = own.authority.roots_pem();
        assert!(both.contains(&before) && both.contains(&plugged.roots_pem()), "both trusted");
        let still = own.authority.maintain(&[], SystemTime::now() + MAXIMUM / 2);
        still.unwrap();
        assert_eq!(own.authority.roots_pem(), both);
        own.authority.maintain(&[], SystemTime::now() + MAXIMUM * 2).unwrap();
        assert_eq!(own.authority.roots_pem(), plugged.roots_pem(), "the old one has no holder");
        let refused = own.authority.begin_rotation(&[], SystemTime::now()).unwrap_err();
        assert!(refused.to_string().contains("cacerts"), "{refused}");
        // A damaged one is an error, and not a reason to sign with another root.
        let mut damaged = object;
        damaged["data"]["ca-key.pem"] = json!("");
        api.put(&format!("{SECRETS}/cacerts"), damaged);
        let error = own.cluster.follow_root(&own.authority).await.unwrap_err();
        assert!(error.to_string().contains("ca-key.pem"), "{error}");
        assert_eq!(own.authority.roots_pem(), plugged.roots_pem());
    }

    #[tokio::test]
    async fn what_one_replica_takes_back_all_do() {
        let api = FakeApi::default();
        let (one, two) = (Replica::start(&api, "one").await, Replica::start(&api, "two").await);
        let web: Identity = "spiffe://cluster.local/ns/shop/sa/web".parse().unwrap();
        let db: Identity = "spiffe://cluster.local/ns/shop/sa/db".parse().unwrap();
        let mut serials = vec![one.sign(&web), two.sign(&web)];
        serials.sort();
        let kept = two.sign(&db);
        one.exchange().await;
        assert!(one.authority.crl_pem().is_none());
        let path = "/api/v1/namespaces/istio-system/configmaps/ambit-revoked";
        assert!(api.get(path).is_none(), "nothing was taken back");
        let revoked = one.authority.revoke(&Which::Identity(web.clone()), SystemTime::now());
        assert_eq!(revoked.unwrap().len(), 1, "its own");
        one.exchange().await;
        two.exchange().await;
        one.exchange().await;
        for replica in [&one, &two] {
            assert_eq!(replica.revoked(), serials);
            assert!(replica.authority.crl_pem().is_some());
            assert!(!replica.revoked().contains(&kept));
        }
        let three = Replica::start(&api, "three").await;
        three.exchange().await;
        assert_eq!(three.revoked(), serials, "a replica that comes later knows too");
        // Both write at once: neither is lost.
        let past = SystemTime::now() - Duration::from_secs(5);
        let fresh = two.sign(&web);
        two.authority.absorb(&Shared::default(), past).unwrap();
        assert!(!two.revoked().contains(&fresh), "an order is for what was signed before it");
        two.authority.revoke(&Which::Identity(db), SystemTime::now()).unwrap();
        three.authority.revoke(&Which::Serial("01ab".parse().unwrap()), past).unwrap();
        tokio::join!(two.exchange(), three.exchange());
        one.exchange().await;
        assert!(one.revoked().contains(&kept) && one.revoked().contains(&"01ab".to_owned()));
    }
}
