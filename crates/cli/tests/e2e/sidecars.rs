//! Other meshes' sidecars beside every pod, as `ambit bench` compares with them.
//!
//! `AMBIT_ENVOY` and `AMBIT_LINKERD` name the programs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ambit_bench::peer::{SidecarKind, Sidecars, version};
use ambit_machine::image::ImageMap;
use ambit_machine::{UpConfig, up};
use ambit_net::capture::Trace;
use ambit_net::sys::process::{Signal, kill};

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT, app, binary, block_on, other_program, sum};
use crate::policy::connects;

/// A marker in every request, which a listener on the wire must not read.
const MARKER: &str = "marker-7d20c4e1";
const CAPTURE_LIMIT_BYTES: u64 = 256 << 20;
/// Bytes each way of the transfer.
const BULK_BYTES: u64 = 8 << 20;
/// Requests of each load.
const REQUESTS: u64 = 200;
/// A pod that starts after the sidecars, and so has none.
const LATE: &str = "{apiVersion: v1, kind: Pod, metadata: {name: late, namespace: outside}, spec: \
    {nodeName: node-1, containers: [{name: late, image: 'ambit/sample:1', args: [sleep]}]}}";

/// Ports with no declared protocol.
const UNNAMED: &str = "
apiVersion: v1
kind: Service
metadata: {name: plain, namespace: app}
spec: {selector: {app: unnamed}, ports: [{port: 8082}]}
---
apiVersion: v1
kind: Service
metadata: {name: stream, namespace: app}
spec: {selector: {app: unnamed}, ports: [{port: 9002}]}
---
apiVersion: v1
kind: Pod
metadata: {name: unnamed, namespace: app, labels: {app: unnamed}}
spec:
  nodeName: node-2
  containers:
  - {name: plain, image: 'ambit/sample:1', args: [echo, --listen, '[::]:8082']}
  - {name: stream, image: 'ambit/sample:1', args: [tcp-echo, --listen, '[::]:9002']}
";

#[test]
#[ignore = "needs a program that AMBIT_ENVOY names"]
fn envoy_carries_the_pods_traffic() {
    let envoy = other_program("AMBIT_ENVOY");
    let machine = bare("envoy");
    let sidecars = carried(&machine, SidecarKind::Envoy, &envoy);
    let stats = ask(&machine, "app/server", 15000, "/stats?usedonly");
    let allowed = |name: &str| counter(&stats, &format!("{name}.rbac.allowed"));
    assert_eq!(allowed("http.inbound_0.0.0.0_8080"), 2 * REQUESTS, "{stats}");
    assert!(allowed("tcp") > 0, "{stats}");
    let stats = ask(&machine, "app/unnamed", 15000, "/stats?usedonly");
    assert_eq!(counter(&stats, "http.inbound_0.0.0.0_8082.rbac.allowed"), REQUESTS, "{stats}");
    ended(&machine, sidecars);
    refused(&machine, SidecarKind::Envoy);
    gone_with_the_machine(machine, SidecarKind::Envoy, &envoy);
}

#[test]
#[ignore = "needs a program that AMBIT_LINKERD names"]
fn linkerd_carries_the_pods_traffic() {
    let linkerd = other_program("AMBIT_LINKERD");
    let machine = bare("linkerd");
    let sidecars = carried(&machine, SidecarKind::Linkerd, &linkerd);
    let client = "client_id=\"load.client.serviceaccount.identity.linkerd.cluster.local\"";
    for (pod, requests) in [("app/server", 2 * REQUESTS), ("app/unnamed", REQUESTS)] {
        let metrics = ask(&machine, pod, 4191, "/metrics");
        let labels = ["direction=\"inbound\"", "tls=\"true\"", client];
        assert_eq!(sum(&metrics, "request_total", &labels), requests, "{metrics}");
        let allowed = sum(&metrics, "inbound_tcp_authz_allow_total", &["tls=\"true\"", client]);
        assert!(allowed > 0, "{metrics}");
        let labels = ["direction=\"inbound\"", "peer=\"src\"", client, "_port=\"80"];
        let connections = sum(&metrics, "tcp_open_total", &labels);
        assert_eq!(connections, 1, "HTTP/2 between proxies: {metrics}");
    }
    ended(&machine, sidecars);
    refused(&machine, SidecarKind::Linkerd);
    gone_with_the_machine(machine, SidecarKind::Linkerd, &linkerd);
}

/// A machine without the mesh, and the application on it.
fn bare(name: &'static str) -> Machine {
    let machine = Machine::none(name);
    let config = UpConfig {
        state: machine.layout.root().to_owned(),
        nodes: 2,
        binary: binary(),
        mesh: false,
        images: ImageMap::default(),
        node_labels: Default::default(),
        host_paths: Vec::new(),
        confined: false,
        limits: false,
        egress: None,
        proxies: Default::default(),
        arguments: Default::default(),
        environment: Default::default(),
        link: Default::default(),
    };
    block_on(up(&config, |_| {})).expect("the machine starts");
    machine.apply(&app(Mesh::Off));
    machine.apply(UNNAMED);
    ready(&machine);
    assert!(connects(&machine, "client/load", "web.app"), "without sidecars");
    machine
}

fn ready(machine: &Machine) {
    let client = ambit_machine::Client::new(machine.layout.clone());
    block_on(client.wait_until_ready(SETTLE_TIMEOUT, |_| {})).expect("all pods are ready");
}

