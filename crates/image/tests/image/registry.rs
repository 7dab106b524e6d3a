//! Images from a registry: one small server plays all hosts, and a connector without TLS leads
//! every name to it.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ambit_image::registry::{Connect, Credentials, Endpoint, pull};
use ambit_image::{Digest, FetchOptions, Limits, Reference, Store};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

use crate::build::{INDEX, Layer, MANIFEST, Parts, Place, blob, tree, whole};

type Files = Vec<(String, Vec<u8>)>;

/// One request as the server saw it.
#[derive(Clone, Debug)]
struct Seen {
    host: String,
    path: String,
    authorization: String,
}

/// What the server says.
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

fn answer(status: u16, headers: &[(&'static str, &str)], body: &[u8]) -> Answer {
    let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Answer { status, headers, body: body.to_vec() }
}

/// Leads every name to the server.
struct ToServer(u16);

impl Connect for ToServer {
    type Stream = TcpStream;

    async fn connect(&self, endpoint: &Endpoint) -> io::Result<TcpStream> {
        let is_loopback = endpoint.host == "127.0.0.1";
        assert_eq!(endpoint.is_tls, !is_loopback, "{endpoint:?}");
        if endpoint.host == "down.test" {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        TcpStream::connect(("127.0.0.1", self.0)).await
    }
}

/// The tree of an image, or the error.
type Fetched = Result<Vec<String>, String>;

/// Fetches and imports an image from a server with these answers; what the server saw.
fn fetch(
    name: &str,
    credentials: &str,
    limits: Limits,
    answers: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
) -> (Fetched, Vec<Seen>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let server = tokio::spawn(serve(listener, seen.clone(), Arc::new(answers)));
        let place = Place::new();
        let file = place.path("config.json");
        std::fs::write(&file, credentials).unwrap();
        let credentials = Credentials::read(&file).unwrap();
        let options = FetchOptions { limits, ..FetchOptions::default() };
        let reference = name.replace("PORT", &port.to_string()).parse().unwrap();
        let store = place.open();
        let connect = ToServer(port);
        let result = import(&store, (&connect, &credentials), &reference, &options).await;
        if result.is_ok() {
            // Only what says which image it is comes a second time.
            let before = seen.lock().unwrap().len();
            let again = import(&store, (&connect, &credentials), &reference, &options).await;
            assert_eq!(again, result);
            let all = seen.lock().unwrap();
            let of_blobs = all[before..].iter().filter(|it| it.path.contains("/blobs/"));
            let from_registry = of_blobs.filter(|it| it.host != "cdn.test");
            assert!(from_registry.count() <= 2, "its layers are there: {all:?}");
            drop(all);
            seen.lock().unwrap().truncate(before);
        }
        let left = std::fs::read_dir(place.path("store/unfinished")).unwrap().count();
        assert_eq!(left, 0);
        server.abort();
        let seen = seen.lock().unwrap().clone();
        (result, seen)
    })
}

async fn import(
    store: &Store,
    (connect, credentials): (&ToServer, &Credentials),
    reference: &Reference,
    options: &FetchOptions,
) -> Fetched {
    let scratch = store.scratch().unwrap();
    let pulled = pull(connect, credentials, reference, options, store, scratch.path()).await;
    let source = pulled.map_err(|error| whole(&error))?;
    let image = store.import(&source).unwrap_or_else(|it| panic!("{}", whole(&it)));
    Ok(tree(&image.root))
}

async fn serve(
    listener: TcpListener,
    seen: Arc<Mutex<Vec<Seen>>>,
    answers: Arc<impl Fn(&Seen) -> Answer + Send + Sync + 'static>,
) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (seen, answers) = (seen.clone(), answers.clone());
        tokio::spawn(async move {
            let respond = |request: Request<Incoming>| {
                let header = |name: &str| {
                    let value = request.headers().get(name).map(|it| it.to_str().unwrap());
                    value.unwrap_or_default().to_owned()
                };
                let path = request.uri().path_and_query().unwrap().to_string();
                let authorization = header("authorization");
                let request = Seen { host: header("host"), path, authorization };
                seen.lock().unwrap().push(request.clone());
                let answer = answers(&request);
                async move {
                    let mut response = Response::builder().status(answer.status);
                    for (name, value) in answer.headers {
                        response = response.header(name, value);
                    }
                    let body = Full::new(Bytes::from(answer.body));
                    Ok::<_, Infallible>(response.body(body).unwrap())
                }
            };
            let connection = hyper::server::conn::http1::Builder::new();
            let _ended =
                connection.serve_connection(TokioIo::new(stream), service_fn(respond)).await;
        });
    }
}

