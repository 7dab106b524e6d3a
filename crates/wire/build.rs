//! Generates the protobuf messages and gRPC stubs, without an external `protoc`.

use std::error::Error;
use std::path::Path;

/// Every file that is compiled; imports are found under `proto`.
const FILES: [&str; 11] = [
    "istio/workload.proto",
    "istio/authorization.proto",
    "istio/zds.proto",
    "istio/citadel.proto",
    "envoy/discovery.proto",
    "envoy/auth.proto",
    "envoy/ratelimit.proto",
    "ambit/http.proto",
    "ambit/snapshot.proto",
    "kubernetes/pods.proto",
    "opentelemetry/otlp.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    println!("cargo:rerun-if-changed={}", root.display());
    let descriptors = protox::compile(FILES, [&root])?;
    tonic_prost_build::configure()
        .bytes(".istio")
        .bytes(".ambit")
        .bytes(".kubernetes")
        .bytes(".envoy.service.auth")
        .bytes(".envoy.service.ratelimit")
        .bytes(".opentelemetry")
        .bytes(".envoy.service.discovery.v3.HeldVersion")
        .bytes(".envoy.service.discovery.v3.DeltaDiscoveryRequest")
        .bytes(".envoy.service.discovery.v3.DeltaDiscoveryResponse")
        // It holds a private key: `proto` says what of it is displayed.
        .skip_debug([".ambit.http.Certificate"])
        // Sorted, so that equal resources have equal bytes and with them equal versions.
        .btree_map(".")
        // prost's own `Any` copies its value; ours shares the receive buffer.
        .extern_path(".google.protobuf.Any", "crate::proto::Any")
        .compile_fds(descriptors)?;
    Ok(())
}
