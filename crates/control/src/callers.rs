//! Callers: verifies the bearer token of a node's proxy, of a waypoint's pod or of a
//! WorkloadEntry's computer.
//!
//! On one machine control signs the tokens itself, and accepts one only from an address of its node
//! or pod: a copy of a token is useless elsewhere. In a cluster the API server signs them, and only
//! it can say whether one is valid: the pod that it was issued to must still exist. It is never
//! asked about a token that it has not signed, see [`crate::issuer`]. Its positive answers are
//! remembered for a minute, by the token's hash; a token itself is never kept and never part of an
//! error. While the API server is away, a proxy is not refused as unknown: it is asked to retry.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ambit_apiserver::ANSWER_TIMEOUT;
use ambit_manifest::ObjectName;
use ambit_model::Text;
use ambit_model::names::ServiceName;
use ambit_net::admission::Owner;
use ambit_tls::token::{Claims, PodClaim, TokenError, TokenVerifier};
use ambit_words::error_chain;
use ambit_words::names::TOKEN_AUDIENCE;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::{
    TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo,
};
use kube::api::PostParams;
use kube::{Api, Client};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout};
use tonic::Status;
use tonic::metadata::MetadataMap;
use zeroize::Zeroizing;

use crate::ca::OF_ENTRIES;
use crate::issuer::{Issuer, Signature, Source, Turns};
use crate::kubernetes::{ApiError, answer};
use crate::world::World;

/// Longest token that is looked at; Kubernetes' own are about 1 KiB long.
const TOKEN_SIZE_MAX_BYTES: usize = 8 << 10;
/// How long the API server's word on a token is good, unless the token ends before.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// Most tokens that are remembered: some for each node of a large cluster.
const REMEMBERED_MAX: usize = 20_000;
/// How long a pod may be known to the API server and not yet to us.
const POD_WAIT: Duration = Duration::from_secs(1);

/// The caller that a token proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Namespace of its service account.
    pub(crate) namespace: String,
    /// Name of its service account.
    pub(crate) service_account: String,
    /// The node it is bound to; empty if unknown, and for a WorkloadEntry's computer.
    pub(crate) node: String,
    /// When its token ends.
    pub(crate) expires_at: SystemTime,
    /// The pod that its token was given to.
    pub(crate) pod: Option<PodClaim>,
    /// For whom it speaks.
    pub(crate) speaks_for: SpeaksFor,
}

/// For whom a caller speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SpeaksFor {
    /// All pods of its node, if its account is trusted.
    Node,
    /// Itself alone, if its pod is a waypoint's.
    Waypoint,
    /// Itself alone, as the computer of this WorkloadEntry. No token says so: it is judged at each
    /// call, see [`crate::entry_callers`].
    Entry(EntryClaim),
}

/// The WorkloadEntry whose computer calls, of the caller's namespace and account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EntryClaim {
    /// Its name.
    pub(crate) name: Text,
    /// Its uid: another of the same name is not the one that was judged.
    pub(crate) uid: Text,
}

impl Caller {
    /// Whether its pod is a waypoint's.
    pub(crate) fn is_waypoint(&self, world: &World) -> bool {
        let pod = self.pod.as_ref();
        pod.is_some_and(|pod| world.is_waypoint(&self.namespace, &self.service_account, pod))
    }

    /// The service of the gateway at the edge whose pod its pod is.
    pub(crate) fn gateway(&self, world: &World) -> Option<ServiceName> {
        let pod = self.pod.as_ref()?;
        world.gateway_of(&self.namespace, &self.service_account, pod)
    }

    /// Whom its calls and streams count for: its node, its pod or its WorkloadEntry.
    /// The three have no name in common: a node's holds no slash, and a pod's, with the namespace,
    /// no colon.
    pub(crate) fn account_holder(&self) -> String {
        match (&self.speaks_for, &self.pod) {
            (SpeaksFor::Entry(entry), _) => {
                format!("{OF_ENTRIES}{}/{}", self.namespace, entry.name)
            }
            (SpeaksFor::Waypoint, Some(pod)) => format!("{}/{}", self.namespace, pod.name),
            _ => self.node.clone(),
        }
    }

