//! Requests to one registry, for one repository: HTTP/1.1, a connection for each.
//!
//! What the registry must prove is checked by the caller; here the sizes and times are bounded. The
//! password goes to the registry, or to the address that it names for tokens, and nowhere else:
//! where a request is redirected to another host, it goes without, and no such host can demand a
//! login. Without TLS nobody is asked but this machine.

use std::fs::File;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderValue};
use http::{Request, StatusCode, Uri};
use http_body_util::Empty;
use hyper::body::Bytes;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};

use super::challenge::Challenge;
use super::credentials::Login;
use crate::digest::Digest;
use crate::exchange::{ExchangeError, Head, Sink, USER_AGENT, escaped, exchange, timed};
use crate::layout::HashedFile;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const REDIRECTS_MAX: usize = 5;
/// Of an answer that has a token.
const TOKEN_MAX_BYTES: u64 = 256 << 10;

/// Opens connections, with TLS where it is asked for.
pub trait Connect: Sync {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin;

    /// Connects; with TLS, the other side has proven to be `endpoint.host`.
    fn connect(&self, endpoint: &Endpoint)
    -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// Where to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether the connection has TLS.
    pub is_tls: bool,
}

/// A request that is not answered as it should be.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// No connection.
    #[error("cannot connect to {host}")]
    Connect {
        /// To whom.
        host: String,
        /// Why.
        source: io::Error,
    },
    /// The registry does not let the caller in.
    #[error("{host} refuses access{complaint}; if the image is private, use docker login")]
    Denied {
        /// Who.
        host: String,
        /// What it says, after a colon.
        complaint: String,
    },
    /// A demand that cannot be met.
    #[error("{host} demands a login that is not supported: {demand:?}")]
    Challenge {
        /// Who.
        host: String,
        /// What it demands.
        demand: String,
    },
    /// An answer that names another address, which must not be asked.
    #[error("{host} sends on to {to:?}, {reason}")]
    Redirect {
        /// Who.
        host: String,
        /// The other address.
        to: String,
        /// Why it is not asked.
        reason: &'static str,
    },
    /// An address that is none.
    #[error("{text:?} is not the address of a registry")]
    Address {
        /// As written.
        text: String,
    },
    /// An answer that is too small.
    #[error("{host} sends {found} bytes instead of {expected}")]
    Size {
        /// Who.
        host: String,
        /// As described.
        expected: u64,
        /// As sent.
        found: u64,
    },
    /// The answer of a token service has none.
    #[error("{host} sends no token")]
    Token {
        /// Who.
        host: String,
    },
    /// No answer, or none that can be used.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// What comes cannot be written.
    #[error("cannot write it")]
    Write(#[source] io::Error),
}

/// Asks one registry.
pub(crate) struct Client<'c, C> {
    connect: &'c C,
    /// Scheme, host and port.
    base: String,
    repository: &'c str,
    login: Option<Login>,
    /// Once it is known that it is needed.
    authorization: Option<HeaderValue>,
}

impl<'c, C: Connect> Client<'c, C> {
    pub(crate) fn new(
        connect: &'c C,
        host: &str,
        repository: &'c str,
        login: Option<Login>,
    ) -> Result<Self, HttpError> {
        let wrong = || HttpError::Address { text: host.to_owned() };
        let uri: Uri = format!("http://{host}/").parse().map_err(|_| wrong())?;
        let is_plain = uri.host().is_some_and(is_loopback);
        let base = format!("{}://{host}", if is_plain { "http" } else { "https" });
        Ok(Self { connect, base, repository, login, authorization: None })
    }

