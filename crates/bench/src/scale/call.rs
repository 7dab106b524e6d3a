//! One proxy's call to the control plane, with its connection, in one task.
//!
//! The transport of a real proxy is made for many calls on many threads. Here each of its parts
//! would be a thousand tasks, on the machine that is measured.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context as TaskContext, Poll, Waker};

use ambit_net::grpc::messages::{Limit, Messages, framed};
use ambit_net::grpc::{self, CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES, Target, Transport};
use ambit_wire::proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse,
};
use ambit_wire::xds::{DELTA_PATH, MAX_RESPONSE_BYTES};
use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version, header};
use http_body_util::StreamBody;
use hyper::body::Frame;
use tonic::Status;
use tonic::body::Body;

/// A call that was accepted.
pub(super) struct Call {
    connection: Connection<Box<dyn Transport>>,
    requests: SendStream<Bytes>,
    responses: Messages,
    /// Without it the connection would end with its last stream.
    _sender: SendRequest<Bytes>,
}

impl Call {
    /// Connects, calls and says these first; answers the headers too.
    pub(super) async fn open(
        target: &Target,
        authorization: &HeaderValue,
        opening: Vec<DeltaDiscoveryRequest>,
    ) -> Result<(HeaderMap, Self)> {
        let stream = grpc::open(target).await?;
        let mut builder = Builder::new();
        builder.initial_window_size(STREAM_WINDOW_BYTES);
        builder.initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        let (mut sender, mut connection) = builder.handshake(stream).await?;
        let (response, mut requests) =
            sender.send_request(request(&target.uri, authorization)?, false)?;
        for request in opening {
            requests.send_data(framed(&request), false)?;
        }
        let response = driven(&mut connection, async { Ok(response.await?) }).await?;
        let (parts, body) = response.into_parts();
        ensure!(parts.status == StatusCode::OK, "the control plane answers {}", parts.status);
        let limit = Limit { bytes: MAX_RESPONSE_BYTES, fields: usize::MAX, nested: &[] };
        let responses = Messages::of_response(&parts.headers, body_of(body), limit)?;
        Ok((parts.headers, Self { connection, requests, responses, _sender: sender }))
    }

    /// The next response. Cancel safe: a caller that stops waiting loses nothing.
    pub(super) async fn next(&mut self) -> Result<DeltaDiscoveryResponse> {
        let next = async { Ok(self.responses.next().await?) };
        driven(&mut self.connection, next).await?.context("the control plane ended the stream")
    }

    /// Sends a request while the next response is waited for.
    pub(super) fn send(&mut self, request: &DeltaDiscoveryRequest) -> Result<()> {
        Ok(self.requests.send_data(framed(request), false)?)
    }
}

fn request(server: &Uri, authorization: &HeaderValue) -> Result<http::Request<()>> {
    let authority = server.authority().context("the server has no authority")?;
    let uri = Uri::builder().scheme("https").authority(authority.clone());
    let mut request = http::Request::new(());
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = uri.path_and_query(DELTA_PATH).build()?;
    let headers = request.headers_mut();
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(header::AUTHORIZATION, authorization.clone());
    Ok(request)
}

/// Does what only the connection can bring on. It is asked whenever the connection has done
/// something, so that it needs nobody to wake it.
async fn driven<T>(
    connection: &mut Connection<Box<dyn Transport>>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut work = pin!(work);
    poll_fn(|context| {
        let ended = Pin::new(&mut *connection).poll(context);
        match work.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) {
            Poll::Ready(done) => Poll::Ready(done),
            Poll::Pending => ended.map(|ended| match ended {
                Ok(()) => Err(anyhow!("the control plane closed the connection")),
                Err(error) => Err(error.into()),
            }),
        }
    })
    .await
}

fn body_of(body: RecvStream) -> Body {
    let frames = futures::stream::unfold(Some(body), |body| async {
        let mut body = body?;
        if let Some(data) = body.data().await {
            let taken = data.and_then(|data| {
                body.flow_control().release_capacity(data.len())?;
                Ok(Frame::data(data))
            });
            return Some((taken.map_err(|error| Status::from_error(error.into())), Some(body)));
        }
        let trailers = body.trailers().await.transpose()?;
        let trailers = trailers.map_err(|error| Status::from_error(error.into()));
        Some((trailers.map(Frame::trailers), None))
    });
    Body::new(StreamBody::new(frames))
}
