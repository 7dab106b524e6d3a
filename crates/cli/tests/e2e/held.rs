//! Attacks that have always failed, kept as tests: silent handshakes, and a search for secrets in
//! all output of the roles.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use crate::machine::{Machine, Mesh};
use crate::policy::connects;
use crate::size::sized;

/// TCP connections to a pod's HBONE port that never begin with TLS, and stay open.
const SILENT: u32 = 2_000;
/// At full size: rounds, and connections of each. All of them need more ports than a pod has.
const FULL: (usize, u32) = (14, 7_500);
/// How long a pod may take to open them.
const OPENED_WITHIN: Duration = Duration::from_secs(30);
/// How the dump writes `-----BEGIN CERTIFICATE`.
const CERTIFICATE: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FU";
/// A shorter piece of a secret may occur elsewhere by chance.
const SECRET_LENGTH_MIN: usize = 24;

#[test]
fn neither_silence_nor_a_look_around_gets_an_attacker_anywhere() {
    // The proxies say the most that they can say.
    let machine = Machine::up("held", Mesh::On, &["--proxy-flag=--log-level=trace"]);
    silence(&machine);
    assert!(connects(&machine, "client/load", "web.app"), "certificates are in use");
    secrets(&machine);
    machine.down();
}

/// A pod outside of the mesh holds connections to the server's port of HBONE and says nothing.
fn silence(machine: &Machine) {
    let server = machine.pod_ip("app", "server", false);
    let (rounds, each) = sized(FULL, (1, SILENT));
    let script = format!(
        "ulimit -n 8192; for round in $(seq {rounds}); do ( open=0; for n in $(seq {each}); \
         do exec {{fd}}<>/dev/tcp/{server}/15008 && open=$((open + 1)); done 2>/dev/null; \
         echo $open; [ $round != {rounds} ] || sleep 300 ); done"
    );
    let words = ["exec", "outside/stranger", "--", "bash", "-c", &script];
    let mut silent = machine.spawn(&words);
    let said = BufReader::new(silent.stdout.take().expect("a pipe")).lines();
    for line in said.take(rounds) {
        let opened: u32 = line.expect("how many it opened").parse().expect("a count");
        assert_eq!(opened, each);
        assert!(connects(machine, "client/load", "web.app"), "others are served");
    }
    assert!(machine.is_ready("node-2"));
    // Those beyond the bound of one address were closed, and those within it are closed in time.
    let pod = "outside/stranger";
    machine.wait("silence is ended", OPENED_WITHIN, || machine.established(pod, 15008) == 0);
    silent.kill().expect("ends");
    silent.wait().expect("ended");
}

/// What must not be seen: lines of private keys and tokens, from their own files.
fn hidden(machine: &Machine) -> Vec<String> {
    let mut secrets = Vec::new();
    let control = std::fs::read_dir(machine.layout.control()).expect("the control plane's files");
    let keys = control.map(|entry| entry.expect("an entry").path());
    let is_key = |path: &std::path::PathBuf| path.to_string_lossy().ends_with("-key.pem");
    let mut files: Vec<_> = keys.filter(is_key).collect();
    assert!(files.len() >= 2, "the authority's key and that of tokens: {files:?}");
    files.extend(["node-1", "node-2"].map(|node| machine.layout.token(node)));
    for path in files {
        let text = std::fs::read_to_string(&path).expect("a secret");
        let lines = text.lines().filter(|line| !line.starts_with("-----"));
        // Of a token the signature alone is secret: the rest is written in the open.
        let parts = lines.flat_map(|line| line.rsplit('.').next());
        secrets.extend(parts.filter(|part| part.len() >= SECRET_LENGTH_MIN).map(str::to_owned));
    }
    assert!(secrets.len() >= 4, "{} secrets", secrets.len());
    // The keys of workloads lie in no file; the dump writes certificates in base64.
    let markers = ["PRIVATE KEY-----", "LS0tLS1CRUdJTiBQUklWQVRF", "LS0tLS1CRUdJTiBFQyBQUklW"];
    secrets.extend(markers.map(str::to_owned));
    secrets
}

/// Every file below a directory.
fn files(directory: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

fn secrets(machine: &Machine) {
    let hidden = hidden(machine);
    let mut said = Vec::new();
    let mut logs = Vec::new();
    files(&machine.layout.logs(), &mut logs);
    let snapshots = ["node-1", "node-2"].map(|node| machine.layout.snapshot(node));
    for path in logs.iter().chain(&snapshots) {
        let bytes = std::fs::read(path).expect("a log or a snapshot");
        said.push((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()));
    }
    for node in ["node-1", "node-2"] {
        for target in ["/config_dump", "/certificates", "/connections", "/process", "/metrics"] {
            said.push((format!("{node} {target}"), machine.admin(node, http::Method::GET, target)));
        }
    }
    let socket = machine.layout.control_socket();
    for target in ["/status", "/ca/certificates", "/ca/rotation", "/get/workloads", "/metrics"] {
        let (_, answer) = machine.post(&socket, http::Method::GET, target, "");
        said.push((format!("control {target}"), answer));
    }
    for kind in ["pods", "certificates", "policies", "workloads", "connections"] {
        said.push((format!("get {kind}"), machine.run(&["get", kind, "-o", "json"])));
    }
    let bytes: usize = said.iter().map(|(_, text)| text.len()).sum();
    assert!(said.iter().any(|(_, text)| text.contains(CERTIFICATE)), "certificates show");
    for (whence, text) in &said {
        for secret in &hidden {
            let at = text.find(secret.as_str());
            assert!(at.is_none(), "{whence} shows a secret at byte {at:?}");
        }
    }
    eprintln!("{} secrets looked for in {} texts of {bytes} bytes", hidden.len(), said.len());
}
