//! The question of a gRPC probe: `Check` of `grpc.health.v1.Health`, without TLS, as the kubelet
//! asks it.

use std::net::SocketAddr;

use ambit_words::names::GRPC_HEALTH_CHECK;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use hyper::body::Bytes;
use tokio::net::TcpStream;

use super::http2;

/// Whose question it is.
const AGENT: &str = "kube-probe/1.36";
/// More than any answer has.
const ANSWER_SIZE_MAX_BYTES: usize = 1 << 10;
/// What comes before a message: whether it is compressed, and its length.
const PREFIX_SIZE_BYTES: usize = 5;
/// The first field of a message, as text and as a number.
const TEXT: u8 = 0x0a;
const NUMBER: u8 = 0x08;
/// Codes of gRPC.
const OK: &str = "0";
const UNIMPLEMENTED: &str = "12";

/// Asks for the health of a service, which may have no name; the error says what is wrong.
pub(super) async fn check(
    stream: TcpStream,
    address: SocketAddr,
    service: &str,
) -> Result<(), String> {
    let failed = |error: h2::Error| format!("gRPC to {address}: {error}");
    let asked = http2::ask(stream, |requests| exchange(requests, address, service)).await;
    asked.map_err(failed)?
}

/// What one answer says.
async fn exchange(
    requests: SendRequest<Bytes>,
    address: SocketAddr,
    service: &str,
) -> Result<Result<(), String>, h2::Error> {
    let mut requests = requests.ready().await?;
    let request = Request::post(format!("http://{address}{GRPC_HEALTH_CHECK}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", AGENT)
        .body(());
    let request = request.expect("all its parts are fixed, but for an address");
    let (response, mut body): (_, SendStream<Bytes>) = requests.send_request(request, false)?;
    body.send_data(question(service), true)?;
    let (head, mut answer) = response.await?.into_parts();
    let message = message(&mut answer).await?;
    let trailers = answer.trailers().await?;
    if head.status != 200 {
        return Ok(Err(format!("gRPC probe failed with HTTP status {}", head.status.as_u16())));
    }
    Ok(judge(trailers.as_ref().unwrap_or(&head.headers), &message))
}

/// The beginning of an answer's body.
async fn message(answer: &mut RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut message = Vec::new();
    while let Some(bytes) = answer.data().await {
        let bytes = bytes?;
        answer.flow_control().release_capacity(bytes.len())?;
        let room = ANSWER_SIZE_MAX_BYTES - message.len();
        message.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if message.len() == ANSWER_SIZE_MAX_BYTES {
            break;
        }
    }
    Ok(message)
}

/// A HealthCheckRequest, in a frame of gRPC.
fn question(service: &str) -> Bytes {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(TEXT);
        let mut length = service.len();
        while length >= 0x80 {
            message.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        message.push(length as u8);
        message.extend_from_slice(service.as_bytes());
    }
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), &message].concat().into()
}

/// Whether the service serves: by the kubelet's rules, and mostly in its words.
fn judge(trailers: &HeaderMap, answer: &[u8]) -> Result<(), String> {
    let text = |name| trailers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match text("grpc-status") {
        OK => {}
        UNIMPLEMENTED => {
            let what = "this server does not implement the grpc health protocol";
            return Err(format!("{what} (grpc.health.v1.Health): {}", text("grpc-message")));
        }
        code => {
            let message = text("grpc-message");
            return Err(format!("gRPC probe failed with code {code:?}: {message}"));
        }
    }
    let message = answer.get(PREFIX_SIZE_BYTES..).unwrap_or_default();
    let status = match message {
        [NUMBER, 1, ..] => return Ok(()),
        [] | [NUMBER, 0, ..] => "UNKNOWN",
        [NUMBER, 2, ..] => "NOT_SERVING",
        [NUMBER, 3, ..] => "SERVICE_UNKNOWN",
        _ => return Err("the answer is no HealthCheckResponse".to_owned()),
    };
    Err(format!("service unhealthy (responded with \"{status}\")"))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn trailers(code: &str) -> HeaderMap {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", code.parse().unwrap());
        trailers.insert("grpc-message", "why".parse().unwrap());
        trailers
    }

    #[test]
    fn only_a_service_that_serves_is_well() {
        let judge = |code: &str, message: &[u8]| {
            let answer = [&[0, 0, 0, 0, message.len() as u8], message].concat();
            judge(&trailers(code), &answer).err().unwrap_or_default()
        };
        assert_eq!(judge("0", &[NUMBER, 1]), "");
        for (message, expected) in [
            (&[][..], "responded with \"UNKNOWN\""),
            (&[NUMBER, 2], "responded with \"NOT_SERVING\""),
            (&[NUMBER, 3], "responded with \"SERVICE_UNKNOWN\""),
            (&[9, 9], "no HealthCheckResponse"),
            (&[NUMBER], "no HealthCheckResponse"),
        ] {
            assert!(judge("0", message).contains(expected), "{message:?}");
        }
        assert!(judge("12", &[]).contains("does not implement the grpc health protocol"));
        assert_eq!(judge("5", &[]), "gRPC probe failed with code \"5\": why");
        assert!(super::judge(&HeaderMap::new(), &[]).is_err(), "no status is no success");
    }

    #[test]
    fn a_service_is_named_in_the_question() {
        assert_eq!(question(""), [0, 0, 0, 0, 0].as_slice());
        assert_eq!(question("ab"), [0, 0, 0, 0, 4, TEXT, 2, b'a', b'b'].as_slice());
        let long = question(&"a".repeat(300));
        assert_eq!(long[..8], [0, 0, 0, 1, 0x2f, TEXT, 0xac, 0x02]);
    }

    /// A server that answers once, and what a probe makes of that.
    async fn asked(answer: &'static [u8]) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(stream).await.unwrap();
            let (request, mut respond) = connection.accept().await.unwrap().unwrap();
            assert_eq!(request.uri().path(), GRPC_HEALTH_CHECK);
            let response = http::Response::new(());
            let mut body = respond.send_response(response, false).unwrap();
            body.send_data(answer.into(), false).unwrap();
            body.send_trailers(trailers("0")).unwrap();
            while connection.accept().await.is_some() {}
        });
        let stream = TcpStream::connect(address).await.unwrap();
        let answer = check(stream, address, "shop").await;
        server.abort();
        answer
    }

    #[tokio::test]
    async fn a_server_is_asked_over_its_own_protocol() {
        assert_eq!(asked(&[0, 0, 0, 0, 2, NUMBER, 1]).await, Ok(()));
        let said = asked(&[0, 0, 0, 0, 2, NUMBER, 2]).await.unwrap_err();
        assert!(said.contains("NOT_SERVING"), "{said}");
    }
}