    /// A manifest or an index, and its media type.
    pub(crate) async fn manifest(
        &mut self,
        version: &str,
        accepted: &str,
        limit: u64,
    ) -> Result<(String, Vec<u8>), HttpError> {
        let path = format!("manifests/{version}");
        let mut bytes = Vec::new();
        let head = self.of_repository(&path, accepted, limit, &mut bytes).await?;
        let media_type = head.headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok());
        let media_type = media_type.and_then(|it| it.split(';').next()).unwrap_or_default();
        Ok((media_type.trim().to_owned(), bytes))
    }

    /// Content by its digest, of this size; the digest of what came.
    pub(crate) async fn blob(
        &mut self,
        digest: &Digest,
        size: u64,
        file: &mut File,
    ) -> Result<Digest, HttpError> {
        let path = format!("blobs/{digest}");
        let mut sink = HashedFile::new(file);
        self.of_repository(&path, "*/*", size, &mut sink).await?;
        let digest = sink.digest();
        let found = file.metadata().map_err(HttpError::Write)?.len();
        if found != size {
            return Err(HttpError::Size { host: self.base.clone(), expected: size, found });
        }
        Ok(digest)
    }

    /// Asks for part of the repository, and logs in if that is demanded.
    async fn of_repository(
        &mut self,
        path: &str,
        accepted: &str,
        limit: u64,
        sink: &mut impl Sink,
    ) -> Result<Head, HttpError> {
        let url = format!("{}/v2/{}/{path}", self.base, self.repository);
        let uri: Uri = url.parse().map_err(|_| HttpError::Address { text: url })?;
        let authorization = self.authorization.clone();
        let head = self.follow(&uri, accepted, authorization, limit, sink).await?;
        if head.status != StatusCode::UNAUTHORIZED {
            return Ok(head);
        }
        // A token may have ended meanwhile: once more, with another one.
        self.authorization = Some(self.log_in(&head.headers).await?);
        let authorization = self.authorization.clone();
        let head = self.follow(&uri, accepted, authorization, limit, sink).await?;
        if head.status == StatusCode::UNAUTHORIZED {
            let (host, complaint) = (self.base.clone(), String::new());
            return Err(HttpError::Denied { host, complaint });
        }
        Ok(head)
    }

    /// Asks, and asks where the answer says. An answer 401 of the registry is an answer; one of
    /// another host is an error, because no login is for it.
    async fn follow(
        &self,
        first: &Uri,
        accepted: &str,
        mut authorization: Option<HeaderValue>,
        limit: u64,
        sink: &mut impl Sink,
    ) -> Result<Head, HttpError> {
        let (mut uri, mut is_elsewhere) = (first.clone(), false);
        for _ in 0..=REDIRECTS_MAX {
            let head = self.ask(&uri, accepted, authorization.clone(), limit, sink).await?;
            if head.status == StatusCode::UNAUTHORIZED && is_elsewhere {
                let complaint = format!(", where {} sends on to", self.base);
                return Err(HttpError::Denied { host: authority(&uri), complaint });
            }
            if !head.status.is_redirection() {
                return Ok(head);
            }
            uri = redirected(&uri, &head.headers)?;
            if endpoint(&uri)? != endpoint(first)? {
                (is_elsewhere, authorization) = (true, None);
            }
        }
        let (host, to) = (authority(first), without_query(&uri.to_string()));
        Err(HttpError::Redirect { host, to, reason: "and was sent on too often before" })
    }

    /// Meets a registry's demand; the header for the requests that follow.
    async fn log_in(&self, headers: &HeaderMap) -> Result<HeaderValue, HttpError> {
        let host = || self.base.clone();
        let demands = headers.get_all(header::WWW_AUTHENTICATE).iter();
        let demands: Vec<&str> = demands.filter_map(|it| it.to_str().ok()).collect();
        let challenge = demands.iter().find_map(|demand| Challenge::parse(demand));
        let basic = self.login.as_ref().map(|login| sensitive(&login.basic()));
        let basic = basic.transpose()?;
        let (realm, service) = match (challenge, basic.clone()) {
            (Some(Challenge::Bearer { realm, service }), _) => (realm, service),
            (Some(Challenge::Basic), Some(basic)) => return Ok(basic),
            (Some(Challenge::Basic), None) => {
                return Err(HttpError::Denied { host: host(), complaint: String::new() });
            }
            (None, _) => {
                return Err(HttpError::Challenge { host: host(), demand: demands.join(", ") });
            }
        };
        let uri = token_address(&realm, service.as_deref(), self.repository)?;
        if let Some(reason) = forbidden_realm(&self.base, &endpoint(&uri)?) {
            return Err(HttpError::Redirect { host: host(), to: without_query(&realm), reason });
        }
        let mut bytes = Vec::new();
        let head = self.ask(&uri, "application/json", basic, TOKEN_MAX_BYTES, &mut bytes).await?;
        if head.status == StatusCode::UNAUTHORIZED {
            return Err(HttpError::Denied { host: authority(&uri), complaint: String::new() });
        }
        let answer: TokenAnswer = serde_json::from_slice(&bytes).unwrap_or_default();
        let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| HttpError::Token { host: authority(&uri) })?;
        sensitive(&format!("Bearer {token}"))
    }

    /// One request. The body of a success goes to the sink.
    async fn ask(
        &self,
        uri: &Uri,
        accepted: &str,
        authorization: Option<HeaderValue>,
        limit: u64,
        sink: &mut impl Sink,
    ) -> Result<Head, HttpError> {
        let endpoint = endpoint(uri)?;
        let host = authority(uri);
        let connected = timed(&host, CONNECT_TIMEOUT, self.connect.connect(&endpoint)).await?;
        let stream =
            connected.map_err(|source| HttpError::Connect { host: host.clone(), source })?;
        let mut request = Request::get(path(uri))
            .header(header::HOST, &host)
            .header(header::USER_AGENT, USER_AGENT)
            .header(header::ACCEPT, accepted)
            .header(header::CONNECTION, "close");
        if let Some(authorization) = authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::<Bytes>::new());
        let request =
            request.map_err(|_| HttpError::Address { text: without_query(&uri.to_string()) })?;
        match exchange(stream, &host, request, limit, sink).await {
            Err(ExchangeError::Status { host, status: StatusCode::FORBIDDEN, complaint }) => {
                Err(HttpError::Denied { host, complaint })
            }
            other => Ok(other?),
        }
    }
}

