//! Images of the daemons of this machine: Docker and containerd, played by small servers.

use std::convert::Infallible;
use std::io::Write;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use ambit_image::{Daemons, Digest, FetchOptions, Limits, Source, containerd, docker};
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::build::{INDEX, Layer, MANIFEST, Parts, Place, archive, blob, tree, whole};

type Files = Vec<(String, Vec<u8>)>;
/// The tree of an image, or the error.
type Fetched = Result<Vec<String>, String>;

const TREE: [&str; 2] = ["a=1", "b=2"];

fn parts() -> Parts {
    Parts::new([Layer::new().file("a", "1"), Layer::new().file("b", "2")])
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// That nothing but a whole image stays in the store.
fn finish(place: &Place, fetched: Result<Source, String>) -> Fetched {
    let left = std::fs::read_dir(place.path("store/unfinished")).unwrap().count();
    assert_eq!(left, 1, "the directory of the caller");
    let image = place.open().import(&fetched?).map_err(|error| whole(&error))?;
    Ok(tree(&image.root))
}

fn options(limits: Limits, timeout: Duration) -> FetchOptions {
    FetchOptions { limits, timeout, ..FetchOptions::default() }
}

/// Saves an image of a Docker that answers each request with these bytes; the request's first line.
fn save(image: &str, limits: Limits, answer: &[u8]) -> (Fetched, String) {
    let place = Place::new();
    let socket = place.path("docker.sock");
    let daemons =
        Daemons { docker_host: Some(format!("unix://{}", socket.display())), ..Daemons::default() };
    block_on(async {
        let listener = UnixListener::bind(&socket).unwrap();
        let answer = answer.to_vec();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let _cut = stream.write_all(&answer).await;
            head
        });
        let store = place.open();
        let scratch = store.scratch().unwrap();
        let options = options(limits, Duration::from_secs(10));
        let image = image.parse().unwrap();
        let saved = docker::save(&daemons, &image, &options, &store, scratch.path()).await;
        let fetched = finish(&place, saved.map_err(|error| whole(&error)));
        let head = String::from_utf8(server.await.unwrap()).unwrap();
        (fetched, head.lines().next().unwrap_or_default().to_owned())
    })
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let mut answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-tar\r\n\
        Transfer-Encoding: chunked\r\n\r\n"
        .to_vec();
    for chunk in body.chunks(1000) {
        write!(answer, "{:x}\r\n", chunk.len()).unwrap();
        answer.extend_from_slice(chunk);
        answer.extend_from_slice(b"\r\n");
    }
    answer.extend_from_slice(b"0\r\n\r\n");
    answer
}

#[test]
fn docker_gives_an_archive() {
    let id = Digest::of(b"").to_string();
    for (files, image, path) in [
        (parts().docker(), "shop/cart:1", "docker.io/shop/cart:1".to_owned()),
        (parts().layout(), "cart", "docker.io/library/cart:latest".to_owned()),
        (parts().docker(), &id, id.clone()),
    ] {
        let (fetched, line) = save(image, Limits::default(), &chunked(&archive(&files)));
        assert_eq!(fetched.unwrap(), TREE);
        assert_eq!(line, format!("GET /images/{path}/get HTTP/1.1"));
    }
}

#[test]
fn what_docker_does_not_give_is_an_error() {
    let check = |limits: Limits, answer: &[u8], part: &str| {
        let (fetched, _) = save("shop/cart:1", limits, answer);
        let error = fetched.unwrap_err();
        assert!(error.contains(part), "{error}, not {part}");
    };
    let whole = archive(&parts().docker());
    let message =
        "HTTP/1.1 404 Not Found\r\nContent-Length: 27\r\n\r\n{\"message\":\"No such image\"}";
    check(Limits::default(), message.as_bytes(), "has no image docker.io/shop/cart:1: `docker");
    let error = b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\na\x1b\nb";
    check(Limits::default(), error, "answers 500 Internal Server Error: a  b");
    let elsewhere = b"HTTP/1.1 302 Found\r\nLocation: http://a/\r\nContent-Length: 0\r\n\r\n";
    check(Limits::default(), elsewhere, "is not Docker: it answers 302");
    check(Limits::default(), b"220 smtp.test ready\r\n", "the connection to docker failed");
    check(Limits::default(), &chunked(b"no archive"), "cannot load docker-daemon:docker.io/shop");
    let cut = &chunked(&whole)[..2000];
    check(Limits::default(), cut, "the connection to docker failed");
    // Docker says that it is all, and it is not.
    check(Limits::default(), &chunked(&whole[..whole.len() / 2]), "is not a good archive");
    let limits = Limits { archive_bytes: 2000, ..Limits::default() };
    check(limits, &chunked(&whole), "sends too much: more than 2000 bytes");
    let mut other = parts();
    other.config["architecture"] = json!("pdp11");
    check(Limits::default(), &chunked(&archive(&other.docker())), "only for linux/pdp11");
    let mut other = parts();
    other.layers[1].0 = Layer::new().file("b", "3").end();
    check(Limits::default(), &chunked(&archive(&other.docker())), "cannot unpack layer 2");
}

