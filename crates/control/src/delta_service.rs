//! The gRPC service of delta discovery, message by message: [`ambit_net::grpc::messages`] says why
//! it is not tonic's. Nothing here knows what is sent.

use std::convert::Infallible;
use std::task::{Context, Poll};

use ambit_net::grpc::messages::{self, Limit, Messages};
use ambit_wire::xds::digest::{RESUME_DIGESTS, RESUME_HEADER};
use ambit_wire::xds::{
    DELTA_PATH, DISCOVERY_SERVICE, MAX_REQUEST_BYTES, MAX_REQUEST_FIELDS, NESTED_REQUEST_FIELDS,
};
use http::HeaderValue;
use http_body_util::BodyExt as _;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;

use crate::listener::Remote;
use crate::xds_server::Discovery;

/// Serves discovery.
#[derive(Clone)]
pub(crate) struct DeltaService(pub(crate) Discovery);

impl NamedService for DeltaService {
    const NAME: &'static str = DISCOVERY_SERVICE;
}

impl Service<http::Request<Body>> for DeltaService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let discovery = self.0.clone();
        Box::pin(async move {
            let served = serve(&discovery, request).await;
            Ok(served.unwrap_or_else(|status| status.into_http()))
        })
    }
}

async fn serve(
    discovery: &Discovery,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Status> {
    let (parts, body) = request.into_parts();
    if parts.uri.path() != DELTA_PATH {
        let what = "only delta discovery is served; call DeltaAggregatedResources";
        return Err(Status::unimplemented(what));
    }
    let limit = Limit {
        bytes: MAX_REQUEST_BYTES,
        fields: MAX_REQUEST_FIELDS,
        nested: NESTED_REQUEST_FIELDS,
    };
    let requests = Messages::of_request(&parts.headers, body, limit)?;
    let remote = parts.extensions.get::<Remote>().cloned();
    let (responses, place) = discovery.follow(parts.headers, requests, remote).await?;
    let mut response = messages::response(responses).map(|body| {
        Body::new(body.map_frame(move |frame| {
            // The place is given back with the last of the answer, and not before.
            let _held = &place;
            frame
        }))
    });
    response.headers_mut().insert(RESUME_HEADER, HeaderValue::from_static(RESUME_DIGESTS));
    Ok(response)
}
