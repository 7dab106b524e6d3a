//! One issuer's keys over HTTP: one or two GETs, each with its bounds.
//!
//! A name is resolved once, each of its addresses is judged, and the connection goes to an address
//! that was judged: an answer of DNS that changes in between changes nothing. A redirect is
//! followed a few times and judged like the URL itself; it never leads from TLS to plain text.
//! Nothing is cached, no cookie or credential is sent.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ambit_manifest::policy::KeySource;
use ambit_tls::key_set::{self, MAX_SET_BYTES};
use ambit_tls::web::WebConnector;
use ambit_words::ports::HBONE;
use bytes::{Bytes, BytesMut};
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::allowed::Allowed;
use super::error::FetchError;
use super::places::{Places, Way};
use super::tunnel::MeshClient;
use crate::exchange::driven;

/// Longest discovery document. Those of large issuers have 2 KiB.
const DISCOVERY_MAX_BYTES: usize = 64 << 10;
/// How much of another issuer's name is told.
const ISSUER_SHOWN_CHARS: usize = 100;
/// Addresses of a name that are tried.
const ADDRESSES_MAX: usize = 3;
/// Redirects that are followed.
const REDIRECTS_MAX: usize = 3;
/// How long one of them may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// What issuers are asked with.
pub(super) struct Fetcher {
    pub(super) allowed: Allowed,
    pub(super) tls: WebConnector,
    pub(super) places: Places,
    pub(super) mesh: MeshClient,
}

/// What a request is sent over.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

impl Fetcher {
    /// The keys of `source` in their canonical form, within `limit`.
    pub(super) async fn keys(
        self: Arc<Self>,
        source: &KeySource,
        limit: Duration,
    ) -> Result<String, FetchError> {
        let fetched = timeout(limit, self.unbounded(source)).await;
        fetched.unwrap_or(Err(FetchError::Timeout(limit)))
    }

    async fn unbounded(&self, source: &KeySource) -> Result<String, FetchError> {
        let url = match source {
            KeySource::Uri(uri) => uri.to_string(),
            KeySource::Issuer(issuer) => self.discovered(issuer, source.url()).await?,
        };
        let body = self.get(&url, MAX_SET_BYTES).await?;
        let text = String::from_utf8_lossy(&body);
        // Without what the parser has read: the answer may be another's secret.
        key_set::canonical(&text).map_err(|error| FetchError::Keys { url, what: error.to_string() })
    }

    /// Where an issuer says that its keys are. It must be its own document: another issuer's would
    /// lead to other keys.
    async fn discovered(&self, issuer: &str, url: String) -> Result<String, FetchError> {
        let body = self.get(&url, DISCOVERY_MAX_BYTES).await?;
        let document: Discovery =
            serde_json::from_slice(&body).map_err(|_| FetchError::Discovery(url))?;
        if document.issuer != issuer {
            let wanted = issuer.to_owned();
            let got = document.issuer.chars().take(ISSUER_SHOWN_CHARS).collect();
            return Err(FetchError::OtherIssuer { wanted, got });
        }
        Ok(document.jwks_uri)
    }

    /// What a URL leads to. Status tells the URL as it was written, and of where it leads the host
    /// alone: the rest is an answer's.
    async fn get(&self, url: &str, most: usize) -> Result<Bytes, FetchError> {
        let mut place = Place::read(url).ok_or_else(|| FetchError::Url(url.to_owned()))?;
        let mut told = url.to_owned();
        for _ in 0..=REDIRECTS_MAX {
            let location = match self.one_answer(&place, &told, most).await? {
                Reply::Body(body) => return Ok(body),
                Reply::Moved(location) => location,
            };
            let next = place.beside(&location).ok_or_else(|| FetchError::Moved(told))?;
            if place.is_secure && !next.is_secure {
                return Err(FetchError::Downgrade(url.to_owned()));
            }
            told = format!("{url}, which leads to {},", next.host);
            place = next;
        }
        Err(FetchError::Redirects(url.to_owned()))
    }

