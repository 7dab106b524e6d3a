//! Checks on the dependency graph: crate edges, licences, and who may name rustls.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

/// Which of our crates each crate may import.
const EDGES: [(&str, &[&str]); 11] = [
    ("ambit-model", &[]),
    ("ambit-wire", &["ambit-model"]),
    ("ambit-tls", &["ambit-model"]),
    ("ambit-net", &["ambit-model", "ambit-wire", "ambit-tls"]),
    ("ambit-proxy", ROLE),
    ("ambit-waypoint", ROLE),
    ("ambit-control", ROLE),
    ("ambit-node", ROLE),
    ("ambit-lab", LAB),
    ("ambit-cluster", &[]),
    ("ambit-cli", EVERYTHING),
];
const ROLE: &[&str] = &["ambit-model", "ambit-wire", "ambit-tls", "ambit-net"];
/// The experiments on a cluster use what a user's command knows of one.
const LAB: &[&str] = &["ambit-model", "ambit-wire", "ambit-tls", "ambit-net", "ambit-cluster"];
const EVERYTHING: &[&str] = &[
    "ambit-model",
    "ambit-wire",
    "ambit-tls",
    "ambit-net",
    "ambit-proxy",
    "ambit-waypoint",
    "ambit-control",
    "ambit-node",
    "ambit-lab",
    "ambit-cluster",
];

/// External crates that only some of ours may name.
const RESERVED: [(&str, &[&str]); 7] = [
    ("rustls", &["ambit-tls"]),
    ("tokio-rustls", &["ambit-tls"]),
    ("k8s-openapi", &["ambit-cluster", "ambit-control", "ambit-lab", "ambit-node"]),
    ("libc", &["ambit-net"]),
    ("nix", &[]),
    ("openssl", &[]),
    ("serde_yaml", &[]),
];
/// What the model must never contain.
const NOT_IN_MODEL: [&str; 6] = ["tokio", "prost", "tonic", "kube", "rand", "k8s-openapi"];

const LICENCES: [&str; 14] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "MIT",
    "MIT-0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "OpenSSL",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Mozilla's licence binds changed files of that library only; nothing of ours is derived of it.
const FILE_COPYLEFT: [(&str, &str); 3] =
    [("imbl", "MPL-2.0+"), ("imbl-sized-chunks", "MPL-2.0+"), ("bitmaps", "MPL-2.0+")];

/// Checks the whole graph.
pub(super) fn check(wrong: &mut Vec<String>) -> Result<()> {
    let output = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
        .args(["metadata", "--format-version", "1"])
        .output()
        .context("ask cargo for the dependency graph")?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("read cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists packages")?;
    let mut licensed = 0;
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        if package["source"].is_null() {
            check_edges(name, package, wrong);
        } else {
            licensed += 1;
            check_licence(name, package, wrong);
        }
    }
    println!("licences: {licensed} dependencies looked at");
    Ok(())
}

fn check_edges(name: &str, package: &Value, wrong: &mut Vec<String>) {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let shipped = dependencies.filter(|d| d["kind"].is_null());
    let names: Vec<&str> = shipped.filter_map(|d| d["name"].as_str()).collect();
    let allowed = EDGES.iter().find(|(krate, _)| *krate == name).map(|(_, to)| *to);
    for dependency in names {
        let ours = dependency.starts_with("ambit-");
        if ours && !allowed.is_some_and(|to| to.contains(&dependency)) {
            wrong.push(format!("{name} must not import {dependency}"));
        }
        let reserved = RESERVED.iter().find(|(krate, _)| *krate == dependency);
        if reserved.is_some_and(|(_, to)| !to.contains(&name)) {
            wrong.push(format!("{name} must not name {dependency}"));
        }
        if name == "ambit-model" && NOT_IN_MODEL.contains(&dependency) {
            wrong.push(format!("ambit-model must not contain {dependency}"));
        }
    }
}

fn check_licence(name: &str, package: &Value, wrong: &mut Vec<String>) {
    let licence = package["license"].as_str().unwrap_or_default();
    let excepted = FILE_COPYLEFT.contains(&(name, licence));
    if !excepted && !allowed(licence) {
        wrong.push(format!("dependency {name}: licence {licence:?} is not on the list"));
    }
}

/// Whether an SPDX expression can be satisfied with the listed licences: any side of an OR, every
/// side of an AND.
fn allowed(expression: &str) -> bool {
    let flat = expression.replace('/', " OR ").replace(['(', ')'], "");
    let mut sides = flat.split(" AND ");
    !flat.is_empty()
        && sides.all(|side| side.split(" OR ").any(|one| LICENCES.contains(&one.trim())))
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn licence_expressions() {
        assert!(allowed("MIT OR Apache-2.0"));
        assert!(allowed("MIT/Apache-2.0"));
        assert!(allowed("Apache-2.0 AND (MIT OR GPL-3.0)"));
        assert!(!allowed("GPL-3.0"));
        assert!(!allowed("MIT AND GPL-2.0"));
        assert!(!allowed(""));
    }
}