/// An image for this machine and another one, behind one index. Its files, and the index.
fn image() -> (Files, Vec<u8>) {
    let ours = Parts::new([Layer::new().file("a", "1"), Layer::new().file("b", "2")]).gzip();
    let mut files = Vec::new();
    let mut descriptor = ours.manifest(&mut files);
    descriptor["platform"] = json!({"os": "linux", "architecture": ours.config["architecture"]});
    let other = json!({
        "mediaType": MANIFEST, "digest": Digest::of(b"not here").to_string(), "size": 8,
        "platform": {"os": "windows", "architecture": "amd64"},
    });
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [other, descriptor]});
    let index = index.to_string().into_bytes();
    blob(&mut files, INDEX, &index);
    (files, index)
}

/// What a registry answers that lets everybody in.
fn open_registry(files: &Files, index: &[u8], seen: &Seen) -> Answer {
    let path = seen.path.strip_prefix("/v2/shop/cart/").unwrap_or_default();
    if path == "manifests/1" {
        return answer(200, &[("content-type", INDEX)], index);
    }
    let digest = path.rsplit("sha256:").next().unwrap_or_default();
    let found = files.iter().find(|(name, _)| !digest.is_empty() && name.ends_with(digest));
    match found {
        Some((_, bytes)) => {
            let media_type = if bytes == index { INDEX } else { MANIFEST };
            answer(200, &[("content-type", media_type)], bytes)
        }
        None => answer(404, &[], br#"{"errors":[{"code":"MANIFEST_UNKNOWN"}]}"#),
    }
}

const TREE: [&str; 2] = ["a=1", "b=2"];

#[test]
fn a_registry_on_this_machine_needs_no_tls() {
    let (files, index) = image();
    let (result, seen) =
        fetch("127.0.0.1:PORT/shop/cart:1", "{}", Limits::default(), move |seen| {
            open_registry(&files, &index, seen)
        });
    assert_eq!(result.unwrap(), TREE);
    assert_eq!(seen.len(), 5, "index, manifest, configuration and two layers: {seen:?}");
    assert!(seen.iter().all(|it| it.authorization.is_empty()));
}

#[test]
fn an_image_may_be_named_by_digest() {
    let (files, index) = image();
    let name = format!("127.0.0.1:PORT/shop/cart@{}", Digest::of(&index));
    let serve = move |seen: &Seen| open_registry(&files, &index, seen);
    assert_eq!(fetch(&name, "{}", Limits::default(), serve).0.unwrap(), TREE);
    let name = format!("127.0.0.1:PORT/shop/cart@{}", Digest::of(b"other"));
    let (_, index) = image();
    let serve = move |_: &Seen| answer(200, &[("content-type", INDEX)], &index);
    let error = fetch(&name, "{}", Limits::default(), serve).0.unwrap_err();
    assert!(error.contains("instead of sha256:"), "{error}");
}

/// `a:b` for one registry.
fn login(registry: &str) -> String {
    json!({"auths": {registry: {"auth": "YTpi"}}}).to_string()
}

const BEARER: &str = "Bearer realm=\"https://auth.test/token\",service=\"hub\",scope=\"all\"";

#[test]
fn a_token_is_for_the_registry_and_a_password_for_its_token_service() {
    let (files, index) = image();
    let (result, seen) =
        fetch("registry.test/shop/cart:1", &login("registry.test"), Limits::default(), {
            move |seen| match (&*seen.host, &*seen.authorization) {
                ("auth.test", "Basic YTpi") => answer(200, &[], br#"{"token": "T"}"#),
                ("registry.test", "Bearer T") if seen.path.contains("/blobs/") => {
                    let to = format!("https://cdn.test{}", seen.path);
                    answer(307, &[("location", &to)], b"")
                }
                ("registry.test", "Bearer T") => open_registry(&files, &index, seen),
                ("cdn.test", "") => open_registry(&files, &index, seen),
                _ => answer(401, &[("www-authenticate", BEARER)], b""),
            }
        });
    assert_eq!(result.unwrap(), TREE);
    let of = |host: &str| seen.iter().filter(|it| it.host == host).collect::<Vec<_>>();
    assert_eq!(of("auth.test").len(), 1, "one token for all");
    assert_eq!(of("auth.test")[0].path, "/token?service=hub&scope=repository:shop/cart:pull");
    assert_eq!(of("cdn.test").len(), 3);
    assert!(of("cdn.test").iter().all(|it| it.authorization.is_empty()));
    assert!(of("registry.test").iter().all(|it| !it.authorization.starts_with("Basic")));
}

/// All hosts but the registry demand a login of their own, and would take any.
#[test]
fn no_host_that_a_registry_sends_on_to_can_demand_a_login() {
    for demand in ["Bearer realm=\"https://cdn.test/token\"", "Basic realm=\"x\""] {
        for blobs_only in [true, false] {
            let (files, index) = image();
            let answers = move |seen: &Seen| match (&*seen.host, &*seen.authorization) {
                ("auth.test", "Basic YTpi") => answer(200, &[], br#"{"token": "T"}"#),
                ("registry.test", "Bearer T") if blobs_only && !seen.path.contains("/blobs/") => {
                    open_registry(&files, &index, seen)
                }
                ("registry.test", _) if !blobs_only || seen.authorization == "Bearer T" => {
                    let to = format!("https://cdn.test{}?signature=s", seen.path);
                    answer(307, &[("location", &to)], b"")
                }
                ("registry.test", _) => answer(401, &[("www-authenticate", BEARER)], b""),
                _ => answer(401, &[("www-authenticate", demand)], b""),
            };
            let name = "registry.test/shop/cart:1";
            let (result, seen) = fetch(name, &login("registry.test"), Limits::default(), answers);
            let error = result.unwrap_err();
            assert!(error.contains("cdn.test refuses access"), "{error}");
            assert!(!error.contains("signature"), "{error}");
            let elsewhere: Vec<&Seen> = seen.iter().filter(|it| it.host == "cdn.test").collect();
            assert_eq!(elsewhere.len(), 1, "asked once, and for no token: {seen:?}");
            assert_eq!(elsewhere[0].authorization, "");
            let is_password = |it: &&Seen| it.authorization.starts_with("Basic");
            assert!(seen.iter().filter(is_password).all(|it| it.host == "auth.test"), "{seen:?}");
        }
    }
}

#[test]
fn a_registry_may_send_on_to_itself() {
    let (files, index) = image();
    let answers = move |seen: &Seen| match (&*seen.authorization, seen.path.split_once("?again")) {
        ("Basic YTpi", Some((path, _))) => {
            open_registry(&files, &index, &Seen { path: path.to_owned(), ..seen.clone() })
        }
        ("Basic YTpi", None) => {
            let to = format!("https://registry.test:443{}?again", seen.path);
            answer(307, &[("location", &to)], b"")
        }
        _ => answer(401, &[("www-authenticate", "Basic realm=\"x\"")], b""),
    };
    let name = "registry.test/shop/cart:1";
    let (result, _) = fetch(name, &login("registry.test"), Limits::default(), answers);
    assert_eq!(result.unwrap(), TREE);
}

#[test]
fn a_registry_that_never_ends_is_left() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // It takes connections, and says nothing.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let timeout = Duration::from_millis(50);
        let options = FetchOptions { timeout, ..FetchOptions::default() };
        let reference = format!("127.0.0.1:{port}/shop/cart:1").parse().unwrap();
        let asked = (&ToServer(port), &Credentials::default());
        let error = import(&Place::new().open(), asked, &reference, &options).await;
        assert!(error.unwrap_err().contains("is not here after"));
    });
}

