//! The gRPC of delta discovery, for the sake of its responses.
//!
//! A stream of tonic's keeps the buffer of its last message, which for a first answer is the whole
//! view, as long as it lives: with a thousand proxies as many copies. Here each response is a
//! buffer of its own, which goes when the connection has sent it. Requests, and all other methods,
//! are tonic's. Nothing here knows what is sent.

use std::convert::Infallible;
use std::task::{Context, Poll};

use ambit_wire::proto::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService as _, AggregatedDiscoveryServiceServer, SERVICE_NAME,
};
use ambit_wire::proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse,
};
use ambit_wire::xds::MAX_MESSAGE_BYTES;
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use http::{HeaderMap, HeaderValue, header};
use http_body_util::StreamBody;
use hyper::body::Frame;
use prost::Message as _;
use tokio::sync::mpsc;
use tonic::body::Body;
use tonic::codec::{Codec as _, Streaming};
use tonic::codegen::{BoxFuture, Service};
use tonic::metadata::MetadataMap;
use tonic::server::NamedService;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::xds_server::Discovery;

const DELTA_PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
/// A byte for "not compressed", and the length.
const PREFIX_BYTES: usize = 5;
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const ENCODING: &str = "grpc-encoding";
const IDENTITY: &str = "identity";

/// Serves discovery.
#[derive(Clone)]
pub(crate) struct DeltaService {
    discovery: Discovery,
    others: AggregatedDiscoveryServiceServer<Discovery>,
}

impl DeltaService {
    /// Serves this.
    pub(crate) fn new(discovery: Discovery) -> Self {
        Self { others: AggregatedDiscoveryServiceServer::new(discovery.clone()), discovery }
    }
}

impl NamedService for DeltaService {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<http::Request<Body>> for DeltaService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != DELTA_PATH {
            return self.others.call(request);
        }
        let discovery = self.discovery.clone();
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
    if parts.headers.get(ENCODING).is_some_and(|encoding| encoding != IDENTITY) {
        return Err(Status::unimplemented("requests must not be compressed"));
    }
    let decoder = ProstCodec::<DeltaDiscoveryResponse, DeltaDiscoveryRequest>::default().decoder();
    let requests = Streaming::new_request(decoder, body, None, Some(MAX_MESSAGE_BYTES));
    let metadata = MetadataMap::from_headers(parts.headers);
    let request = Request::from_parts(metadata, parts.extensions, requests);
    let responses = discovery.delta_aggregated_resources(request).await?.into_inner();
    let mut response = http::Response::new(Body::new(frames(responses.into_inner())));
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    Ok(response)
}

/// Responses as they go into the connection, and how it ended.
fn frames(
    responses: mpsc::Receiver<Result<DeltaDiscoveryResponse, Status>>,
) -> impl hyper::body::Body<Data = Bytes, Error = Infallible> + Send {
    StreamBody::new(stream::unfold(Some(responses), |responses| async {
        let mut responses = responses?;
        let (frame, rest) = match responses.recv().await {
            Some(Ok(response)) => (Frame::data(framed(&response)), Some(responses)),
            Some(Err(status)) => (Frame::trailers(trailers(&status)), None),
            None => (Frame::trailers(trailers(&Status::ok(""))), None),
        };
        Some((Ok(frame), rest))
    }))
}

fn framed(response: &DeltaDiscoveryResponse) -> Bytes {
    let length = response.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).expect("responses are closed long before 4 GiB"));
    response.encode(&mut frame).expect("there is room for it");
    frame.freeze()
}

fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    match status.add_header(&mut trailers) {
        Ok(()) => trailers,
        Err(error) => {
            // A message that no header can carry; the code says enough.
            let mut trailers = HeaderMap::new();
            trailers.insert(Status::GRPC_STATUS, (error.code() as i32).into());
            trailers
        }
    }
}
