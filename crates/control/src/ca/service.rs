//! CreateCertificate: who may have which certificate.
//!
//! The caller is a node's proxy, a waypoint's pod or a WorkloadEntry's computer, authenticated by
//! its token before its request is read. A proxy may have certificates only for identities whose
//! pods run on its node: a stolen node token gives access to that node's pods alone. A waypoint and
//! a WorkloadEntry may have their own alone. Every refusal gives its reason, to the caller and in
//! the log; the token itself is never part of it.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use ambit_model::Text;
use ambit_model::identity::Identity;
use ambit_tls::authority::AuthorityError;
use ambit_tls::request::RequestError;
use ambit_wire::ca::requested_identity;
use ambit_wire::proto::istio::v1::auth::istio_certificate_service_server::{
    IstioCertificateService, IstioCertificateServiceServer,
};
use ambit_wire::proto::istio::v1::auth::{IstioCertificateRequest, IstioCertificateResponse};
use ambit_words::error_chain;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::metadata::MetadataMap;
use tonic::server::NamedService;
use tonic::{Request, Response, Status};

use super::bodies::{Bodies, REQUEST_MAX_BYTES};
use super::{CaError, CertificateAuthority};
use crate::authentication::Authentication;
use crate::callers::{Caller, SpeaksFor};
use crate::entry_callers;
use crate::listener::Remote;
use crate::metrics::Metrics;
use crate::world::World;

/// How long a request waits for its pod to appear: an agent may be faster than the registry.
const POD_WAIT: Duration = Duration::from_secs(1);

/// Certificates for the pods of the caller's node, or for the caller itself.
pub(crate) struct CertificateService {
    pub(crate) authority: Arc<CertificateAuthority>,
    pub(crate) world: Arc<World>,
    pub(crate) trust_domain: Text,
    pub(crate) default_ttl: Duration,
    pub(crate) max_ttl: Duration,
    pub(crate) metrics: Arc<Metrics>,
}

/// A refusal: a word for metrics, and the status for the caller.
struct Refusal(&'static str, Status);

/// Lets only proxies call. The generated server below reads a whole request before anything is
/// checked. So strangers are refused here first, and the requests of proxies are read here, within
/// bounds.
#[derive(Clone)]
pub(crate) struct Guarded {
    authentication: Authentication,
    bodies: Bodies,
    metrics: Arc<Metrics>,
    service: IstioCertificateServiceServer<CertificateService>,
}

impl Guarded {
    /// Puts the guard before `service`.
    pub(crate) fn new(service: CertificateService, authentication: Authentication) -> Self {
        let metrics = service.metrics.clone();
        let service = IstioCertificateServiceServer::new(service);
        let service = service.max_decoding_message_size(REQUEST_MAX_BYTES);
        Self { authentication, bodies: Bodies::default(), metrics, service }
    }
}

impl NamedService for Guarded {
    const NAME: &'static str = IstioCertificateServiceServer::<CertificateService>::NAME;
}

impl Service<http::Request<Body>> for Guarded {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let mut guarded = self.clone();
        Box::pin(async move {
            guarded.metrics.requested();
            let metadata = MetadataMap::from_headers(request.headers().clone());
            let remote = request.extensions().get::<Remote>().cloned();
            let refused =
                |refusal: Refusal| Ok(refusal.told(&guarded.metrics, remote.as_ref()).into_http());
            let caller = match guarded.authentication.caller(&metadata, remote.as_ref()).await {
                Ok(caller) => caller,
                Err(error) => {
                    let refusal = Refusal(error.reason(), error.status());
                    return match error.lines().admits(Instant::now()) {
                        true => refused(refusal),
                        false => Ok(refusal.counted(&guarded.metrics).into_http()),
                    };
                }
            };
            let body = std::mem::take(request.body_mut());
            match guarded.bodies.read(&caller.account_holder(), body).await {
                Ok(body) => *request.body_mut() = body,
                Err(status) => return refused(Refusal("malformed", status)),
            }
            request.extensions_mut().insert(caller);
            guarded.service.call(request).await
        })
    }
}

impl Refusal {
    /// Counts and logs it; returns the status for the caller.
    fn told(self, metrics: &Metrics, remote: Option<&Remote>) -> Status {
        let reason = self.0;
        let status = self.counted(metrics);
        let remote = remote.map(|remote| remote.address.to_string());
        tracing::warn!(reason, remote, error = status.message(), "certificate refused");
        status
    }

    /// Counts it and does not log it; returns the status for the caller.
    fn counted(self, metrics: &Metrics) -> Status {
        let Self(reason, status) = self;
        metrics.refused(reason);
        status
    }
}