#[test]
fn a_password_may_go_with_each_request() {
    let serve = || {
        let (files, index) = image();
        move |seen: &Seen| match &*seen.authorization {
            "Basic YTpi" => open_registry(&files, &index, seen),
            _ => answer(401, &[("www-authenticate", "Basic realm=\"x\"")], b""),
        }
    };
    let name = "registry.test/shop/cart:1";
    let (result, seen) = fetch(name, &login("registry.test"), Limits::default(), serve());
    assert_eq!(result.unwrap(), TREE);
    assert_eq!(seen.len(), 6, "one request without it: {seen:?}");
    let (result, seen) = fetch(name, &login("other.test"), Limits::default(), serve());
    assert!(result.unwrap_err().contains("registry.test refuses access"));
    assert!(seen.iter().all(|it| it.authorization.is_empty()));
}

#[track_caller]
fn refused(
    name: &str,
    limits: Limits,
    part: &str,
    answers: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
) {
    let (result, seen) = fetch(name, &login("registry.test"), limits, answers);
    let error = result.unwrap_err();
    assert!(error.contains(part), "{error}\nhas not: {part}");
    assert!(seen.len() < 20, "{seen:?}");
}

#[test]
fn registries_that_do_not_answer_well_are_errors() {
    let name = "registry.test/shop/cart:1";
    let check = |part: &str, status: u16, headers: &'static [(&'static str, &'static str)]| {
        refused(name, Limits::default(), part, move |_| answer(status, headers, b"because\n"));
    };
    check("answers 404 Not Found: because", 404, &[]);
    check("answers 429 Too Many Requests: because", 429, &[]);
    check("refuses access: because", 403, &[]);
    check("login that is not supported: \"Negotiate\"", 401, &[("www-authenticate", "Negotiate")]);
    check("login that is not supported: \"\"", 401, &[]);
    check("is not the address of a reg", 401, &[("www-authenticate", "Bearer realm=\"/t\"")]);
    refused(name, Limits::default(), "auth.test sends no token", |seen| match &*seen.host {
        "auth.test" => answer(200, &[], b"because"),
        _ => answer(401, &[("www-authenticate", BEARER)], b""),
    });
    check("auth.test refuses access", 401, &[("www-authenticate", BEARER)]);
    let plain = "Bearer realm=\"http://auth.test/t\"";
    refused(name, Limits::default(), "a password must not go there", move |_| {
        answer(401, &[("www-authenticate", plain)], b"")
    });
    check("sent on too often", 302, &[("location", "/v2/shop/cart/manifests/1")]);
    check("which has no TLS", 302, &[("location", "http://cdn.test/")]);
    check("which is this machine", 302, &[("location", "https://127.0.0.1/")]);
    check("which is no address", 302, &[]);
    check("is not as OCI and Docker write it", 200, &[]);
    let small = Limits { document_bytes: 5, ..Limits::default() };
    refused(name, small, "registry.test sends too much: more than 5 bytes", |_| {
        answer(200, &[], b"because")
    });
    refused("down.test/x", Limits::default(), "cannot connect to down.test", |_| unreachable!());
    let helper = json!({"credHelpers": {"registry.test": "x"}}).to_string();
    let (result, seen) = fetch(name, &helper, Limits::default(), |_| unreachable!());
    assert!(result.unwrap_err().contains("credential helper \"x\""));
    assert!(seen.is_empty());
}

#[test]
fn what_a_registry_sends_must_be_what_was_asked_for() {
    let check = |part: &str, change: fn(&mut Vec<u8>)| {
        let (files, index) = image();
        refused("127.0.0.1:PORT/shop/cart:1", Limits::default(), part, move |seen| {
            let mut answer = open_registry(&files, &index, seen);
            if seen.path.contains("/blobs/") {
                change(&mut answer.body);
            }
            answer
        });
    };
    check("instead of sha256:", |body| body[0] ^= 1);
    check("sends too much", |body| body.push(0));
    check("bytes instead of", |body| body.truncate(body.len() - 1));
    let (files, index) = image();
    let total = Limits { archive_bytes: 100, ..Limits::default() };
    refused("127.0.0.1:PORT/shop/cart:1", total, "bytes in all parts of an image", move |seen| {
        open_registry(&files, &index, seen)
    });
}

#[test]
fn nothing_of_a_login_is_shown() {
    let credentials = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(credentials.path(), login("registry.test")).unwrap();
    let read = Credentials::read(Path::new(credentials.path())).unwrap();
    assert_eq!(format!("{read:?}"), "{\"registry.test\"}");
}
