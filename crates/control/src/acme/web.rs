//! Requests to a directory: over TLS alone, one connection each, bounded in time and in size.
//!
//! The library that speaks the protocol brings no client of its own here, so that rustls stays in
//! one crate. A redirect is not followed: a directory says where things are.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use ambit_tls::certificate::CertificateError;
use ambit_tls::web::WebConnector;
use bytes::Bytes;
use http::uri::Scheme;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::exchange::driven;
use crate::jwks::{Allowed, system_roots};

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest answer that is read; a chain has a few KiB.
const ANSWER_MAX_BYTES: usize = 256 << 10;

/// How many addresses of a directory are tried.
const ADDRESSES_MAX: usize = 4;
/// Longest pause that a directory may ask for before control looks again.
const RETRY_AFTER_MAX_S: u64 = 3600;

/// Why a directory does not answer.
#[derive(Debug, thiserror::Error)]
enum WebError {
    #[error("{0} is no https URL")]
    Url(String),
    #[error("cannot connect to {authority}")]
    Connect { authority: String, source: io::Error },
    #[error("TLS with {authority} failed")]
    Tls { authority: String, source: io::Error },
    #[error("HTTP with {authority} failed")]
    Exchange { authority: String, source: hyper::Error },
    #[error("the answer of {authority} cannot be read")]
    Body { authority: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("no answer within {TIMEOUT:?}")]
    Timeout,
}

/// How a directory is reached, and by which roots it is verified.
#[derive(Clone)]
pub struct Way {
    tls: WebConnector,
    allowed: Allowed,
}

impl Way {
    /// Control's, on behalf of whoever writes Gateways: never to control itself, its link or a
    /// cloud's metadata service.
    pub(crate) fn of_control(
        system_roots: Option<&[u8]>,
        further_roots: Option<&str>,
    ) -> Result<Self, CertificateError> {
        let tls = WebConnector::new(system_roots, further_roots)?;
        Ok(Self { tls, allowed: Allowed::default() })
    }

    /// That of a user's own command: wherever the user says.
    ///
    /// # Errors
    /// `further_roots` that hold no certificate.
    pub fn of_user(further_roots: Option<&str>) -> Result<Self, CertificateError> {
        let tls = WebConnector::new(system_roots(None).as_deref(), further_roots)?;
        Ok(Self { tls, allowed: Allowed::all() })
    }
}

/// Asks a directory.
pub(super) struct Web {
    way: Way,
}

impl Web {
    /// Asks in this way.
    pub(super) fn new(way: Way) -> Self {
        Self { way }
    }
}

impl HttpClient for Web {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let way = self.way.clone();
        Box::pin(async move {
            let answer = timeout(TIMEOUT, ask(&way, request)).await;
            match answer.unwrap_or(Err(WebError::Timeout)) {
                Ok(answer) => Ok(BytesResponse::from(answer)),
                Err(error) => Err(Error::Other(Box::new(error))),
            }
        })
    }
}

/// Connects to a directory, at an address that is allowed.
async fn connect(allowed: &Allowed, host: &str, port: u16) -> io::Result<TcpStream> {
    let found = tokio::net::lookup_host((host, port)).await?;
    let mut last = None;
    for address in found.take(ADDRESSES_MAX) {
        let refused = allowed.refuses(address.ip());
        let tried = match refused {
            Some(why) => Err(io::Error::other(format!("its address {why}"))),
            None => TcpStream::connect(address).await,
        };
        match tried {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::other("its name has no address")))
}

async fn ask(
    way: &Way,
    mut request: Request<BodyWrapper<Bytes>>,
) -> Result<Response<Full<Bytes>>, WebError> {
    let uri = request.uri().clone();
    let authority = uri.authority().filter(|_| uri.scheme() == Some(&Scheme::HTTPS));
    let path = uri.path_and_query().map_or("/", |it| it.as_str()).parse::<Uri>();
    let (Some(authority), Ok(path)) = (authority, path) else {
        return Err(WebError::Url(uri.to_string()));
    };
    let Ok(written) = HeaderValue::from_str(authority.as_str()) else {
        return Err(WebError::Url(uri.to_string()));
    };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let named = || authority.to_string();
    let connected = connect(&way.allowed, host, authority.port_u16().unwrap_or(443)).await;
    let stream = connected.map_err(|source| WebError::Connect { authority: named(), source })?;
    let stream = way.tls.connect(host, stream).await;
    let stream = stream.map_err(|source| WebError::Tls { authority: named(), source })?;
    let broken = |source| WebError::Exchange { authority: named(), source };
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(broken)?;
    *request.uri_mut() = path;
    request.headers_mut().insert(header::HOST, written);
    request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    let answer = async {
        let (mut head, body) = sender.send_request(request).await.map_err(broken)?.into_parts();
        let is_sane = |it: &HeaderValue| {
            let seconds = it.to_str().ok().and_then(|it| it.trim().parse::<u64>().ok());
            seconds.is_some_and(|it| it <= RETRY_AFTER_MAX_S)
        };
        if head.headers.get(header::RETRY_AFTER).is_some_and(|it| !is_sane(it)) {
            head.headers.remove(header::RETRY_AFTER);
        }
        let body = Limited::new(body, ANSWER_MAX_BYTES).collect().await;
        let body = body.map_err(|source| WebError::Body { authority: named(), source })?;
        Ok(Response::from_parts(head, Full::new(body.to_bytes())))
    };
    driven(answer, connection, broken).await
}
