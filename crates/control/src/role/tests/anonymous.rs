//! How much a pod without a token can make the control plane hold: next to nothing.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio_stream::StreamExt as _;
use tonic::body::Body;
use tower::ServiceExt as _;

use super::*;

/// What tonic takes by itself, but for a byte.
const MESSAGE_BYTES: usize = (4 << 20) - 1;
const CREATE_CERTIFICATE: &str = "/istio.v1.auth.IstioCertificateService/CreateCertificate";
const PIECE_BYTES: usize = 16 << 10;

/// A message that comes in pieces and lacks its end; `taken` counts what is taken of it.
fn message(taken: &Arc<AtomicUsize>) -> Body {
    let mut head = vec![0];
    head.extend(u32::try_from(MESSAGE_BYTES + 1).unwrap().to_be_bytes());
    let pieces = (0..MESSAGE_BYTES / PIECE_BYTES).map(|_| vec![b'x'; PIECE_BYTES]);
    let taken = taken.clone();
    let frames = tokio_stream::iter(std::iter::once(head).chain(pieces)).map(move |piece| {
        taken.fetch_add(piece.len(), Ordering::Relaxed);
        Ok::<_, Infallible>(Frame::data(Bytes::from(piece)))
    });
    Body::new(StreamBody::new(frames.chain(tokio_stream::pending())))
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_refused_before_a_byte_of_their_requests_is_read() {
    let fixture = Fixture::start("anonymous", "").await;
    let channel = fixture.channel().await;
    let taken = Arc::new(AtomicUsize::new(0));
    let calls = (0..CALLS_MAX).map(|_| {
        let (channel, taken) = (channel.clone(), taken.clone());
        async move {
            let request = http::Request::post(CREATE_CERTIFICATE)
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(message(&taken))
                .unwrap();
            // A connection that has sent too much by then is closed, which is a refusal as well.
            let answer = channel.oneshot(request).await.ok()?;
            let status = tonic::Status::from_header_map(answer.headers());
            let _ = answer.into_body().collect().await;
            Some(status.expect("a refusal").code())
        }
    });
    let answered = tokio::time::timeout(PATIENCE, futures::future::join_all(calls)).await;
    let codes = answered.expect("each is answered at once");
    let mut codes = codes.iter().flatten();
    assert!(codes.all(|code| *code == Code::Unauthenticated), "{codes:?}");
    let taken = taken.load(Ordering::Relaxed);
    println!("{taken} bytes were sent of {}", CALLS_MAX as usize * MESSAGE_BYTES);
    assert!(taken < 4 << 20, "{taken}");
    fixture.end().await;
}
