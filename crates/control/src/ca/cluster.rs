//! The authority of a cluster: one root for all replicas, and one list of what was taken back.
//!
//! The Secret `cacerts` (plugged in by an operator, with Istio's names or those of a
//! `kubernetes.io/tls` Secret) goes before `istio-ca-secret`, which holds a root of its own and is
//! made by whichever replica is first. The ConfigMaps `ambit-revoked-0` and so on hold the serials
//! that were taken back, `ambit-revoked` the orders by which they were: a replica knows only the
//! certificates that it signed itself, so each carries out every order on its own ledger. Nothing
//! is ever removed before its certificates have ended. A list that is full is told, and is no
//! reason to stop. Keys are never logged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambit_net::drain::Guard;
use ambit_tls::Authority;
use ambit_words::error_chain;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use zeroize::Zeroizing;

use super::shared::{LineError, ORDERS_MAX, PARTS, REVOKED_MAX, Shared};
use super::{CaError, CertificateAuthority};
use crate::kubernetes::{ApiError, FIELD_MANAGER, answer};

/// The Secret of an operator's own authority.
const PLUGGED_IN: &str = "cacerts";
/// The Secret of the root that replicas make.
const OWN: &str = "istio-ca-secret";
/// The type that istiod gives it.
const OWN_TYPE: &str = "istio.io/ca-root";
/// The ConfigMap of orders, and its key.
const ORDERS: &str = "ambit-revoked";
const ORDERS_KEY: &str = "orders.json";
/// The ConfigMaps of what was taken back, and the key of each. The chart's Role names them too.
const REVOKED: [&str; PARTS] =
    ["ambit-revoked-0", "ambit-revoked-1", "ambit-revoked-2", "ambit-revoked-3"];
const REVOKED_KEY: &str = "revoked.txt";
/// What the two are to an operator.
const LIST: &str = "ConfigMaps ambit-revoked and ambit-revoked-*";
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
    /// A part of the list cannot be read.
    #[error(
        "ConfigMap {namespace}/{name} is damaged; restore it, or delete it: replicas that run \
         write it again"
    )]
    Damaged {
        /// Where.
        namespace: String,
        /// Which.
        name: &'static str,
        /// Why.
        source: Damage,
    },
    /// The list is full.
    #[error(
        "the list of revoked certificates is full ({REVOKED_MAX} certificates, {ORDERS_MAX} \
         orders): what is on it holds, nothing more is added; it becomes shorter as certificates \
         end; to distrust all at once, plug in a new root"
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

/// What cannot be read of a ConfigMap.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum Damage {
    /// Its orders.
    Orders(serde_json::Error),
    /// Its serials.
    Serials(LineError),
}

/// One ConfigMap of the list, as it is there.
struct Part {
    name: &'static str,
    key: &'static str,
    version: Option<String>,
    text: Option<String>,
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
                        let error = error_chain(&error);
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

