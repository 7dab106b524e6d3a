//! The client of the certificate authority (istio.v1.auth.IstioCertificateService).
//!
//! One connection serves all requests; when it breaks, the next request opens another. The answer
//! is handed on as it came: whether it is worth anything is decided where the key is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ambit_model::identity::Identity;
use ambit_net::grpc;
use ambit_wire::proto::istio::v1::auth::IstioCertificateRequest;
use ambit_wire::proto::istio::v1::auth::istio_certificate_service_client as service;
use ambit_words::names::IMPERSONATED_IDENTITY;
use futures::future::BoxFuture;
use tokio::sync::Mutex;
use tonic::transport::Channel;

use crate::control_plane::{Access, ControlPlaneError};

/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a request was not signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The authority cannot be asked.
    #[error("ask the certificate authority")]
    Connect(#[source] ControlPlaneError),
    /// It refused, or the connection broke.
    #[error("the certificate authority refused ({code:?}): {message}")]
    Refused {
        /// The gRPC code.
        code: tonic::Code,
        /// What it said.
        message: String,
    },
    /// It took too long.
    #[error("the certificate authority did not answer within {} s", REQUEST_TIMEOUT.as_secs())]
    Timeout,
}

/// Signs requests. A test puts another in this place.
pub trait Authority {
    /// Asks for a certificate: the chain, leaf first, root bundle last.
    fn sign(
        &self,
        identity: &Identity,
        csr_pem: String,
    ) -> BoxFuture<'static, Result<Vec<String>, SignError>>;
}

/// The authority of the mesh.
pub struct CertificateAuthority(Arc<Client>);

struct Client {
    access: Access,
    /// Lifetime to ask for.
    ttl: Duration,
    channel: Mutex<Option<Channel>>,
}

impl CertificateAuthority {
    /// The authority that is asked so, for certificates of this lifetime.
    pub fn new(access: Access, ttl: Duration) -> Self {
        Self(Arc::new(Client { access, ttl, channel: Mutex::new(None) }))
    }
}

impl Authority for CertificateAuthority {
    fn sign(
        &self,
        identity: &Identity,
        csr_pem: String,
    ) -> BoxFuture<'static, Result<Vec<String>, SignError>> {
        let (client, identity) = (self.0.clone(), identity.to_string());
        Box::pin(async move {
            let asking = client.ask(identity, csr_pem);
            match tokio::time::timeout(REQUEST_TIMEOUT, asking).await {
                Ok(answer) => answer,
                Err(_) => Err(SignError::Timeout),
            }
        })
    }
}

impl Client {
    async fn ask(&self, identity: String, csr: String) -> Result<Vec<String>, SignError> {
        let impersonated =
            prost_types::Value { kind: Some(prost_types::value::Kind::StringValue(identity)) };
        let fields = BTreeMap::from([(IMPERSONATED_IDENTITY.to_owned(), impersonated)]);
        let validity_duration = i64::try_from(self.ttl.as_secs()).unwrap_or(i64::MAX);
        let metadata = Some(prost_types::Struct { fields });
        let body = IstioCertificateRequest { csr, validity_duration, metadata };
        let mut request = tonic::Request::new(body);
        self.access.introduce(request.metadata_mut()).map_err(SignError::Connect)?;
        let channel = self.channel().await.map_err(SignError::Connect)?;
        let answer =
            service::IstioCertificateServiceClient::new(channel).create_certificate(request).await;
        match answer {
            Ok(answer) => Ok(answer.into_inner().cert_chain),
            Err(status) => {
                // Whatever it was, a new connection does no harm: it may lead to another replica.
                self.channel.lock().await.take();
                let message = status.message().to_owned();
                Err(SignError::Refused { code: status.code(), message })
            }
        }
    }

    /// The connection in use, or a new one. Those who ask meanwhile wait for it.
    async fn channel(&self) -> Result<Channel, ControlPlaneError> {
        let mut channel = self.channel.lock().await;
        if let Some(channel) = &*channel {
            return Ok(channel.clone());
        }
        let target = self.access.target()?;
        let fresh = grpc::connect(&target).await.map_err(ControlPlaneError::Connect)?;
        *channel = Some(fresh.clone());
        Ok(fresh)
    }
}