#[derive(Default, Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

fn sensitive(text: &str) -> Result<HeaderValue, HttpError> {
    let value = HeaderValue::try_from(text);
    // The text itself is a secret.
    let mut value = value.map_err(|_| HttpError::Token { host: "the login".to_owned() })?;
    value.set_sensitive(true);
    Ok(value)
}

fn authority(uri: &Uri) -> String {
    uri.authority().map(ToString::to_string).unwrap_or_default()
}

fn path(uri: &Uri) -> &str {
    uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str)
}

/// Who has an address; one with a name and password in it is refused.
fn endpoint(uri: &Uri) -> Result<Endpoint, HttpError> {
    let wrong = || HttpError::Address { text: without_query(&uri.to_string()) };
    let is_tls = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err(wrong()),
    };
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
    if authority(uri).contains('@') {
        return Err(wrong());
    }
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
    Ok(Endpoint { host, port, is_tls })
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Why the password must not go where a registry has its token service, if so.
fn forbidden_realm(base: &str, to: &Endpoint) -> Option<&'static str> {
    let (is_here, was_here) = (is_loopback(&to.host), base.starts_with("http:"));
    match (to.is_tls, is_here, was_here) {
        (false, _, false) | (false, false, true) => {
            Some("which has no TLS: a password must not go there")
        }
        (true, true, false) => Some("which is this machine"),
        _ => None,
    }
}

/// An address as it may be shown: what follows the path may be as good as a password.
fn without_query(address: &str) -> String {
    address.split(['?', '#']).next().unwrap_or_default().to_owned()
}

/// Where an answer sends on to. It never leads to plain text, except from this machine to itself,
/// nor from elsewhere to this machine.
fn redirected(from: &Uri, headers: &HeaderMap) -> Result<Uri, HttpError> {
    let location = headers.get(header::LOCATION).and_then(|it| it.to_str().ok());
    let location = location.unwrap_or_default();
    let refused = |reason| {
        let (host, to) = (authority(from), without_query(location));
        HttpError::Redirect { host, to, reason }
    };
    let scheme = from.scheme_str().unwrap_or_default();
    let is_path = location.starts_with('/') && !location.starts_with("//");
    let whole = match is_path {
        true => format!("{scheme}://{}{location}", authority(from)),
        false => location.to_owned(),
    };
    let uri: Uri = whole.parse().map_err(|_| refused("which is no address"))?;
    let to = endpoint(&uri).map_err(|_| refused("which is no address"))?;
    if !to.is_tls && (scheme == "https" || !is_loopback(&to.host)) {
        return Err(refused("which has no TLS"));
    }
    if is_loopback(&to.host) && !from.host().is_some_and(is_loopback) {
        return Err(refused("which is this machine"));
    }
    Ok(uri)
}

