//! One question by HTTP/2: of a gRPC probe, or of one by HTTPS whose container prefers HTTP/2.

use std::future::Future;

use h2::client::{Builder, SendRequest};
use http::{Request, Uri};
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

const HEADERS_SIZE_MAX_BYTES: u32 = 16 << 10;
/// Headers of one connection of HTTP/1.1, which HTTP/2 does not have (RFC 9113, section 8.2.2).
const OF_CONNECTIONS: [&str; 7] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Asks on a connection, and ends it.
pub(super) async fn ask<IO, T, F>(
    stream: IO,
    exchange: impl FnOnce(SendRequest<Bytes>) -> F,
) -> Result<T, h2::Error>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Result<T, h2::Error>>,
{
    let mut builder = Builder::new();
    builder.max_header_list_size(HEADERS_SIZE_MAX_BYTES).enable_push(false);
    let (requests, connection) = builder.handshake(stream).await?;
    let exchange = exchange(requests);
    tokio::pin!(exchange);
    tokio::select! {
        // The answer may be there when the connection ends.
        biased;
        answer = &mut exchange => answer,
        ended = connection => match ended {
            Ok(()) => exchange.await,
            Err(error) => Err(error),
        },
    }
}

/// The status of the answer to a request with these headers.
pub(super) async fn status<IO>(
    stream: IO,
    path: &str,
    headers: &[(&str, &str)],
) -> Result<u16, String>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let request = request(path, headers)?;
    let exchange = async |requests: SendRequest<Bytes>| {
        let mut requests = requests.ready().await?;
        let (response, _) = requests.send_request(request, true)?;
        Ok(response.await?.status().as_u16())
    };
    ask(stream, exchange).await.map_err(|error| error.to_string())
}

fn request(path: &str, headers: &[(&str, &str)]) -> Result<Request<()>, String> {
    let is = |name: &str, other: &str| name.eq_ignore_ascii_case(other);
    let host = headers.iter().find(|(name, _)| is(name, "host"));
    let host = host.map(|(_, host)| *host).unwrap_or_default();
    let uri = Uri::builder().scheme("https").authority(host).path_and_query(path).build();
    let failed = |error: http::Error| format!("{path:?} of {host:?} cannot be asked for: {error}");
    let mut request = Request::get(uri.map_err(failed)?);
    for (name, value) in headers {
        if !is(name, "host") && !OF_CONNECTIONS.iter().any(|it| is(name, it)) {
            request = request.header(*name, *value);
        }
    }
    request.body(()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use http::Method;
    use tokio::io::duplex;

    use super::*;

    #[test]
    fn a_request_of_http2_has_no_headers_of_its_connection() {
        let headers = [("Host", "web:8443"), ("Connection", "close"), ("X-A", "1"), ("x-a", "2")];
        let request = request("/a?b", &headers).unwrap();
        assert_eq!(request.uri().to_string(), "https://web:8443/a?b");
        let sent: Vec<_> = request.headers().iter().map(|(name, it)| (name.as_str(), it)).collect();
        assert_eq!(sent, [("x-a", &"1".parse().unwrap()), ("x-a", &"2".parse().unwrap())]);
        let nowhere = super::request("/", &[("Host", "a b")]).unwrap_err();
        assert!(nowhere.contains("cannot be asked for"), "{nowhere}");
    }

    #[tokio::test]
    async fn the_status_of_an_answer_is_enough() {
        let (near, far) = duplex(64 << 10);
        let server = tokio::spawn(async move {
            let mut connection = h2::server::handshake(far).await.unwrap();
            let (request, mut respond) = connection.accept().await.unwrap().unwrap();
            assert_eq!(request.method(), Method::GET);
            let response = http::Response::builder().status(503).body(()).unwrap();
            // Its body never ends.
            let _body = respond.send_response(response, false).unwrap();
            while connection.accept().await.is_some() {}
        });
        assert_eq!(status(near, "/", &[("Host", "10.0.0.1:443")]).await, Ok(503));
        server.abort();
    }
}
