//! Fetches of an issuer on loopback.

use super::*;
use crate::jwks::testing::{CANONICAL, Issuer, KEYS, authority, response};
use crate::metrics::Metrics;
use crate::view_builder::{Mesh, Vips};
use crate::world::World;

const PATIENCE: Duration = Duration::from_secs(5);

fn fetcher(allowed: Allowed) -> Arc<Fetcher> {
    let world = World::new(
        Mesh::sample(),
        Vips::default(),
        "/nonexistent".into(),
        Arc::new(Metrics::new()),
    );
    let places = Places { world: Arc::new(world), asks_endpoints: false };
    let tls = WebConnector::new(None, None).expect("roots");
    let directory = tempfile::tempdir().expect("a directory");
    let mesh = MeshClient::new(authority(directory.path()), "cluster.local", "istio-system");
    Arc::new(Fetcher { allowed, tls, places, mesh })
}

fn loopback() -> Allowed {
    let networks = vec!["127.0.0.0/8".parse().expect("a network")];
    Allowed { networks, ..Allowed::default() }
}

async fn keys(allowed: Allowed, source: KeySource) -> Result<String, String> {
    fetcher(allowed).keys(&source, PATIENCE).await.map_err(|error| error.told())
}

fn uri(url: String) -> KeySource {
    KeySource::Uri(url.as_str().into())
}

#[tokio::test]
async fn keys_are_fetched_from_their_uri_or_where_the_issuer_says() {
    let issuer = Issuer::start().await;
    issuer.answer("/keys?a=b", response("200 OK", KEYS));
    let document = format!(
        r#"{{"issuer": "{}", "jwks_uri": "{}", "more": 1}}"#,
        issuer.url("/realm"),
        issuer.url("/keys?a=b")
    );
    issuer.answer("/realm/.well-known/openid-configuration", response("200 OK", &document));
    let by_uri = keys(loopback(), uri(issuer.url("/keys?a=b"))).await;
    assert_eq!(by_uri.as_deref(), Ok(CANONICAL));
    let by_issuer = KeySource::Issuer(issuer.url("/realm").as_str().into());
    assert_eq!(keys(loopback(), by_issuer).await.as_deref(), Ok(CANONICAL));
    let asked = issuer.asked.lock().expect("no test panics with it").clone();
    assert_eq!(asked.len(), 3);
    assert!(asked[0].starts_with("GET /keys?a=b HTTP/1.1\r\n"), "{}", asked[0]);
    assert!(asked[0].contains(&format!("host: {}\r\n", issuer.address)), "{}", asked[0]);
    assert!(!asked[0].contains("authorization"));
}

