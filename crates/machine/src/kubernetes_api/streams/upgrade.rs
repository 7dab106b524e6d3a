//! How a request for a stream becomes one: by a WebSocket (RFC 6455), or by SPDY/3.1 as older
//! clients do. The client offers protocols, and its first that is known here is spoken.

use ambit_kubeapi::Status;
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::kubernetes_api::body::Body;

/// What a SPDY client calls its protocols.
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const WEB_SOCKET: &str = "websocket";
const SPDY: &str = "SPDY/3.1";
/// The version of WebSocket that is spoken.
const WEB_SOCKET_VERSION: &str = "13";

/// What the connection becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Upgrade {
    /// Messages.
    WebSocket {
        /// The answer to the client's key.
        accept: String,
        /// What the messages are.
        protocol: &'static str,
    },
    /// SPDY's frames.
    Spdy {
        /// What its streams are.
        protocol: &'static str,
    },
}

impl Upgrade {
    /// Reads what a client wants, of these protocols.
    pub(super) fn of(
        method: &Method,
        headers: &HeaderMap,
        web_socket: &[&'static str],
        spdy: &[&'static str],
    ) -> Result<Self, Status> {
        let wanted = |name: &str| {
            tokens(headers, &CONNECTION).any(|it| it.eq_ignore_ascii_case("upgrade"))
                && tokens(headers, &UPGRADE).any(|it| it.eq_ignore_ascii_case(name))
        };
        if wanted(WEB_SOCKET) {
            let accept = accept(method, headers)?;
            let protocol = agreed(headers, &SEC_WEBSOCKET_PROTOCOL, web_socket)?;
            Ok(Self::WebSocket { accept, protocol })
        } else if wanted(SPDY) {
            Ok(Self::Spdy { protocol: agreed(headers, &STREAM_PROTOCOL, spdy)? })
        } else {
            let why = "this part of a pod is a stream: ask for it with the headers Connection: \
                       Upgrade and Upgrade: websocket";
            Err(Status::bad_request(why))
        }
    }

    /// Whether the connection carries messages.
    pub(super) fn is_web_socket(&self) -> bool {
        matches!(self, Self::WebSocket { .. })
    }

    /// The answer after which the connection is what it becomes.
    pub(super) fn response(&self) -> Response<Body> {
        let mut response = Response::new(Empty::new().boxed_unsync());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        match self {
            Self::WebSocket { accept, protocol } => {
                let accept = HeaderValue::try_from(accept).expect("base64 is a header's value");
                headers.insert(UPGRADE, HeaderValue::from_static(WEB_SOCKET));
                headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
                headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
            }
            Self::Spdy { protocol } => {
                headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
                headers.insert(STREAM_PROTOCOL, HeaderValue::from_static(protocol));
            }
        }
        response
    }
}

/// The answer to a WebSocket's key.
fn accept(method: &Method, headers: &HeaderMap) -> Result<String, Status> {
    let wrong = |why: &str| Err(Status::bad_request(format!("the WebSocket: {why}")));
    if method != Method::GET {
        return wrong("its method is not GET");
    }
    let mut versions = tokens(headers, &SEC_WEBSOCKET_VERSION);
    if versions.next() != Some(WEB_SOCKET_VERSION) {
        return wrong("its version is not 13");
    }
    let mut keys = headers.get_all(SEC_WEBSOCKET_KEY).iter();
    match (keys.next(), keys.next()) {
        (Some(key), None) => Ok(derive_accept_key(key.as_bytes())),
        _ => wrong("it has not one key"),
    }
}

/// The client's first protocol that is known.
fn agreed(
    headers: &HeaderMap,
    name: &HeaderName,
    known: &[&'static str],
) -> Result<&'static str, Status> {
    let offered: Vec<&str> = tokens(headers, name).collect();
    let found = offered.iter().find_map(|it| known.iter().find(|known| *known == it));
    found.copied().ok_or_else(|| {
        let message = format!(
            "no protocol is known to both: the client offers [{}], the server [{}]",
            offered.join(", "),
            known.join(", ")
        );
        Status::bad_request(message)
    })
}

/// The words of a header that is a list.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter().filter_map(|it| it.to_str().ok());
    values.flat_map(|it| it.split(',')).map(str::trim).filter(|it| !it.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: (&str, &str) = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");

    fn read(method: &Method, pairs: &[(&'static str, &'static str)]) -> Result<Upgrade, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let read = Upgrade::of(method, &headers, &["v5", "v4"], &["v4"]);
        read.map_err(|it| it.to_json()["message"].to_string())
    }

    #[test]
    fn clients_choose_a_protocol() {
        let connection = ("connection", "keep-alive, Upgrade");
        let web = [
            connection,
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-protocol", "v6, v4"),
            ("sec-websocket-protocol", "v5"),
            KEY,
        ];
        // The example of RFC 6455, section 1.3.
        let accept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_owned();
        let upgrade = Upgrade::WebSocket { accept: accept.clone(), protocol: "v4" };
        assert_eq!(read(&Method::GET, &web), Ok(upgrade.clone()));
        let response = upgrade.response();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(response.headers()[SEC_WEBSOCKET_ACCEPT], accept.as_str());
        assert_eq!(response.headers()[SEC_WEBSOCKET_PROTOCOL], "v4");
        let old = [
            connection,
            ("upgrade", "SPDY/3.1"),
            ("x-stream-protocol-version", "v5"),
            ("x-stream-protocol-version", "v4"),
        ];
        let upgrade = read(&Method::POST, &old).expect("an upgrade");
        assert_eq!(upgrade, Upgrade::Spdy { protocol: "v4" });
        assert_eq!(upgrade.response().headers()[UPGRADE], "SPDY/3.1");
    }

    #[test]
    fn what_is_not_agreed_is_refused() {
        let (connection, upgrade) = (("connection", "upgrade"), ("upgrade", "websocket"));
        let (version, protocol) =
            (("sec-websocket-version", "13"), ("sec-websocket-protocol", "v5"));
        let check = |method: &Method, headers: &[(&'static str, &'static str)], part: &str| {
            let error = read(method, headers).expect_err(part);
            assert!(error.contains(part), "{error}");
        };
        check(&Method::GET, &[], "is a stream");
        check(&Method::GET, &[upgrade, version, protocol, KEY], "is a stream");
        check(&Method::GET, &[connection, ("upgrade", "h2c")], "is a stream");
        check(&Method::POST, &[connection, upgrade, version, protocol, KEY], "not GET");
        check(&Method::GET, &[connection, upgrade, protocol, KEY], "version is not 13");
        check(&Method::GET, &[connection, upgrade, version, protocol], "not one key");
        check(&Method::GET, &[connection, upgrade, version, protocol, KEY, KEY], "not one key");
        check(&Method::GET, &[connection, upgrade, version, KEY], "the client offers []");
        let spdy = [connection, ("upgrade", "SPDY/3.1"), ("x-stream-protocol-version", "v1")];
        check(&Method::POST, &spdy, "the client offers [v1], the server [v4]");
    }
}
