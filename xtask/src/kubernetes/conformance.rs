//! `cargo xtask conformance`: the Gateway API's own conformance suite, against a mesh with a
//! waypoint and against gateways at the edge.
//!
//! First the control: with no mesh, the tests that tell a mesh from luck must fail. Then all tests
//! of the profiles, for every feature that our GatewayClasses say they have, and for every feature
//! of meshes. The suite and its applications are built from the modules that the Gateway API and
//! Istio publish.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::cluster::Cluster;
use super::kit;
use crate::image::{Compression, Entry, Image};

/// The application of the suite's meshes; its address is the one of the suite's manifests.
const ECHO_IMAGE: &str = "registry.k8s.io/gateway-api/echo-advanced:v1.5.1";
/// Where its programs come from.
const ECHO_PACKAGES: &str = "istio.io/istio/pkg/test/echo/cmd";
const ECHO_PROGRAMS: [&str; 2] = ["client", "server"];
/// The application of the suite's gateways, under each of the names in its manifests.
const BASIC_IMAGES: [&str; 3] = [
    "registry.k8s.io/gateway-api/echo-basic:v1.5.1",
    "registry.k8s.io/gateway-api/echo-basic:v1.6.0-dev.2",
    "registry.k8s.io/gateway-api/echo-basic:v1.6.0-dev.3",
];
const BASIC_PACKAGE: &str = "sigs.k8s.io/gateway-api/conformance/echo-basic";
/// The name server in its manifests; it gets the cluster's own.
const DNS_IMAGE: &str = "registry.k8s.io/coredns/coredns:v1.12.2";
const WAYPOINT_CLASS: &str = "ambit-waypoint";
const EDGE_CLASS: &str = "ambit";
/// What the suite makes, and deletes without waiting for it.
const NAMESPACES: [&str; 5] = [
    "gateway-conformance-mesh",
    "gateway-conformance-mesh-consumer",
    "gateway-conformance-infra",
    "gateway-conformance-app-backend",
    "gateway-conformance-web-backend",
];
const MESH_PROFILES: &str = "MESH-HTTP,MESH-GRPC";
const PROFILES: &str =
    "GATEWAY-HTTP,GATEWAY-GRPC,GATEWAY-TLS,GATEWAY-TCP,GATEWAY-UDP,MESH-HTTP,MESH-GRPC";
/// An address that the cluster's load balancer gives, and one that it does not.
const USABLE_ADDRESS: &str = "10.66.1.200";
const UNUSABLE_ADDRESS: &str = "10.66.2.200";
/// Features of meshes, which a GatewayClass has no place for.
const MESH_FEATURES: [&str; 10] = [
    "Mesh",
    "MeshClusterIPMatching",
    "MeshConsumerRoute",
    "MeshHTTPRouteBackendRequestHeaderModification",
    "MeshHTTPRouteNamedRouteRule",
    "MeshHTTPRouteQueryParamMatching",
    "MeshHTTPRouteRedirectPath",
    "MeshHTTPRouteRedirectPort",
    "MeshHTTPRouteRewritePath",
    "MeshHTTPRouteSchemeRedirect",
];
/// Tests that pass only where something routes: others pass by luck without a mesh.
const DISCRIMINATING: [&str; 3] = [
    "MeshHTTPRouteRedirectHostAndStatus",
    "MeshHTTPRouteRequestHeaderModifier",
    "MeshHTTPRouteWeight",
];
/// What the control may wait for each answer; it waits in vain.
const CONTROL_OPTIONS: &str = "timeoutConfig: {maxTimeToConsistency: 5s}\n";
const CLASS_TIMEOUT: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(250);

/// Builds the suite and its application's image.
pub(super) fn build(state: &Path) -> Result<()> {
    let programs = state.join("bin");
    kit::go_build_tests("conformance", &programs.join("conformance"))?;
    let (key, certificate) = (state.join("img/echo.key"), state.join("img/echo.crt"));
    if !certificate.exists() {
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650"]);
        openssl.args(["-subj", "/CN=echo", "-keyout"]).arg(&key).arg("-out").arg(&certificate);
        kit::run(openssl.stderr(Stdio::null()))?;
    }
    let read = |path: &Path| fs::read(path).with_context(|| format!("read {}", path.display()));
    let mut entries = vec![
        Entry::program("/cert.key", read(&key)?),
        Entry::program("/cert.crt", read(&certificate)?),
        Entry::text("/etc/nsswitch.conf", "hosts: files dns\n"),
        Entry::text("/tmp/nothing", ""),
    ];
    for name in ECHO_PROGRAMS {
        let program = programs.join(format!("echo-{name}"));
        kit::go_build("echo", &format!("{ECHO_PACKAGES}/{name}"), "-s -w", &program)?;
        entries.push(Entry::program(&format!("/usr/local/bin/{name}"), read(&program)?));
    }
    write(state, "echo", ECHO_IMAGE, "/usr/local/bin/server", entries)?;
    let basic = programs.join("echo-basic");
    kit::go_build("conformance", BASIC_PACKAGE, "-s -w", &basic)?;
    let basic = read(&basic)?;
    for (index, name) in BASIC_IMAGES.into_iter().enumerate() {
        let entries = vec![Entry::program("/echo-basic", basic.clone())];
        write(state, &format!("echo-basic-{index}"), name, "/echo-basic", entries)?;
    }
    let dns = vec![Entry::program("/coredns", read(&programs.join("dns"))?)];
    write(state, "coredns", DNS_IMAGE, "/coredns", dns)
}

