//! CreateCertificate: who may have which certificate.
//!
//! The caller is a node's proxy, known by its token. It may have certificates of identities whose
//! pods run on its node, and of no others: a stolen node token is worth that node's pods. Every
//! refusal says why, to the caller and in the log; the token itself is never part of it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambit_model::Text;
use ambit_model::identity::Identity;
use ambit_tls::authority::AuthorityError;
use ambit_tls::request::RequestError;
use ambit_wire::ca::requested_identity;
use ambit_wire::proto::istio::v1::auth::istio_certificate_service_server::IstioCertificateService;
use ambit_wire::proto::istio::v1::auth::{IstioCertificateRequest, IstioCertificateResponse};
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use super::{CaError, CertificateAuthority};
use crate::callers::{Caller, CallerError, Callers};
use crate::error_text::chain;
use crate::metrics::Metrics;
use crate::world::World;

/// How long a request waits for its pod to appear: an agent may be faster than the registry.
const POD_WAIT: Duration = Duration::from_secs(1);

/// Certificates for the pods of the caller's node.
pub(crate) struct CertificateService {
    pub(crate) authority: Arc<CertificateAuthority>,
    pub(crate) callers: Callers,
    pub(crate) world: Arc<World>,
    pub(crate) trust_domain: Text,
    pub(crate) trusted_accounts: Vec<(Text, Text)>,
    pub(crate) default_ttl: Duration,
    pub(crate) max_ttl: Duration,
    pub(crate) metrics: Arc<Metrics>,
}

/// A refusal: a word for metrics, and the status for the caller.
struct Refusal(&'static str, Status);

#[tonic::async_trait]
impl IstioCertificateService for CertificateService {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        self.metrics.requested();
        let remote = request.extensions().get::<crate::listener::Remote>().copied();
        match self.answer(&request, SystemTime::now()).await {
            Ok(response) => Ok(Response::new(response)),
            Err(Refusal(reason, status)) => {
                self.metrics.refused(reason);
                tracing::warn!(
                    reason,
                    remote = remote.map(|remote| remote.0.to_string()),
                    message = status.message(),
                    "certificate refused",
                );
                Err(status)
            }
        }
    }
}

impl CertificateService {
    async fn answer(
        &self,
        request: &Request<IstioCertificateRequest>,
        now: SystemTime,
    ) -> Result<IstioCertificateResponse, Refusal> {
        let caller = self.callers.caller(request.metadata(), &self.world, now).await;
        let caller = caller.map_err(|error| {
            let is_unknown = matches!(error, CallerError::Unknown(_));
            let reason = if is_unknown { "unavailable" } else { "unauthenticated" };
            Refusal(reason, error.status())
        })?;
        let identity = self.authorise(&caller, request.get_ref()).await?;
        let ttl = self.ttl(request.get_ref().validity_duration);
        let csr = &request.get_ref().csr;
        let signed = self.authority.sign(csr, &identity, &caller.node, ttl, now);
        let (cert_chain, entry) = signed.map_err(|error| refused(&error))?;
        self.metrics.issued();
        let ttl_seconds = entry.not_after.saturating_sub(entry.issued_at);
        let serial = entry.serial;
        tracing::info!(%identity, node = caller.node, serial, ttl_seconds, "certificate issued");
        Ok(IstioCertificateResponse { cert_chain })
    }

    /// The identity that the caller asks for, if it may have it.
    async fn authorise(
        &self,
        caller: &Caller,
        request: &IstioCertificateRequest,
    ) -> Result<Identity, Refusal> {
        let denied = |what: String| Refusal("denied", Status::permission_denied(what));
        let is_trusted = |(namespace, name): &(Text, Text)| {
            **namespace == *caller.namespace && **name == *caller.service_account
        };
        if !self.trusted_accounts.iter().any(is_trusted) {
            return Err(denied(format!(
                "{} may not ask for other workloads' certificates; trusted are node proxies only",
                caller.subject()
            )));
        }
        if caller.node.is_empty() {
            return Err(denied("the token is not bound to a node".to_owned()));
        }
        let identity = match requested_identity(request) {
            Ok(Some(identity)) => identity,
            Ok(None) => {
                let what = "name the pod's identity in the metadata field ImpersonatedIdentity";
                return Err(Refusal("malformed", Status::invalid_argument(what)));
            }
            Err(error) => {
                return Err(Refusal("malformed", Status::invalid_argument(chain(&error))));
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
    let text = chain(error);
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
