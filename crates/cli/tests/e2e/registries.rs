//! Images from a registry and from Docker, which threads of the test play on this machine.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ambit_image::Digest;
use serde_json::{Value, json};

use crate::images::archive;
use crate::machine::Machine;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const POD: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: app}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: app}
spec:
  containers: [{name: main, image: \"shop/web:1\"}]
";
/// `a:b`.
const LOGIN: &str = "Basic YTpi";

/// What a registry has, by path.
type Contents = BTreeMap<String, Vec<u8>>;

/// A registry for those who log in, and the paths that they asked for.
struct Registry {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Registry {
    fn start(contents: Contents) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        // It ends with the tests' process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                answer(stream, &contents, &seen);
            }
        });
        Self { address, asked }
    }

    /// How often somebody who had logged in asked for this.
    fn count(&self, path: &str) -> usize {
        let asked = self.asked.lock().expect("nobody panics with it");
        asked.iter().filter(|asked| *asked == path).count()
    }
}

/// The lines of a request's head.
fn read_head(stream: impl Read) -> Vec<String> {
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        match reader.read_line(&mut line) {
            Ok(2..) if line != "\r\n" => head.push(line.trim_end().to_owned()),
            _ => return head,
        }
    }
}

fn answer(stream: TcpStream, contents: &Contents, seen: &Mutex<Vec<String>>) {
    let head = read_head(&stream);
    let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    let is_known =
        head.iter().any(|line| line.eq_ignore_ascii_case(&format!("authorization: {LOGIN}")));
    let (status, header, body) = match contents.get(path) {
        _ if !is_known => ("401 Unauthorized", "WWW-Authenticate: Basic realm=\"e2e\"", &[][..]),
        None => ("404 Not Found", "X-None: 1", &[][..]),
        Some(body) => {
            ("200 OK", "Content-Type: application/vnd.oci.image.manifest.v1+json", &body[..])
        }
    };
    if is_known {
        seen.lock().expect("nobody panics with it").push(path.to_owned());
    }
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\n{header}\r\nContent-Length: {length}\r\n\r\n");
    // One who does not listen any more notices it itself.
    let _unheard = (&stream).write_all(head.as_bytes()).and_then(|()| (&stream).write_all(body));
}

/// Adds an image of one layer to what a registry has; the layer's path.
fn add(contents: &mut Contents, name: &str, layer: &[u8], config: &Value) -> String {
    let mut blob = |bytes: &[u8]| {
        let digest = Digest::of(bytes).to_string();
        contents.insert(format!("/v2/{name}/blobs/{digest}"), bytes.to_vec());
        json!({"digest": digest, "size": bytes.len(), "mediaType": ""})
    };
    let mut layer = blob(layer);
    layer["mediaType"] = json!("application/vnd.oci.image.layer.v1.tar");
    let config = blob(config.to_string().as_bytes());
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
    });
    contents.insert(format!("/v2/{name}/manifests/1"), manifest.to_string().into_bytes());
    format!("/v2/{name}/blobs/{}", layer["digest"].as_str().expect("it is a text"))
}

fn count(directory: &Path) -> usize {
    fs::read_dir(directory).expect("it is there").count()
}

#[test]
fn an_image_comes_from_a_registry_with_the_login_of_docker() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    archive(directory.path());
    let part = |name: &str| fs::read(directory.path().join("parts").join(name)).expect("it is");
    let layer = part("layer.tar");
    let config: Value = serde_json::from_slice(&part("config.json")).expect("it is JSON");
    let mut other = config.clone();
    other["config"]["Env"] = json!(["WHO=other"]);
    let mut contents = Contents::new();
    let layer_path = add(&mut contents, "shop/web", &layer, &config);
    add(&mut contents, "shop/other", &layer, &other);
    let registry = Registry::start(contents);
    let of = |name: &str| format!("shop/{name}:1=registry:{}/shop/{name}:1", registry.address);
    let (web, other) = (of("web"), of("other"));

    let machine = Machine::none("registry");
    let logins = directory.path().join("docker");
    fs::create_dir(&logins).expect("it can be made");
    let logins = ("DOCKER_CONFIG", &*logins);
    let up = ["up", "-", "--detach", "--no-mesh", "--image", &web];
    let said = machine.ambit_with_variable(logins, &up, POD);
    assert!(!said.status.success() && said.err.contains("refuses access"), "{}", said.err);
    let left = fs::read_dir(machine.layout.root()).map_or(0, Iterator::count);
    assert_eq!(left, 0, "nothing is left of it");

    let auths = json!({"auths": {&registry.address: {"auth": "YTpi"}}});
    fs::write(logins.1.join("config.json"), auths.to_string()).expect("it can be written");
    let said = machine.ambit_with_variable(logins, &up, POD);
    assert!(said.status.success(), "ambit up: {}", said.err);
    assert_eq!(machine.bash("app/web", "echo $WHO $PWD"), "image /web\n");
    assert_eq!(registry.count(&layer_path), 1);

    // What is there already is not fetched again.
    let apply = ["apply", "-", "--image", &web];
    let said = machine.ambit_with_variable(logins, &apply, POD);
    assert!(said.status.success(), "ambit apply: {}", said.err);
    assert_eq!(registry.count("/v2/shop/web/manifests/1"), 2);
    assert_eq!(registry.count(&layer_path), 1);

    // A trial leaves nothing in the store.
    let images = machine.layout.images();
    assert_eq!(count(&images.join("images")), 1);
    let said =
        machine.ambit_with_variable(logins, &["apply", "-", "--dry-run", "--image", &other], POD);
    assert!(said.status.success(), "ambit apply --dry-run: {}", said.err);
    assert_eq!(registry.count("/v2/shop/other/manifests/1"), 1);
    assert_eq!((count(&images.join("images")), count(&images.join("unfinished"))), (1, 0));
    machine.down();
}

#[test]
fn an_image_comes_from_the_docker_of_this_computer() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let archive = fs::read(archive(directory.path())).expect("it was written");
    let socket = directory.path().join("docker.sock");
    let machine = Machine::none("docker");
    let docker = ("DOCKER_HOST", &*socket);
    let up = |reference: &str| {
        let image = format!("shop/web=docker-daemon:{reference}");
        let up = ["up", "-", "--detach", "--no-mesh", "--image", &image];
        machine.ambit_with_variable(docker, &up, POD)
    };
    let said = up("web:1");
    let missing = format!("no Docker listens at {}; start it", socket.display());
    assert!(!said.status.success() && said.err.contains(&missing), "{}", said.err);

    let listener = UnixListener::bind(&socket).expect("nobody listens");
    // It ends with the tests' process.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let head = read_head(&stream);
            let is_ours = head[0].starts_with("GET /images/docker.io/library/web:1/get ");
            let (status, body) = match is_ours {
                true => ("200 OK", &archive[..]),
                false => ("404 Not Found", &b"{\"message\":\"No such image\"}"[..]),
            };
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
            let _unheard = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        }
    });
    let said = up("other");
    let missing = "has no image docker.io/library/other:latest: `docker images`";
    assert!(!said.status.success() && said.err.contains(missing), "{}", said.err);
    let left = fs::read_dir(machine.layout.root()).map_or(0, Iterator::count);
    assert_eq!(left, 0, "nothing is left of it");
    let said = up("web:1");
    assert!(said.status.success(), "ambit up: {}", said.err);
    assert_eq!(machine.bash("app/web", "echo $WHO $PWD"), "image /web\n");
    machine.down();
}