    /// Waits until what other replicas took back is known here. A list that is full is; one that
    /// cannot be read is not, and nobody may be served before.
    pub(crate) async fn catch_up(&self, authority: &CertificateAuthority) {
        let mut problem = None;
        loop {
            let exchanged = self.exchange(authority).await;
            note(authority, &mut problem, exchanged.as_ref().err());
            if matches!(exchanged, Ok(()) | Err(ClusterError::Full)) {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Tells the other replicas what was taken back here, and takes back what they did.
    pub(crate) async fn exchange(
        &self,
        authority: &CertificateAuthority,
    ) -> Result<(), ClusterError> {
        for _ in 0..ATTEMPTS {
            let parts = self.parts().await?;
            let (shared, damage) = self.read(&parts);
            let absorbed = authority
                .absorb(&shared, SystemTime::now())
                .map_err(|source| ClusterError::Revoke(Box::new(source)))?;
            // What is damaged stays as it is until somebody has looked at it.
            if let Some(damage) = damage {
                return Err(damage);
            }
            let mut is_written = true;
            for part in parts {
                let text = absorbed.all.text(part.name);
                if part.text.as_deref().unwrap_or_default() != text {
                    is_written &= self.write(part, text).await?;
                }
            }
            match (is_written, absorbed.is_full) {
                (true, false) => return Ok(()),
                (true, true) => return Err(ClusterError::Full),
                (false, _) => {}
            }
        }
        Err(ClusterError::Contended { what: LIST })
    }

    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn parts(&self) -> Result<Vec<Part>, ClusterError> {
        let maps = self.maps();
        let names = REVOKED.iter().map(|name| (*name, REVOKED_KEY)).chain([(ORDERS, ORDERS_KEY)]);
        let mut parts = Vec::new();
        for (name, key) in names {
            let known = answer(maps.get_opt(name)).await.map_err(self.failed(LIST))?;
            let (version, text) = match known {
                Some(map) => {
                    (map.metadata.resource_version, map.data.and_then(|mut data| data.remove(key)))
                }
                None => (None, None),
            };
            parts.push(Part { name, key, version, text });
        }
        Ok(parts)
    }

    /// All that can be read, and what cannot.
    fn read(&self, parts: &[Part]) -> (Shared, Option<ClusterError>) {
        let (mut shared, mut damage) = (Shared::default(), None);
        for part in parts {
            let Some(text) = part.text.as_deref().filter(|text| !text.is_empty()) else { continue };
            let read = if part.name == ORDERS {
                let orders = serde_json::from_str(text).map_err(Damage::Orders);
                orders.map(|orders| shared.orders = orders)
            } else {
                shared.add_part(text).map_err(Damage::Serials)
            };
            if let Err(source) = read {
                let (namespace, name) = (self.namespace.clone(), part.name);
                damage = Some(ClusterError::Damaged { namespace, name, source });
            }
        }
        (shared, damage)
    }

    /// Writes a part; answers whether no other replica did meanwhile.
    async fn write(&self, part: Part, text: String) -> Result<bool, ClusterError> {
        let maps = self.maps();
        let is_there = part.version.is_some();
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(part.name.to_owned()),
                resource_version: part.version,
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([(part.key.to_owned(), text)])),
            ..ConfigMap::default()
        };
        let written = if is_there {
            answer(maps.replace(part.name, &created(), &map)).await
        } else {
            answer(maps.create(&created(), &map)).await
        };
        match written {
            Ok(_) => Ok(true),
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(false),
            Err(error) => Err(self.failed(LIST)(error)),
        }
    }

    /// Follows the Secrets and the list until asked to drain.
    pub(crate) async fn run(
        self: Arc<Self>,
        authority: Arc<CertificateAuthority>,
        mut guard: Guard,
    ) {
        let mut looks = 0;
        let mut problem = authority.problem();
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
            note(&authority, &mut problem, looked.as_ref().err());
        }
    }

    async fn follow_root(&self, authority: &CertificateAuthority) -> Result<(), ClusterError> {
        let now = SystemTime::now();
        let root = self.root(now).await?;
        authority.take_over(root, now).map_err(|source| ClusterError::Revoke(Box::new(source)))
    }
}

impl Shared {
    /// What the ConfigMap of this name is to say.
    fn text(&self, name: &str) -> String {
        match REVOKED.iter().position(|part| *part == name) {
            Some(part) => self.part(part),
            None if self.orders.is_empty() => String::new(),
            None => serde_json::to_string(&self.orders).expect("texts and numbers are JSON"),
        }
    }
}