#[test]
fn a_daemon_that_is_not_there_is_an_error() {
    let place = Place::new();
    let (nobody, stale) = (place.path("nobody"), place.path("stale"));
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let check = |address: String, docker_part: &str, containerd_part: &str| {
        let daemons = Daemons {
            docker_host: Some(address.clone()),
            containerd_address: Some(address),
            containerd_namespace: None,
        };
        let (store, options) = (place.open(), FetchOptions::default());
        let scratch = store.scratch().unwrap();
        block_on(async {
            let image = "a".parse().unwrap();
            let saved = docker::save(&daemons, &image, &options, &store, scratch.path()).await;
            let error = whole(&saved.unwrap_err());
            assert!(error.contains(docker_part), "{error}");
            let image = "a".parse().unwrap();
            let pulled = containerd::pull(&daemons, &image, &options, &store, scratch.path());
            let error = whole(&pulled.await.unwrap_err());
            assert!(error.contains(containerd_part), "{error}");
        });
    };
    let listens =
        |who: &str, path: &std::path::Path| format!("no {who} listens at {}", path.display());
    for path in [nobody, stale] {
        let (docker, containerd) = (listens("Docker", &path), listens("containerd", &path));
        check(path.display().to_string(), &docker, &containerd);
    }
    check("tcp://a:2375".to_owned(), "DOCKER_HOST is \"tcp://a:2375\"", "CONTAINERD_ADDRESS is");
}

/// One call as containerd sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    method: String,
    namespace: String,
    /// A name or a digest.
    key: String,
}

/// What containerd says.
enum Reply {
    Messages(Vec<Vec<u8>>),
    /// A head, and nothing after it.
    Silence,
    /// The number of a status, and what it says.
    Status(u32, &'static str),
}

#[derive(Clone, PartialEq, prost::Message)]
struct Key {
    #[prost(string, tag = "1")]
    key: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Descriptor {
    #[prost(string, tag = "1")]
    media_type: String,
    #[prost(string, tag = "2")]
    digest: String,
    #[prost(int64, tag = "3")]
    size: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Record {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "3")]
    target: Option<Descriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Got {
    #[prost(message, optional, tag = "1")]
    image: Option<Record>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Piece {
    #[prost(int64, tag = "1")]
    offset: i64,
    #[prost(bytes = "vec", tag = "2")]
    data: Vec<u8>,
}

/// The frames of an answer.
struct Answer {
    reply: Reply,
    sent: usize,
}

fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap();
    [&[0][..], &length.to_be_bytes(), message].concat().into()
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let at = self.sent;
        self.sent += 1;
        let message = match &self.reply {
            Reply::Messages(messages) => messages.get(at),
            Reply::Silence => return Poll::Pending,
            Reply::Status(..) => None,
        };
        let frame = match (message, &self.reply) {
            (Some(message), _) => Frame::data(framed(message)),
            (None, Reply::Messages(messages)) if at > messages.len() => return Poll::Ready(None),
            (None, Reply::Status(..)) if at > 0 => return Poll::Ready(None),
            (None, reply) => {
                let (code, text) = match reply {
                    Reply::Status(code, text) => (*code, *text),
                    _ => (0, ""),
                };
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from(code));
                trailers.insert("grpc-message", HeaderValue::from_static(text));
                Frame::trailers(trailers)
            }
        };
        Poll::Ready(Some(Ok(frame)))
    }
}

async fn serve(stream: UnixStream, calls: Arc<Mutex<Vec<Call>>>, answers: Arc<Answers>) {
    let respond = |request: Request<Incoming>| {
        let (calls, answers) = (calls.clone(), answers.clone());
        async move {
            let namespace = request.headers()["containerd-namespace"].to_str().unwrap().to_owned();
            let method = request.uri().path().rsplit('.').next().unwrap().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let key = Key::decode(&body[5..]).unwrap().key;
            let call = Call { method, namespace, key };
            calls.lock().unwrap().push(call.clone());
            let answer = Answer { reply: answers(&call), sent: 0 };
            let response = Response::builder().header("content-type", "application/grpc");
            Ok::<_, Infallible>(response.body(answer).unwrap())
        }
    };
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let _ended = connection.serve_connection(TokioIo::new(stream), service_fn(respond)).await;
}

