//! The control plane of one proxy: identity, destination and policies, served in its pod.
//!
//! Every answer is known from the start, so each stream sends one message and stays open.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use ambit_net::namespace::NetNs;
use futures::{Stream, StreamExt, stream};
use linkerd2_proxy_api::destination::destination_server::{Destination, DestinationServer};
use linkerd2_proxy_api::destination::{DestinationProfile, GetDestination, Update};
use linkerd2_proxy_api::identity::identity_server::{Identity, IdentityServer};
use linkerd2_proxy_api::identity::{CertifyRequest, CertifyResponse};
use linkerd2_proxy_api::inbound::inbound_server_policies_server::{
    InboundServerPolicies, InboundServerPoliciesServer,
};
use linkerd2_proxy_api::inbound::{PortSpec, Server};
use linkerd2_proxy_api::outbound::outbound_policies_server::{
    OutboundPolicies, OutboundPoliciesServer,
};
use linkerd2_proxy_api::outbound::{OutboundPolicy, TrafficSpec, traffic_spec};
use tokio::runtime::Handle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use super::super::authority::LIFETIME;
use super::super::topology::{Pod, Port, Service, Topology};
use super::{PORTS, messages};

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The answers for one proxy.
#[derive(Clone)]
pub(super) struct Api {
    topology: Arc<Topology>,
    namespace: String,
    certificate_der: Vec<u8>,
}

impl Api {
    /// That of a pod's proxy, which has this certificate.
    pub(super) fn new(topology: Arc<Topology>, pod: &Pod, certificate_der: Vec<u8>) -> Self {
        Self { topology, namespace: pod.namespace.clone(), certificate_der }
    }

    /// Serves it in a pod for as long as the runtime lives.
    pub(super) fn serve(self, at: SocketAddr, netns: &NetNs, handle: &Handle) -> io::Result<()> {
        let listener = netns.run(|| TcpListener::bind(at))??;
        listener.set_nonblocking(true)?;
        let _on_the_runtime = handle.enter();
        let incoming = TcpListenerStream::new(tokio::net::TcpListener::from_std(listener)?);
        let api = Arc::new(self);
        let serving = tonic::transport::Server::builder()
            .add_service(IdentityServer::from_arc(Arc::clone(&api)))
            .add_service(DestinationServer::from_arc(Arc::clone(&api)))
            .add_service(OutboundPoliciesServer::from_arc(Arc::clone(&api)))
            .add_service(InboundServerPoliciesServer::from_arc(api))
            .serve_with_incoming(incoming);
        handle.spawn(async move {
            if let Err(error) = serving.await {
                tracing::warn!(%error, "a sidecar's control plane ended");
            }
        });
        Ok(())
    }

    /// The port of a service that has this virtual address.
    fn service_at(&self, address: SocketAddr) -> Option<(&Service, &Port)> {
        let mut services = self.topology.services.iter();
        let service = services.find(|service| service.addresses.contains(&address.ip()))?;
        Some((service, service.port(address.port())?))
    }

    /// The port of the service that is called so: `NAME.NAMESPACE.svc.DOMAIN:PORT`.
    fn service_named(&self, authority: &str) -> Option<&Port> {
        let (host, port) = authority.rsplit_once(':')?;
        let mut services = self.topology.services.iter();
        services.find(|service| service.hostname() == host)?.port(port.parse().ok()?)
    }

    fn pod_at(&self, ip: IpAddr) -> Option<&Pod> {
        self.topology.pods.iter().find(|pod| pod.addresses.contains(&ip))
    }

    fn outbound_policy(&self, spec: TrafficSpec) -> Result<OutboundPolicy, Status> {
        let Some(traffic_spec::Target::Addr(address)) = spec.target else {
            return Err(Status::not_found("only addresses are known here"));
        };
        let address = SocketAddr::try_from(address)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        match self.service_at(address) {
            Some((service, port)) => Ok(messages::to_service(service, port)),
            // The proxy goes by the profile of an endpoint then.
            None if self.pod_at(address.ip()).is_some() => {
                Err(Status::not_found("a pod has no policy of its own"))
            }
            None => Ok(messages::to_elsewhere(address)),
        }
    }

    fn server(&self, port: u32) -> Server {
        if port == u32::from(PORTS.admin) {
            return messages::open_server();
        }
        messages::server(&self.topology.identities_from(&self.namespace))
    }
}

/// One answer, and no end.
fn only<T: Send + 'static>(answer: T) -> Answer<Answers<T>> {
    Ok(Response::new(stream::once(async { Ok(answer) }).chain(stream::pending()).boxed()))
}

#[tonic::async_trait]
impl Identity for Api {
    async fn certify(&self, _request: Request<CertifyRequest>) -> Answer<CertifyResponse> {
        Ok(Response::new(CertifyResponse {
            leaf_certificate: self.certificate_der.clone(),
            intermediate_certificates: Vec::new(),
            valid_until: Some((SystemTime::now() + LIFETIME).into()),
        }))
    }
}

#[tonic::async_trait]
impl Destination for Api {
    type GetStream = Answers<Update>;
    type GetProfileStream = Answers<DestinationProfile>;

    async fn get(&self, request: Request<GetDestination>) -> Answer<Self::GetStream> {
        let path = request.into_inner().path;
        match self.service_named(&path) {
            Some(port) => only(messages::endpoints(port)),
            None => Err(Status::invalid_argument(format!("no such service: {path}"))),
        }
    }

    async fn get_profile(
        &self,
        request: Request<GetDestination>,
    ) -> Answer<Self::GetProfileStream> {
        let path = request.into_inner().path;
        let Ok(address) = path.parse::<SocketAddr>() else {
            return Err(Status::invalid_argument(format!("only addresses are known: {path}")));
        };
        only(match self.service_at(address) {
            Some((service, _)) => messages::service_profile(service),
            None => {
                let identity = self.pod_at(address.ip()).map(|pod| &pod.identity);
                messages::endpoint_profile(address, identity)
            }
        })
    }
}

#[tonic::async_trait]
impl OutboundPolicies for Api {
    type WatchStream = Answers<OutboundPolicy>;

    async fn get(&self, request: Request<TrafficSpec>) -> Answer<OutboundPolicy> {
        self.outbound_policy(request.into_inner()).map(Response::new)
    }

    async fn watch(&self, request: Request<TrafficSpec>) -> Answer<Self::WatchStream> {
        only(self.outbound_policy(request.into_inner())?)
    }
}

#[tonic::async_trait]
impl InboundServerPolicies for Api {
    type WatchPortStream = Answers<Server>;

    async fn get_port(&self, request: Request<PortSpec>) -> Answer<Server> {
        Ok(Response::new(self.server(request.into_inner().port)))
    }

    async fn watch_port(&self, request: Request<PortSpec>) -> Answer<Self::WatchPortStream> {
        only(self.server(request.into_inner().port))
    }
}