    /// Whose its connection is: its node's, its pod's, or of all WorkloadEntries of its namespace,
    /// as its certificates are. Nothing if nobody can say.
    pub(crate) fn connection_owner(&self) -> Option<Owner> {
        if let SpeaksFor::Entry(_) = self.speaks_for {
            return Some(Owner::Guest((&*self.namespace).into()));
        }
        let holder = self.account_holder();
        (!holder.is_empty()).then(|| Owner::Named(holder.into()))
    }

    /// Whom its certificates count for: its node, or all WorkloadEntries of its account. Whoever
    /// may make WorkloadEntries could make as many as there is room for certificates.
    pub(crate) fn certificate_holder(&self) -> String {
        match &self.speaks_for {
            SpeaksFor::Entry(_) => {
                format!("{OF_ENTRIES}{}/{}", self.namespace, self.service_account)
            }
            SpeaksFor::Node | SpeaksFor::Waypoint => self.node.clone(),
        }
    }

    /// Who it is, in messages.
    pub(crate) fn title(&self) -> String {
        match &self.speaks_for {
            SpeaksFor::Entry(entry) => format!("workload entry {}/{}", self.namespace, entry.name),
            SpeaksFor::Node | SpeaksFor::Waypoint => self.account_holder(),
        }
    }

    /// `system:serviceaccount:<namespace>:<name>`.
    pub(crate) fn subject(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.service_account)
    }
}

/// Why a caller is not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallerError {
    /// No token.
    #[error("no bearer token; send `authorization: Bearer <token>`")]
    NoToken,
    /// Control's own token is refused.
    #[error("the token is refused")]
    Own(#[from] TokenError),
    /// Control's own token comes from elsewhere than its node.
    #[error(
        "the token is bound to node {node}, and this call comes from {}: call from an address that \
         the Node object lists in status.addresses as InternalIP or ExternalIP, or list this one \
         there", .from.map_or("an unknown address".to_owned(), |ip| ip.to_string())
    )]
    Elsewhere {
        /// The token's node.
        node: String,
        /// Where the call comes from.
        from: Option<IpAddr>,
    },
    /// Control's own token comes from elsewhere than its pod.
    #[error("the token is bound to pod {pod}, and this call does not come from its addresses")]
    ElsewhereThanPod {
        /// The token's pod.
        pod: String,
    },
    /// A cluster's token is refused.
    #[error("the token is refused: {0}")]
    Refused(String),
    /// The token's pod is gone, or was replaced.
    #[error("the token is of pod {0}, which does not exist any more")]
    PodGone(String),
    /// It cannot be verified at the moment.
    #[error("the token cannot be verified now, try again")]
    Unknown(#[source] ApiError),
}

impl CallerError {
    /// The status that the caller gets.
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Unknown(_) => Status::unavailable(error_chain(self)),
            _ => Status::unauthenticated(error_chain(self)),
        }
    }
}

/// Verifies callers.
#[derive(Clone)]
pub(crate) enum Callers {
    /// By control's own signature.
    Own(TokenVerifier),
    /// By asking the API server.
    Reviewed(Arc<Reviews>),
}

impl Callers {
    /// The caller at `remote`, proven by the bearer token in `metadata`.
    pub(crate) async fn caller(
        &self,
        metadata: &MetadataMap,
        remote: Option<SocketAddr>,
        world: &World,
        now: SystemTime,
    ) -> Result<Caller, CallerError> {
        let token = bearer(metadata).ok_or(CallerError::NoToken)?;
        match self {
            Self::Own(verifier) => {
                let claims = verifier.verify(token, TOKEN_AUDIENCE, now)?;
                let from = remote.map(|remote| remote.ip().to_canonical());
                if claims.pod.is_some() {
                    return of_pod(claims, from, world).await;
                }
                let is_there = from.is_some_and(|ip| world.is_address_of(&claims.node, ip));
                // A token without a node gives no access; the code that needs the node refuses it.
                if !is_there && !claims.node.is_empty() {
                    return Err(CallerError::Elsewhere { node: claims.node, from });
                }
                Ok(Caller {
                    namespace: claims.namespace,
                    service_account: claims.service_account,
                    node: claims.node,
                    expires_at: claims.expires_at,
                    pod: None,
                    speaks_for: SpeaksFor::Node,
                })
            }
            Self::Reviewed(reviews) => {
                let source = Source::of(remote.map(|remote| remote.ip()));
                located(reviews.caller(token, source, now).await?, world).await
            }
        }
    }
}

