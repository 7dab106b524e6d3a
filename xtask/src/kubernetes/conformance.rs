//! `cargo xtask e2e conformance`: the Gateway API's own conformance suite, against a waypoint.
//!
//! First the control: with no mesh, the tests that tell a mesh from luck must fail. Then all tests
//! of the two profiles for meshes, for every feature that our GatewayClass says it has, and for
//! every feature of meshes. The suite and its applications are built from the modules that the
//! Gateway API and Istio publish.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::cluster::Cluster;
use super::kit;
use crate::image::{Compression, Entry, Image};

/// The application of the suite's meshes; its address is the one of the suite's manifests.
const ECHO_IMAGE: &str = "registry.k8s.io/gateway-api/echo-advanced:v1.5.1";
/// Where its programs come from.
const ECHO_PACKAGES: &str = "istio.io/istio/pkg/test/echo/cmd";
const ECHO_PROGRAMS: [&str; 2] = ["client", "server"];
const CLASS: &str = "ambit-waypoint";
/// What the suite makes, and deletes without waiting for it.
const NAMESPACES: [&str; 2] = ["gateway-conformance-mesh", "gateway-conformance-mesh-consumer"];
const PROFILES: &str = "MESH-HTTP,MESH-GRPC";
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
    let image = Image {
        name: ECHO_IMAGE.to_owned(),
        entry_point: "/usr/local/bin/server".to_owned(),
        created_unix: 0,
        entries,
        compression: Compression::None,
    };
    image.write(&state.join("img/echo.tar")).map(drop)
}

/// Installs the Gateway API and waits until the class of waypoints says what it can do.
pub(super) fn install(cluster: &Cluster) -> Result<()> {
    let definitions = kit::gateway_api()?.join("config/crd/standard");
    cluster.kubectl(&["apply", "--server-side", "-f", &definitions.to_string_lossy()])?;
    let start = Instant::now();
    let words = ["get", "gatewayclass", CLASS, "-o", "jsonpath={.status.supportedFeatures}"];
    loop {
        match cluster.kubectl(&words) {
            Ok(features) if !features.is_empty() => return Ok(()),
            _ if start.elapsed() > CLASS_TIMEOUT => {
                bail!("the GatewayClass {CLASS} does not say what it can do")
            }
            _ => std::thread::sleep(STEP),
        }
    }
}

/// The control: the discriminating tests must fail where there is no mesh.
pub(super) fn control(cluster: &Cluster) -> Result<()> {
    let options = cluster.state().join("conformance-control.yaml");
    fs::write(&options, CONTROL_OPTIONS).context("write the control's options")?;
    let mut suite = command(cluster)?;
    suite.args(["--conformance-options-file", &options.to_string_lossy()]);
    suite.args(["--only", &DISCRIMINATING.join(",")]);
    let (_, said) = watch(cluster, suite, "conformance-control.log")?;
    for test in DISCRIMINATING {
        let failed = format!("--- FAIL: TestConformance/{test} ");
        ensure!(said.contains(&failed), "without a mesh {test} does not fail: it proves nothing");
    }
    Ok(())
}

/// All tests; the report lies in the state directory.
pub(super) fn test(cluster: &Cluster) -> Result<()> {
    let report = cluster.state().join("conformance-report.yaml");
    let version = env!("CARGO_PKG_VERSION");
    let mut suite = command(cluster)?;
    suite.args(["--namespace-labels", "istio.io/dataplane-mode=ambient"]);
    suite.args(["--waypoint-class", CLASS, "--report-output", &report.to_string_lossy()]);
    suite.args(["--organization", "ambit", "--project", "ambit", "--version", version]);
    suite.args(["--url", "README.md", "--contact", "SECURITY.md"]);
    let (passed, said) = watch(cluster, suite, "conformance.log")?;
    let count = |verdict: &str| {
        let line = format!("    --- {verdict}: TestConformance/Mesh");
        said.lines().filter(|it| it.starts_with(&line)).count()
    };
    for line in said.lines().filter(|it| it.trim_start().starts_with("--- FAIL")) {
        println!("{line}");
    }
    let (passes, failures, skips) = (count("PASS"), count("FAIL"), count("SKIP"));
    println!(
        "{PROFILES}: {passes} tests passed, {failures} failed, {skips} skipped; {}",
        report.display()
    );
    ensure!(passed && failures == 0, "see {}/conformance.log", cluster.state().display());
    ensure!(passes > 0 && skips == 0, "tests for meshes were skipped");
    Ok(())
}

/// The suite with what both runs have, not started yet.
fn command(cluster: &Cluster) -> Result<Command> {
    let words =
        ["get", "gatewayclass", CLASS, "-o", "jsonpath={.status.supportedFeatures[*].name}"];
    let claimed = cluster.kubectl(&words)?;
    let features: Vec<&str> = claimed.split_whitespace().chain(MESH_FEATURES).collect();
    let mut suite = cluster.inside(&cluster.state().join("bin/conformance"));
    suite.args(["-test.v", "-test.timeout", "20m", "--gateway-class", CLASS]);
    suite.args(["--conformance-profiles", PROFILES]);
    suite.args(["--supported-features", &features.join(",")]);
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