#[tokio::test]
async fn what_is_no_answer_is_told() {
    let issuer = Issuer::start().await;
    let large = format!(r#"{{"keys":[], "a": "{}"}}"#, "a".repeat(MAX_SET_BYTES));
    for (path, answer, expected) in [
        ("/none", response("404 Not Found", "secret"), "answered 404 Not Found"),
        ("/error", response("503 Service Unavailable", "secret"), "answered 503"),
        ("/moved", response("302 Found", ""), "answered 302"),
        ("/round", moved("/round"), "/round redirects more than three times"),
        ("/nowhere", moved("ftp://secret"), "/nowhere redirects to what is no URL"),
        ("/far", moved("http://192.0.2.1/secret"), "192.0.2.1 is asked over TLS alone"),
        ("/link", moved("http://169.254.169.254/secret"), "is on control's own link"),
        ("/away", moved("/none?secret"), "/away, which leads to 127.0.0.1, answered 404"),
        ("/text", response("200 OK", "\"secret\""), "no JSON Web Key Set"),
        ("/empty", response("200 OK", r#"{"keys":[]}"#), "none of the issuer's keys"),
        ("/large", response("200 OK", &large), "at most 262144 bytes are read"),
        ("/bytes", "secret\r\n\r\n".to_owned(), "ask http://"),
        ("/cut", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_owned(), "read the answer"),
    ] {
        issuer.answer(path, answer);
        let error = keys(loopback(), uri(issuer.url(path))).await.expect_err(path);
        assert!(error.contains(expected), "{path}: {error}");
        assert!(!error.contains("secret"), "{path}: {error}");
    }
    for (document, expected) in [
        (r#"{"issuer": "https://other", "jwks_uri": "http://x"}"#, r#"of the issuer "https://oth"#),
        (r#"{"issuer": "https://other"}"#, "no discovery document"),
        ("secret", "no discovery document"),
    ] {
        issuer.answer("/.well-known/openid-configuration", response("200 OK", document));
        let source = KeySource::Issuer(issuer.url("").as_str().into());
        let error = keys(loopback(), source).await.expect_err(document);
        assert!(error.contains(expected), "{document}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

/// A redirect.
fn moved(location: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n")
}

#[tokio::test]
async fn redirects_are_followed_and_judged() {
    let issuer = Issuer::start().await;
    issuer.answer("/keys", response("200 OK", KEYS));
    issuer.answer("/a", moved("/b"));
    issuer.answer("/b", moved(&issuer.url("/keys")));
    assert_eq!(keys(loopback(), uri(issuer.url("/a"))).await.as_deref(), Ok(CANONICAL));
    issuer.answer("/other", moved("https://other.example.com/keys"));
    let only = Allowed { hosts: vec!["127.0.0.1".to_owned()], ..loopback() };
    let error = keys(only, uri(issuer.url("/other"))).await.expect_err("it is not listed");
    assert!(error.contains("--jwks-hosts does not list other.example.com"), "{error}");
}

#[test]
fn a_location_is_a_url_or_a_path() {
    let place = Place::read("https://a:8443/keys?x").expect("a URL");
    for (location, expected) in [
        ("/b?c", Some((true, "a", 8443, "/b?c"))),
        ("http://b/c", Some((false, "b", 80, "/c"))),
        ("//b/c", None),
        ("b", None),
        ("", None),
        ("https://user@b/", None),
    ] {
        let read = place.beside(location);
        let read = read.as_ref().map(|it| (it.is_secure, &*it.host, it.port, &*it.path));
        assert_eq!(read, expected, "{location}");
    }
}

#[tokio::test]
async fn only_what_is_allowed_is_asked() {
    let issuer = Issuer::start().await;
    issuer.answer("/keys", response("200 OK", KEYS));
    let port = issuer.address.port();
    let other = || {
        let networks = vec!["10.0.0.0/8".parse().expect("a network")];
        Allowed { networks, ..Allowed::default() }
    };
    let listed = |host: &str| Allowed { hosts: vec![host.to_owned()], ..loopback() };
    for (allowed, url, expected) in [
        (Allowed::default(), issuer.url("/keys"), "which means control itself"),
        (Allowed::default(), format!("http://localhost:{port}/keys"), "which means control itself"),
        (
            Allowed::default(),
            format!("https://localhost:{port}/keys"),
            "which means control itself",
        ),
        (other(), issuer.url("/keys"), "which means control itself"),
        (Allowed::default(), "http://169.254.169.254/latest".into(), "on control's own link"),
        (Allowed::default(), "http://[::ffff:169.254.169.254]/".into(), "on control's own link"),
        (Allowed::default(), "http://192.0.2.1/keys".into(), "asked over TLS alone"),
        (listed("login.example.com"), issuer.url("/keys"), "--jwks-hosts does not list 127.0.0.1"),
        (loopback(), format!("http://user@127.0.0.1:{port}/keys"), "is no URL"),
        (loopback(), "ftp://127.0.0.1/keys".into(), "is no URL"),
        (loopback(), "127.0.0.1/keys".into(), "is no URL"),
        (loopback(), format!("https://127.0.0.1:{port}/keys"), "TLS with 127.0.0.1"),
    ] {
        let error = keys(allowed, uri(url.clone())).await.expect_err(&url);
        assert!(error.contains(expected), "{url}: {error}");
    }
    assert!(keys(listed("127.0.0.1"), uri(issuer.url("/keys"))).await.is_ok());
}

#[tokio::test]
async fn an_issuer_that_says_nothing_is_not_waited_for() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let source = uri(format!("http://{address}/keys"));
    let limit = Duration::from_millis(50);
    let error = fetcher(loopback()).keys(&source, limit).await.expect_err("nobody answers");
    assert!(error.told().contains("no answer within"), "{}", error.told());
}

#[test]
fn urls() {
    for (url, expected) in [
        ("https://a.example.com/keys", Some((true, "a.example.com", 443, "/keys"))),
        ("https://A.Example.com./keys", Some((true, "a.example.com", 443, "/keys"))),
        ("http://a:8080", Some((false, "a", 8080, "/"))),
        ("https://[2001:db8::1]:8443/a?b", Some((true, "2001:db8::1", 8443, "/a?b"))),
        ("https://a:/keys", None),
        ("https://", None),
        ("/keys", None),
        ("https://a b/", None),
        ("", None),
    ] {
        let place = Place::read(url);
        let read = place.as_ref().map(|it| (it.is_secure, &*it.host, it.port, &*it.path));
        assert_eq!(read, expected, "{url}");
    }
}