/// The caller of an own token of a pod: it calls from an address that is the pod's alone, and never
/// speaks for its node.
async fn of_pod(
    claims: Claims,
    from: Option<IpAddr>,
    world: &World,
) -> Result<Caller, CallerError> {
    let caller = Caller {
        namespace: claims.namespace,
        service_account: claims.service_account,
        node: claims.node,
        expires_at: claims.expires_at,
        pod: claims.pod,
        speaks_for: SpeaksFor::Waypoint,
    };
    let caller = located(caller, world).await?;
    let name = caller.pod.as_ref().map_or("", |pod| &pod.name);
    let object = ObjectName::new(&caller.namespace, name);
    let builder = world.read();
    let is_there = builder.store().pod(&object).is_some_and(|(pod, state)| {
        from.is_some_and(|from| state.own_addresses(pod).contains(&from))
    });
    if is_there {
        return Ok(caller);
    }
    Err(CallerError::ElsewhereThanPod { pod: format!("{}/{name}", caller.namespace) })
}

fn bearer(metadata: &MetadataMap) -> Option<&str> {
    let (scheme, token) = metadata.get("authorization")?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// Compares the token's pod with the world: it must exist with the same uid, and it names the node
/// if the token does not.
async fn located(mut caller: Caller, world: &World) -> Result<Caller, CallerError> {
    let Some(PodClaim { name, uid }) = &caller.pod else { return Ok(caller) };
    let object = ObjectName::new(&caller.namespace, name);
    let mut objects = world.objects();
    let appears = async {
        loop {
            let known = {
                let builder = world.read();
                let pod = builder.store().pod(&object).map(|(pod, _)| pod);
                pod.filter(|pod| *pod.uid == **uid).map(|pod| pod.node.to_string())
            };
            if known.is_some() || objects.changed().await.is_err() {
                return known;
            }
        }
    };
    let Some(node) = timeout(POD_WAIT, appears).await.unwrap_or(None) else {
        return Err(CallerError::PodGone(format!("{}/{name}", caller.namespace)));
    };
    if caller.node.is_empty() {
        caller.node = node;
    } else if caller.node != node {
        let what = format!("it is bound to node {}, its pod runs on {node}", caller.node);
        return Err(CallerError::Refused(what));
    }
    Ok(caller)
}

/// The API server's word on tokens.
pub(crate) struct Reviews {
    client: Client,
    issuer: Issuer,
    turns: Turns,
    remembered: Mutex<Remembered>,
}

/// Good tokens by their hash, the oldest first to be forgotten.
#[derive(Default)]
struct Remembered {
    callers: HashMap<[u8; 32], (Caller, Instant)>,
    order: VecDeque<[u8; 32]>,
}

/// What is read of a token before anybody is asked, and believed of it only after.
#[derive(Deserialize)]
struct Unverified {
    aud: Audience,
    exp: u64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Reviews {
    /// Asks the API server of `client`.
    pub(crate) fn new(client: Client) -> Self {
        let issuer = Issuer::new(client.clone());
        Self { client, issuer, turns: Turns::default(), remembered: Mutex::default() }
    }

    async fn caller(
        &self,
        token: &str,
        source: Source,
        now: SystemTime,
    ) -> Result<Caller, CallerError> {
        let hash: [u8; 32] = Sha256::digest(token).into();
        if let Some(known) = self.known(&hash, now) {
            return Ok(known);
        }
        // What the API server would refuse anyway must not cost a question.
        let expires_at = plausible(token, now)?;
        if let Signature::Forged(forgery) = self.issuer.judge(token).await {
            return Err(CallerError::Refused(forgery.to_string()));
        }
        let busy = |_| CallerError::Unknown(ApiError::Away("it is asked about others".to_owned()));
        let _turn = timeout(ANSWER_TIMEOUT, self.turns.of(source)).await.map_err(busy)?;
        // A faster call may have asked about the same token.
        if let Some(known) = self.known(&hash, now) {
            return Ok(known);
        }
        if let Some(refusal) = self.turns.refusal(&hash) {
            return Err(CallerError::Refused(refusal));
        }
        let caller = self.review(token, expires_at).await.inspect_err(|error| {
            if let CallerError::Refused(why) = error {
                self.turns.was_refused(hash, why.clone());
            }
        })?;
        self.turns.was_good(source);
        let left = expires_at.duration_since(now).unwrap_or_default();
        let until = Instant::now() + left.min(REMEMBERED_FOR);
        self.remembered.lock().expect("no holder of the lock panics").add(
            hash,
            caller.clone(),
            until,
        );
        Ok(caller)
    }

    fn known(&self, hash: &[u8; 32], now: SystemTime) -> Option<Caller> {
        let remembered = self.remembered.lock().expect("no holder of the lock panics");
        let (caller, until) = remembered.callers.get(hash)?;
        (*until > Instant::now() && caller.expires_at > now).then(|| caller.clone())
    }

    async fn review(&self, token: &str, expires_at: SystemTime) -> Result<Caller, CallerError> {
        let mut review = TokenReview {
            spec: TokenReviewSpec {
                audiences: Some(vec![TOKEN_AUDIENCE.to_owned()]),
                token: token.to_owned(),
            },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let reviewed = answer(api.create(&PostParams::default(), &review)).await;
        drop(Zeroizing::new(std::mem::take(&mut review.spec.token)));
        let mut reviewed = reviewed.map_err(CallerError::Unknown)?;
        // The answer repeats the question.
        drop(Zeroizing::new(std::mem::take(&mut reviewed.spec.token)));
        accept(reviewed.status.unwrap_or_default(), expires_at)
    }
}

impl Remembered {
    fn add(&mut self, hash: [u8; 32], caller: Caller, until: Instant) {
        let now = Instant::now();
        while let Some(oldest) = self.order.front() {
            let ended = self.callers.get(oldest).is_none_or(|(_, until)| *until <= now);
            if !ended && self.callers.len() < REMEMBERED_MAX {
                break;
            }
            if let Some(oldest) = self.order.pop_front() {
                self.callers.remove(&oldest);
            }
        }
        if self.callers.insert(hash, (caller, until)).is_none() {
            self.order.push_back(hash);
        }
    }
}

/// When the token says that it ends, if it is one that may be good.
fn plausible(token: &str, now: SystemTime) -> Result<SystemTime, CallerError> {
    let refused = |what: &str| CallerError::Refused(what.to_owned());
    if token.len() > TOKEN_SIZE_MAX_BYTES {
        return Err(refused("it is longer than any token of a cluster"));
    }
    let parts: Vec<&str> = token.split('.').collect();
    let [_, body, _] = parts[..] else { return Err(refused("it is not a JWT")) };
    let body = BASE64_URL_SAFE_NO_PAD.decode(body).map_err(|_| refused("it is not a JWT"))?;
    let claims: Unverified =
        serde_json::from_slice(&body).map_err(|_| refused("it has no `aud` and `exp`"))?;
    let is_meant = match &claims.aud {
        Audience::One(one) => one == TOKEN_AUDIENCE,
        Audience::Many(many) => many.iter().any(|audience| audience == TOKEN_AUDIENCE),
    };
    if !is_meant {
        return Err(CallerError::Refused(format!("it is not meant for {TOKEN_AUDIENCE}")));
    }
    let expires_at = UNIX_EPOCH.checked_add(Duration::from_secs(claims.exp));
    let expires_at = expires_at.ok_or_else(|| refused("its end is out of range"))?;
    if expires_at <= now {
        return Err(refused("it has expired"));
    }
    Ok(expires_at)
}

fn accept(status: TokenReviewStatus, expires_at: SystemTime) -> Result<Caller, CallerError> {
    if status.authenticated != Some(true) {
        let what = status.error.unwrap_or_else(|| "the API server does not know it".to_owned());
        return Err(CallerError::Refused(what));
    }
    // An API server that does not know audiences would accept a token for anybody.
    if !status.audiences.iter().flatten().any(|audience| audience == TOKEN_AUDIENCE) {
        return Err(CallerError::Refused(format!("it is not meant for {TOKEN_AUDIENCE}")));
    }
    let UserInfo { username, extra, .. } = status.user.unwrap_or_default();
    let username = username.unwrap_or_default();
    let account = username.strip_prefix("system:serviceaccount:");
    let Some((namespace, service_account)) = account.and_then(|it| it.split_once(':')) else {
        return Err(CallerError::Refused(format!("{username:?} is no service account")));
    };
    let extra = extra.unwrap_or_default();
    let first = |name: &str| {
        let values = extra.get(&format!("authentication.kubernetes.io/{name}"));
        values.and_then(|values| values.first()).cloned()
    };
    let pod = match (first("pod-name"), first("pod-uid")) {
        (Some(name), Some(uid)) => Some(PodClaim { name, uid }),
        (None, None) => None,
        // Half of a claim must not pass for the token of no pod.
        _ => {
            let what = "the API server names a pod without its uid, or a uid without its pod";
            return Err(CallerError::Refused(what.to_owned()));
        }
    };
    Ok(Caller {
        namespace: namespace.to_owned(),
        service_account: service_account.to_owned(),
        node: first("node-name").unwrap_or_default(),
        expires_at,
        pod,
        speaks_for: SpeaksFor::Node,
    })
}

#[cfg(test)]
mod tests {
    use ambit_tls::token::{ISSUER, TokenSigner};
    use base64::prelude::BASE64_STANDARD;
    use serde_json::{Value, json};

    use super::*;
    use crate::kubernetes::fake::FakeApi;
    use crate::metrics::Metrics;
    use crate::registry::Event;
    use crate::view_builder::{Mesh, Vips};
    use ambit_manifest::{Kind, stored};

    fn world() -> World {
        let path = std::env::temp_dir().join("ambit-callers-none");
        let world = World::new(Mesh::sample(), Vips::default(), path, Arc::new(Metrics::new()));
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "istio-system", "name": "ztunnel-1", "uid": "u1"},
            "spec": {"nodeName": "node-1", "containers": []}});
        let pod = stored(Kind::Pod, pod.to_string().as_bytes()).unwrap();
        world.apply(vec![Event::Put(pod)]);
        world
    }

    /// A token that says it is for `audience` and ends in `seconds`.
    fn token(audience: &str, seconds: u64) -> String {
        let end = SystemTime::now() + Duration::from_secs(seconds);
        let exp = end.duration_since(UNIX_EPOCH).unwrap().as_secs();
        let body = json!({ "aud": [audience], "exp": exp }).to_string();
        format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(body))
    }

    fn status(extra: &Value) -> Value {
        json!({"authenticated": true, "audiences": ["istio-ca"], "user": {
            "username": "system:serviceaccount:istio-system:ztunnel", "extra": extra}})
    }

    fn extra(node: Option<&str>, uid: &str) -> Value {
        let mut extra = json!({
            "authentication.kubernetes.io/pod-name": ["ztunnel-1"],
            "authentication.kubernetes.io/pod-uid": [uid],
        });
        if let Some(node) = node {
            extra["authentication.kubernetes.io/node-name"] = json!([node]);
        }
        extra
    }

    async fn ask(callers: &Callers, token: &str) -> Result<Caller, CallerError> {
        ask_from(callers, token, "10.0.0.1", &world()).await
    }

    async fn ask_from(
        callers: &Callers,
        token: &str,
        from: &str,
        world: &World,
    ) -> Result<Caller, CallerError> {
        let mut metadata = MetadataMap::new();
        metadata.insert("authorization", format!("Bearer {token}").parse().unwrap());
        let from = SocketAddr::new(from.parse().unwrap(), 1);
        callers.caller(&metadata, Some(from), world, SystemTime::now()).await
    }

    /// A signer's public key as the API server publishes it.
    fn published(signer: &TokenSigner, kid: Option<&str>) -> Value {
        let pem = signer.to_pem();
        let base64: String = pem.lines().filter(|line| !line.starts_with("--")).collect();
        let der = BASE64_STANDARD.decode(base64).unwrap();
        // PKCS#8 with the public point at its end.
        let (x, y) = der[der.len() - 64..].split_at(32);
        let encode = |part| BASE64_URL_SAFE_NO_PAD.encode(part);
        let key = json!({"use": "sig", "kty": "EC", "crv": "P-256", "alg": "ES256", "kid": kid,
            "x": encode(x), "y": encode(y)});
        json!({ "keys": [key] })
    }

    fn signed(signer: &TokenSigner, node: &str) -> String {
        let now = SystemTime::now();
        let claims = Claims {
            issuer: ISSUER.to_owned(),
            audience: vec![TOKEN_AUDIENCE.to_owned()],
            issued_at: now,
            expires_at: now + Duration::from_secs(600),
            namespace: "istio-system".to_owned(),
            service_account: "ztunnel".to_owned(),
            node: node.to_owned(),
            pod: None,
        };
        signer.sign(&claims).unwrap().to_string()
    }

    /// An own forgery each time: another signature, under a key that is there or is not.
    fn forged(good: &str, number: usize) -> String {
        let (signed, _) = good.rsplit_once('.').unwrap();
        let (header, body) = signed.split_once('.').unwrap();
        let signature =
            BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(number.to_be_bytes()).repeat(2));
        let unknown = BASE64_URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256","kid":"none"}"#);
        let header = if number.is_multiple_of(2) { header } else { &unknown };
        format!("{header}.{body}.{signature}")
    }

    /// How long a good call takes among 120 connections whose tokens are junk, each time another;
    /// and how many questions the API server was asked, in two seconds.
    async fn among_junk(keys: Option<Value>, good: &str) -> (Duration, usize, FakeApi) {
        let api = FakeApi::default();
        api.take_for_reviews(Duration::from_millis(30));
        api.review(good, status(&extra(Some("node-1"), "u1")));
        if let Some(keys) = keys {
            api.publish_keys(keys);
        }
        let callers = Callers::Reviewed(Arc::new(Reviews::new(api.client())));
        let world = Arc::new(world());
        let mut junk = tokio::task::JoinSet::new();
        for connection in 0..120 {
            let (callers, world, good) = (callers.clone(), world.clone(), good.to_owned());
            junk.spawn(async move {
                for attempt in 0.. {
                    let forged = forged(&good, connection * 1_000_000 + attempt);
                    let refused = ask_from(&callers, &forged, "10.0.0.66", &world).await;
                    assert!(refused.is_err());
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            });
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let started = Instant::now();
        ask_from(&callers, good, "10.0.0.1", &world).await.unwrap();
        let took = started.elapsed();
        tokio::time::sleep(Duration::from_secs(1)).await;
        junk.shutdown().await;
        let reviews = api.count("POST /apis/authentication.k8s.io");
        println!("a good call took {took:?} among {reviews} reviews");
        (took, reviews, api)
    }

    #[tokio::test(start_paused = true)]
    async fn forged_tokens_cost_the_api_server_nothing() {
        let signer = TokenSigner::generate().unwrap();
        let good = signed(&signer, "node-1");
        let (took, reviews, api) = among_junk(Some(published(&signer, None)), &good).await;
        assert!(took < Duration::from_millis(200), "{took:?}");
        assert_eq!(reviews, 1, "the good one");
        assert!(api.count("GET /openid/v1/jwks") <= 2, "the keys are asked for at a rate");
    }

    #[tokio::test(start_paused = true)]
    async fn where_no_keys_are_known_a_source_waits_for_itself() {
        let good = signed(&TokenSigner::generate().unwrap(), "node-1");
        let (took, reviews, _) = among_junk(None, &good).await;
        assert!(took < Duration::from_millis(200), "{took:?}");
        assert!(reviews < 150, "{reviews} in two seconds");
    }

    #[tokio::test(start_paused = true)]
    async fn keys_that_change_are_asked_for_again() {
        let api = FakeApi::default();
        let (old, new) = (TokenSigner::generate().unwrap(), TokenSigner::generate().unwrap());
        api.publish_keys(published(&old, None));
        let callers = Callers::Reviewed(Arc::new(Reviews::new(api.client())));
        let (before, after) = (signed(&old, "node-1"), signed(&new, "node-1"));
        api.review(&before, status(&extra(Some("node-1"), "u1")));
        api.review(&after, status(&extra(Some("node-1"), "u1")));
        ask(&callers, &before).await.unwrap();
        let refused = ask(&callers, &after).await.unwrap_err();
        assert!(error_chain(&refused).contains("signature"), "{refused}");
        api.publish_keys(published(&new, None));
        tokio::time::advance(Duration::from_secs(601)).await;
        ask(&callers, &after).await.unwrap();
        // An API server that is away takes nobody's keys from us, and refuses no token.
        api.be_away(true);
        tokio::time::advance(Duration::from_secs(601)).await;
        let unknown = ask(&callers, &after).await.unwrap_err();
        assert_eq!(unknown.status().code(), tonic::Code::Unavailable, "{unknown:?}");
    }

    #[tokio::test]
    async fn an_own_token_is_good_at_its_node_alone() {
        let world = world();
        let put = |name: &str, addresses: Value| {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
                "status": {"addresses": addresses}});
            let node = stored(Kind::Node, node.to_string().as_bytes()).unwrap();
            world.apply(vec![Event::Put(node)]);
        };
        put(
            "node-1",
            json!([
                {"type": "InternalIP", "address": "172.18.0.11"},
                {"type": "InternalIP", "address": "fd00::11"},
                {"type": "ExternalIP", "address": "203.0.113.1"},
                {"type": "Hostname", "address": "172.18.0.99"},
                {"type": "InternalIP", "address": "node-1"},
            ]),
        );
        put("node-2", json!([{"type": "InternalIP", "address": "172.18.0.12"}]));
        put("node-3", json!([]));
        let signer = TokenSigner::generate().unwrap();
        let callers = Callers::Own(signer.verifier());
        let now = SystemTime::now();
        let check = async |node: &str, from: Option<&str>, good: bool| {
            let mut metadata = MetadataMap::new();
            let bearer = format!("Bearer {}", signed(&signer, node));
            metadata.insert("authorization", bearer.parse().unwrap());
            let from = from.map(|ip| SocketAddr::new(ip.parse().unwrap(), 4711));
            match callers.caller(&metadata, from, &world, now).await {
                Ok(caller) => assert!(good && caller.node == node, "{node} {from:?}"),
                Err(error) => {
                    assert!(!good, "{node} {from:?}: {error}");
                    assert_eq!(error.status().code(), tonic::Code::Unauthenticated);
                    assert!(error.to_string().contains("status.addresses"), "{error}");
                }
            }
        };
        for own in ["172.18.0.11", "::ffff:172.18.0.11", "fd00::11", "203.0.113.1"] {
            check("node-1", Some(own), true).await;
            check("node-2", Some(own), false).await;
        }
        for other in ["172.18.0.12", "10.244.1.2", "127.0.0.1", "::1", "172.18.0.99", "fd00::12"] {
            check("node-1", Some(other), false).await;
        }
        check("node-1", None, false).await;
        check("node-3", Some("172.18.0.11"), false).await;
        check("no-such-node", Some("172.18.0.11"), false).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_says_whose_token_it_is() {
        let check = async |token: &str, status: Value, expected: Result<&str, &str>| {
            let api = FakeApi::default();
            api.review(token, status.clone());
            let callers = Callers::Reviewed(Arc::new(Reviews::new(api.client())));
            match (ask(&callers, token).await, expected) {
                (Ok(caller), Ok(node)) => assert_eq!(caller.node, node, "{status}"),
                (Err(error), Err(part)) => {
                    let text = error_chain(&error);
                    assert!(text.contains(part), "{status}: {text}");
                    assert!(!text.contains(token), "a token in an error");
                }
                (got, _) => panic!("{status}: {got:?}"),
            }
        };
        let good = token(TOKEN_AUDIENCE, 600);
        check(&good, status(&extra(Some("node-1"), "u1")), Ok("node-1")).await;
        check(&good, status(&extra(None, "u1")), Ok("node-1")).await;
        check(&good, status(&json!({})), Ok("")).await;
        check(&good, status(&extra(Some("node-2"), "u1")), Err("its pod runs on node-1")).await;
        check(&good, status(&extra(Some("node-1"), "u0")), Err("does not exist any more")).await;
        let no = json!({ "authenticated": false, "error": "token has been revoked" });
        check(&good, no, Err("has been revoked")).await;
        let other = json!({"authenticated": true, "audiences": ["https://kubernetes"],
            "user": {"username": "system:serviceaccount:a:b"}});
        check(&good, other, Err("not meant for istio-ca")).await;
        let human = json!({"authenticated": true, "audiences": ["istio-ca"],
            "user": {"username": "alice"}});
        check(&good, human, Err("no service account")).await;
        let any = status(&json!({}));
        check("abc", any.clone(), Err("not a JWT")).await;
        check(&token("api", 600), any.clone(), Err("not meant for istio-ca")).await;
        check(&token(TOKEN_AUDIENCE, 0), any, Err("expired")).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_remembered_for_a_minute_and_an_outage_is_no_refusal() {
        let api = FakeApi::default();
        let (long, short) = (token(TOKEN_AUDIENCE, 600), token(TOKEN_AUDIENCE, 20));
        for token in [&long, &short] {
            api.review(token, status(&extra(Some("node-1"), "u1")));
        }
        let callers = Callers::Reviewed(Arc::new(Reviews::new(api.client())));
        let asked = || api.count("POST /apis/authentication.k8s.io");
        for _ in 0..3 {
            ask(&callers, &long).await.unwrap();
            ask(&callers, &short).await.unwrap();
        }
        assert_eq!(asked(), 2);
        api.be_away(true);
        tokio::time::advance(Duration::from_secs(30)).await;
        ask(&callers, &long).await.unwrap();
        let error = ask(&callers, &short).await.unwrap_err();
        assert_eq!(error.status().code(), tonic::Code::Unavailable, "{error:?}");
        tokio::time::advance(Duration::from_secs(31)).await;
        let error = ask(&callers, &long).await.unwrap_err();
        assert_eq!(error.status().code(), tonic::Code::Unavailable, "{error:?}");
        api.be_away(false);
        ask(&callers, &long).await.unwrap();
        api.review(&long, json!({ "authenticated": false }));
        ask(&callers, &long).await.unwrap();
        tokio::time::advance(Duration::from_secs(61)).await;
        let error = ask(&callers, &long).await.unwrap_err();
        assert_eq!(error.status().code(), tonic::Code::Unauthenticated, "{error:?}");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut remembered = Remembered::default();
        let caller = Caller {
            namespace: String::new(),
            service_account: String::new(),
            node: String::new(),
            expires_at: SystemTime::now(),
            pod: None,
            speaks_for: SpeaksFor::Node,
        };
        let until = Instant::now() + REMEMBERED_FOR;
        for index in 0..REMEMBERED_MAX + 10 {
            let hash = Sha256::digest(index.to_be_bytes()).into();
            remembered.add(hash, caller.clone(), until);
        }
        assert_eq!(remembered.callers.len(), REMEMBERED_MAX);
        assert_eq!(remembered.order.len(), REMEMBERED_MAX);
    }
}