#[tonic::async_trait]
impl IstioCertificateService for CertificateService {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let answered = self.answer(&request, SystemTime::now()).await;
        let remote = request.extensions().get::<Remote>();
        answered.map(Response::new).map_err(|refusal| refusal.told(&self.metrics, remote))
    }
}

impl CertificateService {
    async fn answer(
        &self,
        request: &Request<IstioCertificateRequest>,
        now: SystemTime,
    ) -> Result<IstioCertificateResponse, Refusal> {
        let Some(caller) = request.extensions().get::<Caller>() else {
            return Err(Refusal("unauthenticated", Status::unauthenticated("nobody has called")));
        };
        let identity = self.authorise(caller, request.get_ref()).await?;
        let ttl = self.ttl(request.get_ref().validity_duration);
        let csr = &request.get_ref().csr;
        let holder = caller.certificate_holder();
        let signed = self.authority.sign(csr, &identity, &holder, ttl, now);
        let (cert_chain, entry) = signed.map_err(|error| refused(&error))?;
        self.metrics.issued();
        let ttl_seconds = entry.not_after.saturating_sub(entry.issued_at);
        let serial = entry.serial;
        tracing::info!(%identity, node = caller.title(), serial, ttl_seconds, "certificate issued");
        Ok(IstioCertificateResponse { cert_chain })
    }

    /// The identity that the caller asks for, if it may have it.
    async fn authorise(
        &self,
        caller: &Caller,
        request: &IstioCertificateRequest,
    ) -> Result<Identity, Refusal> {
        let denied = |what: String| Refusal("denied", Status::permission_denied(what));
        // It may have changed since the call began: a request may take its time to arrive.
        entry_callers::still(caller, &self.world).map_err(|why| denied(why.to_string()))?;
        let has_node = !caller.node.is_empty();
        if !has_node && !matches!(caller.speaks_for, SpeaksFor::Entry(_)) {
            return Err(denied("the token is not bound to a node".to_owned()));
        }
        let identity = match (requested_identity(request), &caller.speaks_for) {
            (Ok(asked), SpeaksFor::Waypoint | SpeaksFor::Entry(_)) => {
                return self.own(caller, asked).map_err(denied);
            }
            (Ok(Some(identity)), SpeaksFor::Node) => identity,
            (Ok(None), SpeaksFor::Node) => {
                let what = "name the pod's identity in the metadata field ImpersonatedIdentity";
                return Err(Refusal("malformed", Status::invalid_argument(what)));
            }
            (Err(error), _) => {
                return Err(Refusal("malformed", Status::invalid_argument(error_chain(&error))));
            }
        };
        if identity.trust_domain != self.trust_domain {
            return Err(denied(format!(
                "{identity} is not of this mesh's trust domain {}",
                self.trust_domain
            )));
        }
        if !self.runs_on(&identity, &caller.node).await {
            let node = &caller.node;
            return Err(denied(format!("no running pod of {identity} was given to node {node}")));
        }
        Ok(identity)
    }

    /// The own identity of a waypoint or a WorkloadEntry, the only one that it may have; it need
    /// not be named.
    fn own(&self, caller: &Caller, asked: Option<Identity>) -> Result<Identity, String> {
        let (namespace, account) = (&*caller.namespace, &*caller.service_account);
        let own = Identity::new(self.trust_domain.clone(), namespace, account);
        match asked {
            Some(asked) if asked != own => Err(format!(
                "{asked} is not the identity of {}: it may have {own} and no other",
                match &caller.speaks_for {
                    SpeaksFor::Entry(_) => caller.title(),
                    SpeaksFor::Node | SpeaksFor::Waypoint => "this waypoint".to_owned(),
                }
            )),
            _ => Ok(own),
        }
    }

    /// Whether a pod of `identity` runs on `node`, now or in a moment.
    async fn runs_on(&self, identity: &Identity, node: &str) -> bool {
        let mut objects = self.world.objects();
        let appears = async {
            while !self.world.runs_on(identity, node) {
                if objects.changed().await.is_err() {
                    return false;
                }
            }
            true
        };
        timeout(POD_WAIT, appears).await.unwrap_or(false)
    }

    fn ttl(&self, asked_seconds: i64) -> Duration {
        match u64::try_from(asked_seconds) {
            Ok(seconds) if seconds > 0 => Duration::from_secs(seconds).min(self.max_ttl),
            _ => self.default_ttl.min(self.max_ttl),
        }
    }
}