/// Logs what is wrong when that changes, and tells it to whoever asks for the status.
fn note(
    authority: &CertificateAuthority,
    problem: &mut Option<String>,
    error: Option<&ClusterError>,
) {
    let now_wrong = error.map(|error| error_chain(error));
    if now_wrong == *problem {
        return;
    }
    match &now_wrong {
        Some(error) => {
            tracing::error!(error, "the authority that replicas share; trying again");
        }
        None => tracing::info!("the authority that replicas share can be read again"),
    }
    authority.set_problem(now_wrong.clone());
    *problem = now_wrong;
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
    use std::collections::BTreeSet;

    use ambit_model::identity::Identity;
    use ambit_tls::{RevocationList, WorkloadKey};
    use serde_json::json;

    use super::super::ledger::unix;
    use super::super::{Issued, Which};
    use super::*;
    use crate::kubernetes::fake::FakeApi;

    const SECRETS: &str = "/api/v1/namespaces/istio-system/secrets";
    const MAPS: &str = "/api/v1/namespaces/istio-system/configmaps";
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
        let path = format!("{MAPS}/ambit-revoked");
        assert!(api.get(&path).is_none(), "nothing was taken back");
        assert!(api.get(&format!("{path}-0")).is_none());
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

    /// What a proxy makes of a replica's list.
    fn list(replica: &Replica) -> RevocationList {
        let signers = replica.authority.roots_pem();
        RevocationList::from_pem(&replica.authority.crl_pem().expect("a list"), &signers).unwrap()
    }

    fn wrote_down(replica: &Replica, serial: &str, identity: &Identity, node: &str) {
        let now = SystemTime::now();
        let (issued_at, not_after) = (unix(now), unix(now + MAXIMUM));
        let (identity, node) = (identity.to_string(), node.to_owned());
        let entry = Issued { serial: serial.to_owned(), identity, node, issued_at, not_after };
        replica.authority.inner().ledger.record(entry, now).unwrap();
    }

    #[tokio::test]
    async fn an_order_names_what_a_replica_signed_whose_clock_is_a_little_ahead() {
        let api = FakeApi::default();
        let (one, two) = (Replica::start(&api, "slow").await, Replica::start(&api, "fast").await);
        let now = SystemTime::now();
        let issued = |serial: &str, ahead| Issued {
            serial: serial.to_owned(),
            identity: identity(1).to_string(),
            node: "node-1".to_owned(),
            issued_at: unix(now) + ahead,
            not_after: unix(now) + 3600,
        };
        for entry in [issued("0a", 100), issued("0b", 600)] {
            two.authority.inner().ledger.record(entry, now).unwrap();
        }
        one.authority.revoke(&Which::Identity(identity(1)), now).unwrap();
        one.exchange().await;
        two.exchange().await;
        assert_eq!(two.revoked(), ["0a"], "and not what was signed long after it");
    }

    fn identity(number: usize) -> Identity {
        format!("spiffe://cluster.local/ns/shop/sa/app-{number}").parse().unwrap()
    }

    #[tokio::test]
    async fn what_one_node_was_given_can_all_be_taken_back() {
        let api = FakeApi::default();
        let one = Replica::start(&api, "many-one").await;
        let (identities, each) = (200, 50);
        let mut serials = Vec::new();
        for number in 0..identities * each {
            let serial = format!("f{number:031x}");
            wrote_down(&one, &serial, &identity(number / each), "compromised");
            serials.push(serial);
        }
        for number in 0..identities {
            // As an operator does, but that the list is signed once.
            let (which, now) = (Which::Identity(identity(number)), SystemTime::now());
            let mut inner = one.authority.inner();
            inner.ledger.revoke(&which, now).unwrap();
            inner.ledger.order(&which, MAXIMUM, now);
        }
        let last = Which::Serial("0e".parse().unwrap());
        one.authority.revoke(&last, SystemTime::now()).unwrap();
        one.exchange().await;
        let two = Replica::start(&api, "many-two").await;
        two.exchange().await;
        let three = Replica::start(&api, "many-three").await;
        tokio::time::timeout(MAXIMUM, three.cluster.catch_up(&three.authority)).await.unwrap();
        for replica in [&one, &two, &three] {
            let list = list(replica);
            let refused: BTreeSet<String> = list.serials().map(ToString::to_string).collect();
            assert!(serials.iter().all(|serial| refused.contains(serial)), "{}", refused.len());
            assert!(replica.authority.crl_pem().unwrap().len() < 1 << 19, "fits into a ConfigMap");
        }
        let sizes = (0..PARTS).map(|part| {
            let map = api.get(&format!("{MAPS}/ambit-revoked-{part}")).unwrap();
            map["data"]["revoked.txt"].as_str().unwrap().len()
        });
        let sizes: Vec<usize> = sizes.collect();
        println!("10,000 take {sizes:?} bytes");
        assert!(sizes.iter().sum::<usize>() <= 45 * serials.len(), "{sizes:?}");
    }

    #[tokio::test]
    async fn a_list_that_is_full_stops_nobody() {
        let api = FakeApi::default();
        let mut full = Shared::default();
        let end = unix(SystemTime::now() + MAXIMUM);
        for number in 0..REVOKED_MAX + 100 {
            full.revoked.insert(format!("f{number:031x}"), Some(end));
        }
        for (part, name) in REVOKED.iter().enumerate() {
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": name}, "data": {REVOKED_KEY: full.part(part)}});
            api.put(&format!("{MAPS}/{name}"), map);
        }
        let replica = Replica::start(&api, "full").await;
        tokio::time::timeout(MAXIMUM, replica.cluster.catch_up(&replica.authority)).await.unwrap();
        let problem = replica.authority.problem().unwrap();
        assert!(problem.contains("full"), "{problem}");
        assert_eq!(list(&replica).len(), REVOKED_MAX);
        assert!(replica.authority.crl_pem().unwrap().len() < 1 << 20, "fits into istio-ca-crl");
        let serial = replica.sign(&identity(0));
        let refused =
            replica.authority.revoke(&Which::Serial(serial.parse().unwrap()), SystemTime::now());
        assert!(error_chain(&refused.unwrap_err()).contains("plug in a new root"));
    }

    #[tokio::test]
    async fn a_damaged_part_is_waited_for_and_hides_no_other() {
        let api = FakeApi::default();
        let one = Replica::start(&api, "damage-one").await;
        let serials = ["0a10", "0a11", "0a12", "0a13"];
        for serial in serials {
            let which = Which::Serial(serial.parse().unwrap());
            one.authority.revoke(&which, SystemTime::now()).unwrap();
        }
        one.exchange().await;
        let path = format!("{MAPS}/ambit-revoked-0");
        let good = api.get(&path).unwrap();
        let mut damaged = good.clone();
        damaged["metadata"] = json!({"name": "ambit-revoked-0"});
        damaged["data"]["revoked.txt"] = json!("nonsense");
        api.put(&path, damaged);
        let two = Replica::start(&api, "damage-two").await;
        let error = two.cluster.exchange(&two.authority).await.unwrap_err();
        assert!(error.to_string().contains("ambit-revoked-0"), "{error}");
        assert_eq!(two.revoked().len(), 3, "the other parts count");
        assert_eq!(api.get(&path).unwrap()["data"]["revoked.txt"], "nonsense", "left as it is");
        let waiting = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(two.authority.problem().unwrap().contains("damaged"));
            api.delete(&path);
            one.exchange().await;
        };
        tokio::join!(two.cluster.catch_up(&two.authority), waiting);
        assert_eq!((two.revoked().len(), two.authority.problem()), (4, None));
    }

    #[tokio::test]
    async fn a_published_list_is_followed_by_none_that_names_less() {
        let api = FakeApi::default();
        let one = Replica::start(&api, "publish-one").await;
        let serial = one.sign(&identity(1));
        let which = Which::Serial(serial.parse().unwrap());
        one.authority.revoke(&which, SystemTime::now()).unwrap();
        let published = one.authority.crl_pem().unwrap();
        // A replica that knows nothing, not even what replicas share, and whose clock is behind.
        let two = Replica::start(&api, "publish-two").await;
        let behind = SystemTime::now() - Duration::from_secs(100);
        two.authority.succeed(&published, behind).unwrap();
        assert_eq!(two.revoked(), std::slice::from_ref(&serial));
        let before = RevocationList::from_pem(&published, &one.authority.roots_pem()).unwrap();
        assert!(list(&two).goes_back(&before).is_none(), "{:?}", list(&two).number());
        assert!(list(&two).number() > before.number());
        let own = two.authority.crl_pem();
        two.authority.succeed(&own.clone().unwrap(), behind).unwrap();
        assert_eq!(two.authority.crl_pem(), own, "its own");
        // What has ended leaves, and does not come back from an old list.
        let later = SystemTime::now() + MAXIMUM + Duration::from_secs(2 * 86_400 + 1000);
        two.authority.maintain(&[], later).unwrap();
        assert!(two.revoked().is_empty());
        two.authority.succeed(&published, later).unwrap();
        two.authority.succeed(&published, SystemTime::now()).unwrap();
        assert!(two.revoked().is_empty());
        // A stranger's list is nobody's.
        let stranger = Authority::generate("cluster.local", SystemTime::now()).unwrap();
        let stranger = ambit_tls::AuthorityBundle::new(stranger);
        let forged = stranger.revoke_as(&["0b".parse().unwrap()], u64::MAX - 9, later, MAXIMUM);
        two.authority.succeed(&forged.unwrap(), later).unwrap();
        assert!(two.revoked().is_empty() && list(&two).number() < Some(u64::MAX / 2));
    }
}