/// Where a token for reading one repository comes from. The scope is not the one that the registry
/// asks for: it could ask for more.
fn token_address(realm: &str, service: Option<&str>, repository: &str) -> Result<Uri, HttpError> {
    let separator = if realm.contains('?') { '&' } else { '?' };
    let scope = escaped(&format!("repository:{repository}:pull"));
    let service = service.map(|service| format!("service={}&", escaped(service)));
    let text = format!("{realm}{separator}{}scope={scope}", service.unwrap_or_default());
    let wrong = || HttpError::Address { text: without_query(realm) };
    let uri: Uri = text.parse().map_err(|_| wrong())?;
    endpoint(&uri).map(|_| uri.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_looked_at() {
        let check = |from: &str, to: &str, expected: Result<&str, &str>| {
            let headers = HeaderMap::from_iter([(header::LOCATION, to.parse().unwrap())]);
            match (redirected(&from.parse().unwrap(), &headers), expected) {
                (Ok(uri), Ok(expected)) => assert_eq!(uri.to_string(), expected),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (found, expected) => panic!("{found:?}, not {expected:?}"),
            }
        };
        check("https://a.b/x", "https://c.d/y?z=1", Ok("https://c.d/y?z=1"));
        check("https://a.b:444/x", "/y", Ok("https://a.b:444/y"));
        check("https://a.b/x", "http://a.b/y", Err("no TLS"));
        check("https://a.b/x", "//c.d/y", Err("no address"));
        check("https://a.b/x", "file:///etc/passwd", Err("no address"));
        check("https://a.b/x", "https://u:p@c.d/", Err("no address"));
        check("https://a.b/x", "", Err("no address"));
        check("https://a.b/x", "https://[::1]/", Err("this machine"));
        check("http://127.0.0.1:5/x", "http://127.0.0.2/y", Ok("http://127.0.0.2/y"));
        check("http://127.0.0.1:5/x", "http://c.d/y", Err("no TLS"));
        check("http://localhost/x", "https://c.d/y", Ok("https://c.d/y"));
        check("https://a.b/x", "http://c.d/y?signature=s", Err("\"http://c.d/y\","));
    }

    #[test]
    fn passwords_never_go_in_clear_to_another_machine() {
        let check = |base: &str, realm: &str, expected: Option<&str>| {
            let to = endpoint(&realm.parse().unwrap()).unwrap();
            let found = forbidden_realm(base, &to);
            assert_eq!(found.is_some(), expected.is_some(), "{base} {realm}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()), "{found:?}");
        };
        check("https://a.b", "https://c.d/t", None);
        check("https://a.b", "http://a.b/t", Some("no TLS"));
        check("https://a.b", "http://127.0.0.1/t", Some("no TLS"));
        check("https://a.b", "https://127.0.0.1/t", Some("this machine"));
        check("http://localhost:5", "http://[::1]:6/t", None);
        check("http://localhost:5", "https://c.d/t", None);
        check("http://localhost:5", "http://c.d/t", Some("no TLS"));
    }

    #[test]
    fn tokens_are_for_reading_one_repository() {
        let uri = token_address("https://a.b/t", Some("s s"), "x/y").unwrap();
        assert_eq!(uri, "https://a.b/t?service=s%20s&scope=repository:x/y:pull");
        let uri = token_address("https://a.b/t?k=v", None, "x").unwrap();
        assert_eq!(uri, "https://a.b/t?k=v&scope=repository:x:pull");
        for realm in ["", "a b", "ftp://x/", "https://u@x/"] {
            assert!(token_address(realm, None, "x").is_err(), "{realm}");
        }
    }
}