fn logs(machine: &Machine) -> PathBuf {
    machine.layout.root().join("sidecars")
}

fn start(machine: &Machine, kind: SidecarKind, program: &Path) -> Result<Sidecars, String> {
    let client = ambit_machine::Client::new(machine.layout.clone());
    let started = block_on(Sidecars::start(kind, program, &client, &logs(machine)));
    started.map_err(|error| format!("{:#}", anyhow::Error::new(error)))
}

/// What is on the wire between the nodes while something happens.
fn listened(machine: &Machine, happens: impl FnOnce()) -> Trace {
    let file = machine.layout.root().join("wire.pcap");
    machine.ask(async |client| client.start_capture(&file, CAPTURE_LIMIT_BYTES).await);
    happens();
    machine.ask(async |client| client.stop_capture().await);
    Trace::read(&file).expect("the capture can be read")
}

/// Requests with the marker.
fn requests(machine: &Machine, target: &str) {
    let words = format!(
        "load http://{target} --connections 4 --rate max --requests {REQUESTS} \
         --header X-Marker:{MARKER}"
    );
    let report = machine.load("client/load", &words).http();
    assert_eq!((report.requests, report.failed), (REQUESTS, 0), "{target}: {report:#?}");
    eprintln!("{target}: p50 {} us", report.latency.p50_us as u64);
}

/// Requests on connections that stay and on new ones, and a stream, between nodes: all through
/// sidecars, and nothing of it readable.
fn carried(machine: &Machine, kind: SidecarKind, program: &Path) -> Sidecars {
    eprintln!("{}", block_on(version(kind, program)).expect("it tells its version"));
    let plain = listened(machine, || requests(machine, "web.app/"));
    assert!(plain.count_marker(MARKER.as_bytes()) > 0, "without sidecars all can be read");
    let started = Instant::now();
    let sidecars = start(machine, kind, program).expect("the sidecars start");
    eprintln!("{} sidecars in {:.1?}", sidecars.pids().len(), started.elapsed());
    assert_eq!(sidecars.pids().len(), machine.pods().len());
    let trace = listened(machine, || {
        for target in ["web.app/?size=1000", "web.app/ --close", "plain.app:8082/"] {
            requests(machine, target);
        }
        for target in ["echo.app:9000", "web6.app:9000", "stream.app:9002"] {
            let words = format!("bulk {target} --bytes {BULK_BYTES}");
            let result = machine.load("client/load", &words).bulk();
            assert!(result.matching && result.bytes_each_way == BULK_BYTES, "{target}: {result:?}");
        }
        // Linkerd waits ten seconds for the client's first bytes, by default.
        let said = machine.bash("client/load", "timeout 25 head -n 1 < /dev/tcp/banner.app/9001");
        assert!(said.contains("220 speaks first"), "{said}");
    });
    assert!(trace.streams().iter().any(|stream| stream.payload.len() > 1 << 20), "it saw them");
    assert_eq!(trace.count_marker(MARKER.as_bytes()), 0, "nothing is readable on the wire");
    machine.apply(LATE);
    ready(machine);
    assert!(!connects(machine, "outside/late", "web.app"), "mutual TLS is strict");
    sidecars.alive().expect("all of them live");
    sidecars
}

/// A sidecar that dies is reported by name; at the end nothing is left of any.
fn ended(machine: &Machine, sidecars: Sidecars) {
    let pids = sidecars.pids();
    kill(pids[0], Signal::Kill).expect("it lives");
    machine.wait("the death is told", Duration::from_secs(5), || sidecars.alive().is_err());
    let told = sidecars.alive().expect_err("one is dead").to_string();
    assert!(told.starts_with("the sidecar of ") && told.contains("signal: 9"), "{told}");
    eprintln!("{told}");
    sidecars.stop().expect("all end");
    assert!(pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()), "{pids:?}");
    assert!(connects(machine, "outside/late", "web.app"), "the pods are as before");
    assert!(connects(machine, "client/load", "web.app"), "the pods are as before");
}

/// What cannot run is refused with a reason, and leaves nothing.
fn refused(machine: &Machine, kind: SidecarKind) {
    for (program, reason) in [
        ("/no/such/program", "cannot run /no/such/program as user"),
        ("/etc/passwd", "cannot run /etc/passwd as user"),
        ("/bin/false", "ended with exit status: 1"),
    ] {
        let told = start(machine, kind, Path::new(program)).expect_err("it is no sidecar");
        assert!(told.contains(reason), "{told}");
        eprintln!("{told}");
    }
    assert!(connects(machine, "client/load", "web.app"), "the pods are as before");
}

/// A machine that is taken down takes its sidecars along.
fn gone_with_the_machine(machine: Machine, kind: SidecarKind, program: &Path) {
    let sidecars = start(&machine, kind, program).expect("the sidecars start");
    let (pids, footprint) = (sidecars.pids(), machine.footprint());
    machine.run(&["down"]);
    assert!(pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()), "{pids:?}");
    drop(sidecars);
    machine.was_taken_down(&footprint);
}

/// A sidecar's administration, asked inside its pod.
fn ask(machine: &Machine, pod: &str, port: u16, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n");
    let address = format!("/dev/tcp/127.0.0.1/{port}");
    let script = format!("exec 3<>{address} && printf '{request}' >&3 && timeout 10 cat <&3");
    machine.bash(pod, &script)
}

/// A counter as Envoy writes it.
fn counter(stats: &str, name: &str) -> u64 {
    let mut values = stats.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    values.next().and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}