type Answers = dyn Fn(&Call) -> Reply + Send + Sync;

/// Fetches an image from a containerd with these answers; what it was asked.
fn pull(
    image: &str,
    namespace: Option<&str>,
    options: &FetchOptions,
    answers: impl Fn(&Call) -> Reply + Send + Sync + 'static,
) -> (Fetched, Vec<Call>) {
    let place = Place::new();
    let socket = place.path("containerd.sock");
    let daemons = Daemons {
        containerd_address: Some(socket.display().to_string()),
        containerd_namespace: namespace.map(str::to_owned),
        ..Daemons::default()
    };
    block_on(async {
        let listener = UnixListener::bind(&socket).unwrap();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (seen, answers): (_, Arc<Answers>) = (calls.clone(), Arc::new(answers));
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            serve(stream, seen, answers).await;
        });
        let store = place.open();
        let scratch = store.scratch().unwrap();
        let image = image.parse().unwrap();
        let pulled = containerd::pull(&daemons, &image, options, &store, scratch.path()).await;
        let fetched = finish(&place, pulled.map_err(|error| whole(&error)));
        let calls = calls.lock().unwrap().clone();
        (fetched, calls)
    })
}

/// An image for this machine and another one, behind one index. Its files, and the index.
fn image() -> (Files, Vec<u8>) {
    let ours = parts().gzip();
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

fn described(media_type: &str, digest: String, size: i64) -> Reply {
    let target = Some(Descriptor { media_type: media_type.to_owned(), digest, size });
    let got = Got { image: Some(Record { name: "as asked".to_owned(), target }) };
    Reply::Messages(vec![got.encode_to_vec()])
}

/// Content, in pieces.
fn pieces(bytes: &[u8]) -> Reply {
    let mut offset = 0;
    let piece = |data: &[u8]| {
        let piece = Piece { offset, data: data.to_vec() };
        offset += i64::try_from(data.len()).unwrap();
        piece.encode_to_vec()
    };
    Reply::Messages(bytes.chunks(100).map(piece).collect())
}

/// What containerd answers that has the image under this name in this namespace.
fn good((files, index): &(Files, Vec<u8>), at: (&str, &str), call: &Call) -> Reply {
    if call.method == "Images/Get" {
        return match (&*call.namespace, &*call.key) == at {
            true => described(INDEX, Digest::of(index).to_string(), size(index)),
            false => Reply::Status(5, "image: not found"),
        };
    }
    let hex = call.key.strip_prefix("sha256:").unwrap();
    let found = files.iter().find(|(name, _)| call.namespace == at.0 && name.ends_with(hex));
    found.map_or(Reply::Status(5, "content: not found"), |(_, bytes)| pieces(bytes))
}

fn size(bytes: &[u8]) -> i64 {
    i64::try_from(bytes.len()).unwrap()
}

#[test]
fn containerd_is_asked_in_one_namespace_after_the_other() {
    let complete = "docker.io/library/cart:latest";
    for (namespace, at, gets) in [
        (None, ("k8s.io", "cart"), 1),
        (None, ("k8s.io", complete), 2),
        (None, ("default", "cart"), 3),
        (None, ("default", complete), 4),
        (Some("moby"), ("moby", complete), 2),
    ] {
        let image = image();
        let answers = move |call: &Call| good(&image, at, call);
        let (fetched, calls) = pull("cart", namespace, &FetchOptions::default(), answers);
        assert_eq!(fetched.unwrap(), TREE);
        let of = |method: &str| calls.iter().filter(|it| it.method == method).count();
        assert_eq!(of("Images/Get"), gets, "{calls:?}");
        assert_eq!(of("Content/Read"), 5, "index, manifest, configuration, two layers: {calls:?}");
    }
}

/// That fetching fails if a call that begins so is answered otherwise.
fn check_refused(
    limits: Limits,
    key: &str,
    answer: impl Fn(Reply) -> Reply + Send + Sync + 'static,
    part: &str,
) {
    let (image, key) = (image(), key.to_owned());
    let answers = move |call: &Call| {
        let reply = good(&image, ("k8s.io", "shop/cart"), call);
        if call.key.starts_with(&key) { answer(reply) } else { reply }
    };
    let options = options(limits, Duration::from_secs(20));
    let error = pull("shop/cart", None, &options, answers).0.unwrap_err();
    assert!(error.contains(part), "{error}, not {part}");
}

#[test]
fn what_containerd_does_not_give_is_an_error() {
    let check = |key, answer: fn(Reply) -> Reply, part| {
        check_refused(Limits::default(), key, answer, part);
    };
    let absent = "has no image shop/cart or docker.io/shop/cart:latest in namespace k8s.io or \
                  default: `ctr -n NAMESPACE images ls`";
    check("shop/cart", |_| Reply::Status(5, "not found"), absent);
    check("shop/cart", |_| Reply::Status(7, "no%0A\x7e"), "answers PermissionDenied");
    check("shop/cart", |_| Reply::Messages(Vec::new()), "answers Internal");
    check("shop/cart", |_| Reply::Messages(vec![Vec::new()]), "does not describe the content");
    check("shop/cart", |_| Reply::Messages(vec![vec![0xff; 9]]), "when it is asked for shop/cart");
    check("shop/cart", |_| described(INDEX, "md5:0".to_owned(), 1), "does not describe");
    check("shop/cart", |_| described(INDEX, Digest::of(b"").to_string(), -1), "does not describe");
    let huge = |_| described(INDEX, Digest::of(b"").to_string(), i64::MAX);
    check("shop/cart", huge, "sends too much of manifest");
    check("sha256:", |_| Reply::Status(5, "gone"), "but does not have its manifest sha256:");
    check("sha256:", |_| Reply::Messages(Vec::new()), "sends 0 bytes of manifest sha256:");
    let again = |reply| match reply {
        Reply::Messages(messages) => Reply::Messages([&messages[..1], &messages[..]].concat()),
        other => other,
    };
    check("sha256:", again, "sends byte 0 of manifest");
    let more = |reply| match reply {
        Reply::Messages(mut messages) => {
            let offset = 100 * i64::try_from(messages.len()).unwrap();
            messages.pop();
            messages.push(Piece { offset: offset - 100, data: vec![0; 100] }.encode_to_vec());
            messages.push(Piece { offset, data: vec![0; 100] }.encode_to_vec());
            Reply::Messages(messages)
        }
        other => other,
    };
    check("sha256:", more, "sends too much of manifest");
}

#[test]
fn a_containerd_that_never_ends_is_left() {
    let (image, options) = (image(), options(Limits::default(), Duration::from_millis(100)));
    let answers = move |call: &Call| match &*call.method {
        "Images/Get" => good(&image, ("k8s.io", "shop/cart"), call),
        _ => Reply::Silence,
    };
    let error = pull("shop/cart", None, &options, answers).0.unwrap_err();
    assert!(error.contains("shop/cart is not here after"), "{error}");
}

#[test]
fn what_containerd_sends_is_checked() {
    let changed = |reply| match reply {
        Reply::Messages(mut messages) => {
            *messages[0].last_mut().unwrap() ^= 1;
            Reply::Messages(messages)
        }
        other => other,
    };
    check_refused(Limits::default(), "sha256:", changed, "containerd sent sha256:");
    let large = |_| {
        let data = vec![0; 5 << 20];
        Reply::Messages(vec![Piece { offset: 0, data }.encode_to_vec()])
    };
    check_refused(Limits::default(), "sha256:", large, "answers OutOfRange");
    let limits = Limits { archive_bytes: 600, ..Limits::default() };
    check_refused(limits, "no such key", |reply| reply, "shop/cart is too large");
    // Its media type says manifest, and it is an index.
    let (files, index) = image();
    let answers = move |call: &Call| match &*call.method {
        "Images/Get" => described(MANIFEST, Digest::of(&index).to_string(), size(&index)),
        _ => good(&(files.clone(), index.clone()), ("k8s.io", "shop/cart"), call),
    };
    let error = pull("shop/cart", None, &FetchOptions::default(), answers).0.unwrap_err();
    assert!(error.contains("has media type"), "{error}");
}

#[test]
fn who_is_not_containerd_is_an_error() {
    let place = Place::new();
    let socket = place.path("other.sock");
    let daemons =
        Daemons { containerd_address: Some(socket.display().to_string()), ..Daemons::default() };
    block_on(async {
        let listener = UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _sent = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        });
        let (store, options) = (place.open(), FetchOptions::default());
        let scratch = store.scratch().unwrap();
        let image = "a".parse().unwrap();
        let pulled = containerd::pull(&daemons, &image, &options, &store, scratch.path()).await;
        let error = whole(&pulled.unwrap_err());
        assert!(error.contains("containerd"), "{error}");
    });
}