    async fn one_answer(
        &self,
        place: &Place,
        told: &str,
        most: usize,
    ) -> Result<Reply, FetchError> {
        if !self.allowed.host(&place.host) {
            return Err(FetchError::Host(place.host.clone()));
        }
        let stream = self.connect(place).await?;
        if !place.is_secure {
            return ask(stream, told, place, most).await;
        }
        let stream = self.tls.connect(&place.host, stream).await;
        let stream =
            stream.map_err(|source| FetchError::Tls { host: place.host.clone(), source })?;
        ask(stream, told, place, most).await
    }

    async fn connect(&self, place: &Place) -> Result<Box<dyn Stream>, FetchError> {
        let found = self.places.find(&place.host, place.port).await?;
        let mut failed = None;
        for way in found.ways.into_iter().take(ADDRESSES_MAX) {
            let ip = way.address.ip();
            if let Some(why) = self.allowed.refuses(ip) {
                let host = place.host.clone();
                failed = Some(FetchError::Address { host, address: ip, why });
                continue;
            }
            if !place.is_secure && !found.is_of_mesh && !self.allowed.is_listed(ip) {
                failed = Some(FetchError::Plain(place.host.clone()));
                continue;
            }
            match self.go(&way).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| FetchError::Nowhere(place.host.clone())))
    }

    async fn go(&self, way: &Way) -> Result<Box<dyn Stream>, FetchError> {
        let address = match way.through {
            Some(_) => SocketAddr::new(way.address.ip(), HBONE),
            None => way.address,
        };
        let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let stream = connected.map_err(|source| FetchError::Connect { address, source })?;
        Ok(match &way.through {
            Some(identity) => Box::new(self.mesh.open(stream, identity, way.address).await?),
            None => Box::new(stream),
        })
    }
}

/// What a server answers.
enum Reply {
    Body(Bytes),
    /// Where it says that the answer is.
    Moved(String),
}

/// What a URL names.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    is_secure: bool,
    /// In lower case, without brackets.
    host: String,
    port: u16,
    /// Host and port as the server is asked for them.
    authority: String,
    path: String,
}

impl Place {
    /// Reads a URL; `None` for another scheme, a user, or what is none.
    fn read(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let is_secure = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority()?;
        if authority.as_str().contains('@') {
            return None;
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        // One dot at the end is the root of DNS; certificates and lists do not write it.
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        if host.is_empty() {
            return None;
        }
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            None if authority.as_str().ends_with(':') => return None,
            None if is_secure => 443,
            None => 80,
        };
        let path = uri.path_and_query().map_or("/", |it| it.as_str()).to_owned();
        Some(Self { is_secure, host, port, authority: authority.to_string(), path })
    }

    /// What `Location` of its answer names: a URL, or a path on the same server.
    fn beside(&self, location: &str) -> Option<Self> {
        if !location.starts_with('/') || location.starts_with("//") {
            return Self::read(location);
        }
        let scheme = if self.is_secure { "https" } else { "http" };
        Self::read(&format!("{scheme}://{}{location}", self.authority))
    }
}

async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    url: &str,
    place: &Place,
    most: usize,
) -> Result<Reply, FetchError> {
    let broken = |error| FetchError::Exchange(url.to_owned(), error);
    let mut builder = hyper::client::conn::http1::Builder::new();
    let handshake = builder.max_headers(100).handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(broken)?;
    let request = Request::get(&place.path)
        .header(header::HOST, &place.authority)
        .header(header::ACCEPT, "application/json")
        .header(header::USER_AGENT, concat!("ambit/", env!("CARGO_PKG_VERSION")))
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new());
    let request = request.map_err(|_| FetchError::Url(url.to_owned()))?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let location = response.headers().get(header::LOCATION).and_then(|it| it.to_str().ok());
        if let (301 | 302 | 303 | 307 | 308, Some(location)) = (status.as_u16(), location) {
            return Ok(Reply::Moved(location.to_owned()));
        }
        if status != StatusCode::OK {
            return Err(FetchError::Status { url: url.to_owned(), status });
        }
        let mut body = Limited::new(response.into_body(), most);
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|source| FetchError::Body { url: url.to_owned(), most, source })?;
            if let Ok(data) = frame.into_data() {
                whole.extend_from_slice(&data);
            }
        }
        Ok(Reply::Body(whole.freeze()))
    };
    driven(answer, connection, broken).await
}

#[cfg(test)]
mod tests;