fn refused(error: &CaError) -> Refusal {
    let text = error_chain(error);
    if let CaError::Full(_) = error {
        return Refusal("full", Status::resource_exhausted(text));
    }
    let CaError::Sign(cause) = error else {
        return Refusal("internal", Status::internal(text));
    };
    match &**cause {
        AuthorityError::Request(RequestError::OtherIdentity { .. }) => {
            Refusal("denied", Status::permission_denied(text))
        }
        AuthorityError::Request(_) => Refusal("malformed", Status::invalid_argument(text)),
        _ => Refusal("internal", Status::internal(text)),
    }
}

#[cfg(test)]
mod tests {
    use ambit_tls::WorkloadKey;
    use ambit_wire::ca::request_for;
    use tonic::Code;

    use super::*;
    use crate::ca::OF_ENTRIES;
    use crate::entry_callers::testing::Bed;

    const DAY: Duration = Duration::from_secs(86_400);

    fn service(directory: &std::path::Path, bed: &Bed) -> CertificateService {
        let opened =
            CertificateAuthority::open(directory, None, "cluster.local", SystemTime::now());
        CertificateService {
            authority: Arc::new(opened.expect("an authority")),
            world: bed.world.clone(),
            trust_domain: "cluster.local".into(),
            default_ttl: DAY,
            max_ttl: DAY,
            metrics: Arc::new(Metrics::new()),
        }
    }

    fn identity(domain: &str, namespace: &str, account: &str) -> Identity {
        Identity::new(domain, namespace, account)
    }

    /// Asks for `asked`, or for nobody by name.
    async fn ask(
        service: &CertificateService,
        caller: &Caller,
        asked: Option<&Identity>,
    ) -> Result<(), Status> {
        let own = identity("cluster.local", &caller.namespace, &caller.service_account);
        let csr = WorkloadKey::generate().expect("a key").csr_pem(asked.unwrap_or(&own));
        let mut message = request_for(asked.unwrap_or(&own), csr.expect("a request"), 0);
        if asked.is_none() {
            message.metadata = None;
        }
        let mut request = Request::new(message);
        request.extensions_mut().insert(caller.clone());
        service.create_certificate(request).await.map(|_| ())
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_has_its_own_identity_and_no_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let bed = Bed::new();
        bed.put("shop", "vm", "1", "web");
        let pod = serde_json::json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "shop", "name": "db-1", "uid": "db-1"},
            "spec": {"nodeName": "node-1", "serviceAccountName": "db", "containers": []}});
        bed.put_object(ambit_manifest::Kind::Pod, &pod);
        let service = service(directory.path(), &bed);
        let caller = bed.computer("shop", "web", "vm").await;
        assert_eq!(ask(&service, &caller, None).await.map_err(|it| it.to_string()), Ok(()));
        for (domain, namespace, account, is_own) in [
            ("cluster.local", "shop", "web", true),
            ("cluster.local", "shop", "db", false),
            ("cluster.local", "shop", "default", false),
            ("cluster.local", "bank", "web", false),
            ("evil.example", "shop", "web", false),
        ] {
            let asked = identity(domain, namespace, account);
            match ask(&service, &caller, Some(&asked)).await {
                Ok(()) => assert!(is_own, "{asked}"),
                Err(status) => {
                    assert!(!is_own, "{status}");
                    assert_eq!(status.code(), Code::PermissionDenied);
                    let own = "is not the identity of workload entry shop/vm: it may have \
                               spiffe://cluster.local/ns/shop/sa/web";
                    assert!(status.message().contains(own), "{status}");
                }
            }
        }
        // Deleted while its request arrived.
        bed.delete("shop", "vm");
        let refused = ask(&service, &caller, None).await.expect_err("it is gone");
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(refused.message().contains("no WorkloadEntry shop/vm"), "{refused}");
    }

    #[tokio::test(start_paused = true)]
    async fn another_name_is_no_more_certificates() {
        let directory = tempfile::tempdir().expect("a directory");
        let bed = Bed::new();
        let service = service(directory.path(), &bed);
        for name in ["one", "two", "three"] {
            bed.put("shop", name, name, "web");
            let caller = bed.computer("shop", "web", name).await;
            ask(&service, &caller, None).await.expect("signed");
            bed.delete("shop", name);
        }
        bed.put("shop", "one", "again", "web");
        ask(&service, &bed.computer("shop", "web", "one").await, None).await.expect("signed");
        let holders = service.authority.certificates().0.into_iter().map(|entry| entry.node);
        let holders: Vec<String> = holders.collect();
        assert_eq!(holders, vec![format!("{OF_ENTRIES}shop/web"); 4], "one holder in the ledger");
    }
}