fn write(
    state: &Path,
    file: &str,
    name: &str,
    entry_point: &str,
    entries: Vec<Entry>,
) -> Result<()> {
    let image = Image {
        name: name.to_owned(),
        entry_point: entry_point.to_owned(),
        created_unix: 0,
        entries,
        compression: Compression::None,
    };
    image.write(&state.join(format!("img/{file}.tar"))).map(drop)
}

/// Installs the Gateway API, of the experimental channel if that is wanted, and waits until our
/// classes say what they can do.
pub(super) fn install(cluster: &Cluster, is_experimental: bool) -> Result<()> {
    let channel = if is_experimental { "experimental" } else { "standard" };
    let definitions = kit::gateway_api()?.join("config/crd").join(channel);
    let flag = if is_experimental { "-k" } else { "-f" };
    cluster.kubectl(&["apply", "--server-side", flag, &definitions.to_string_lossy()])?;
    for class in [WAYPOINT_CLASS, EDGE_CLASS] {
        let start = Instant::now();
        while features(cluster, class).unwrap_or_default().is_empty() {
            ensure!(
                start.elapsed() < CLASS_TIMEOUT,
                "the GatewayClass {class} does not say what it can do"
            );
            std::thread::sleep(STEP);
        }
    }
    Ok(())
}

/// The features that a GatewayClass says it has, with commas.
fn features(cluster: &Cluster, class: &str) -> Result<String> {
    let path = "jsonpath={.status.supportedFeatures[*].name}";
    let said = cluster.kubectl(&["get", "gatewayclass", class, "-o", path])?;
    Ok(said.split_whitespace().collect::<Vec<_>>().join(","))
}

/// The control: the discriminating tests must fail where there is no mesh.
pub(super) fn control(cluster: &Cluster) -> Result<()> {
    let options = cluster.state().join("conformance-control.yaml");
    fs::write(&options, CONTROL_OPTIONS).context("write the control's options")?;
    let mut suite = command(cluster, WAYPOINT_CLASS, MESH_PROFILES)?;
    suite.args(["--conformance-options-file", &options.to_string_lossy()]);
    suite.args(["--only", &DISCRIMINATING.join(",")]);
    let (_, said) = watch(cluster, suite, "conformance-control.log")?;
    for test in DISCRIMINATING {
        let failed = format!("--- FAIL: TestConformance/{test} ");
        ensure!(said.contains(&failed), "without a mesh {test} does not fail: it proves nothing");
    }
    Ok(())
}

/// All tests, or those that are named; the report lies in the state directory.
pub(super) fn test(cluster: &Cluster, only: &[String]) -> Result<()> {
    let report = cluster.state().join("conformance-report.yaml");
    let version = env!("CARGO_PKG_VERSION");
    let mut suite = command(cluster, EDGE_CLASS, PROFILES)?;
    suite.args(["--namespace-labels", "istio.io/dataplane-mode=ambient"]);
    suite.args(["--waypoint-class", WAYPOINT_CLASS, "--report-output", &report.to_string_lossy()]);
    suite.args(["--usable-address", USABLE_ADDRESS, "--unusable-address", UNUSABLE_ADDRESS]);
    suite.args(["--organization", "ambit", "--project", "ambit", "--version", version]);
    suite.args(["--url", "README.md", "--contact", "SECURITY.md"]);
    if !only.is_empty() {
        suite.args(["--only", &only.join(",")]);
    }
    let (passed, said) = watch(cluster, suite, "conformance.log")?;
    // Their own lines are indented once; those of their parts are twice.
    let of = |verdict: &str| -> Vec<String> {
        let start = format!("    --- {verdict}: TestConformance/");
        said.lines().filter_map(|it| it.strip_prefix(&start)).map(str::to_owned).collect()
    };
    let (passes, failures, skips) = (of("PASS"), of("FAIL"), of("SKIP"));
    for (verdict, tests) in [("failed", &failures), ("skipped", &skips)] {
        tests.iter().for_each(|test| println!("{verdict}: {test}"));
    }
    println!(
        "{PROFILES}: {} tests passed, {} failed, {} skipped; {}",
        passes.len(),
        failures.len(),
        skips.len(),
        report.display()
    );
    ensure!(passed && failures.is_empty(), "see {}/conformance.log", cluster.state().display());
    ensure!(!passes.is_empty() && skips.is_empty(), "tests were skipped");
    Ok(())
}

/// The suite with what both runs have, not started yet.
fn command(cluster: &Cluster, class: &str, profiles: &str) -> Result<Command> {
    let claimed = features(cluster, class)?;
    let mut suite = cluster.inside(&cluster.state().join("bin/conformance"));
    suite.args(["-test.v", "-test.timeout", "90m", "--gateway-class", class]);
    suite.args(["--conformance-profiles", profiles]);
    suite.args(["--supported-features", &format!("{claimed},{}", MESH_FEATURES.join(","))]);
    Ok(suite)
}

/// Runs the suite, once what an earlier run made is gone; answers whether it succeeded, and what it
/// said.
fn watch(cluster: &Cluster, mut suite: Command, log: &str) -> Result<(bool, String)> {
    let delete = ["delete", "namespace", "--ignore-not-found", "--timeout=120s"];
    cluster.kubectl(&[&delete[..], &NAMESPACES].concat())?;
    let path = cluster.state().join(log);
    let file = fs::File::create(&path).context("make a log")?;
    suite.stdin(Stdio::null()).stderr(file.try_clone().context("share a log")?).stdout(file);
    let status = suite.status().context("start the conformance suite")?;
    let said = fs::read(&path).context("read the log")?;
    Ok((status.success(), String::from_utf8_lossy(&said).into_owned()))
}
