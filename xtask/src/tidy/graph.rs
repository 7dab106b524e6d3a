//! Checks on the dependency graph: crate edges, licences, which crate may name rustls, and that
//! every declared dependency is used.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// How the names of our crates begin.
const OURS: &str = "ambit-";
/// The crate that every other may import: it depends on nothing and holds words alone.
const WORDS: &str = "ambit-words";

/// Which of our crates each crate may import, besides [`WORDS`].
const EDGES: [(&str, &[&str]); 23] = [
    (WORDS, &[]),
    ("ambit-apiserver", &[]),
    ("ambit-kubeapi", &["ambit-kustomize"]),
    ("ambit-kustomize", &[]),
    ("ambit-image", &[]),
    ("ambit-model", &[]),
    ("ambit-log", &["ambit-model"]),
    ("ambit-http", &["ambit-model", "ambit-wire", "ambit-net", "ambit-tls"]),
    ("ambit-wire", &["ambit-model"]),
    ("ambit-tls", &["ambit-model"]),
    ("ambit-net", &["ambit-wire", "ambit-tls"]),
    ("ambit-manifest", &["ambit-model", "ambit-kustomize"]),
    ("ambit-dataplane", DATAPLANE),
    ("ambit-proxy", PROXY),
    ("ambit-waypoint", WAYPOINT),
    ("ambit-control", CONTROL),
    ("ambit-node", NODE),
    ("ambit-plan", &["ambit-model", "ambit-manifest"]),
    ("ambit-load", &["ambit-model", "ambit-net"]),
    ("ambit-machine", MACHINE),
    ("ambit-bench", BENCH),
    ("ambit-cluster", &["ambit-wire", "ambit-apiserver"]),
    ("ambit-cli", EVERYTHING),
];
const DATAPLANE: &[&str] = &["ambit-model", "ambit-log", "ambit-wire", "ambit-tls", "ambit-net"];
/// Every proxy is made of the same parts.
const PROXY: &[&str] = &["ambit-model", "ambit-wire", "ambit-tls", "ambit-net", "ambit-dataplane"];
const WAYPOINT: &[&str] =
    &["ambit-model", "ambit-wire", "ambit-tls", "ambit-net", "ambit-dataplane", "ambit-http"];
const CONTROL: &[&str] = &[
    "ambit-model",
    "ambit-http",
    "ambit-log",
    "ambit-wire",
    "ambit-tls",
    "ambit-net",
    "ambit-manifest",
    "ambit-apiserver",
];
const NODE: &[&str] = &["ambit-model", "ambit-wire", "ambit-tls", "ambit-net", "ambit-apiserver"];
/// It serves the Kubernetes API on the host's loopback, with TLS of its own.
const MACHINE: &[&str] = &[
    "ambit-image",
    "ambit-kubeapi",
    "ambit-log",
    "ambit-manifest",
    "ambit-model",
    "ambit-net",
    "ambit-tls",
];
/// The experiments on a cluster use what a user's command knows of one.
const BENCH: &[&str] = &[
    "ambit-apiserver",
    "ambit-model",
    "ambit-wire",
    "ambit-tls",
    "ambit-net",
    "ambit-cluster",
    "ambit-plan",
    "ambit-load",
    "ambit-machine",
];
const EVERYTHING: &[&str] = &[
    "ambit-image",
    "ambit-model",
    "ambit-log",
    "ambit-wire",
    "ambit-tls",
    "ambit-net",
    "ambit-manifest",
    "ambit-proxy",
    "ambit-waypoint",
    "ambit-control",
    "ambit-node",
    "ambit-plan",
    "ambit-load",
    "ambit-machine",
    "ambit-bench",
    "ambit-cluster",
];

/// External crates that only some of ours may name.
const RESERVED: [(&str, &[&str]); 7] = [
    ("rustls", &["ambit-tls"]),
    ("tokio-rustls", &["ambit-tls"]),
    (
        "k8s-openapi",
        &[
            "ambit-cluster",
            "ambit-control",
            "ambit-machine",
            "ambit-manifest",
            "ambit-node",
            "ambit-plan",
        ],
    ),
    ("libc", &["ambit-net"]),
    ("nix", &[]),
    ("openssl", &[]),
    ("serde_yaml", &[]),
];
/// Dependencies that only sources name which a build script writes.
const USED_BY_GENERATED: [(&str, &str); 1] = [("ambit-wire", "tonic-prost")];
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

/// Checks the whole graph; says which of our crates each of them imports, by short names.
pub(super) fn check(wrong: &mut Vec<String>) -> Result<BTreeMap<String, Vec<String>>> {
    let output = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
        .args(["metadata", "--format-version", "1"])
        .output()
        .context("ask cargo for the dependency graph")?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("read cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists packages")?;
    let mut licensed = 0;
    let mut imports = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        if package["source"].is_null() {
            check_edges(name, package, wrong);
            imports.insert(name.trim_start_matches(OURS).to_owned(), imported(package));
            check_used(name, package, packages, wrong)?;
        } else {
            licensed += 1;
            check_licence(name, package, wrong);
        }
    }
    check_listed(wrong)?;
    println!("licences: {licensed} dependencies looked at");
    Ok(imports)
}

/// What a package depends on where it ships.
fn shipped(package: &Value) -> impl Iterator<Item = &str> {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    dependencies.filter(|it| it["kind"].is_null()).filter_map(|it| it["name"].as_str())
}

fn imported(package: &Value) -> Vec<String> {
    shipped(package).filter_map(|it| it.strip_prefix(OURS)).map(str::to_owned).collect()
}

fn check_edges(name: &str, package: &Value, wrong: &mut Vec<String>) {
    let allowed = EDGES.iter().find(|(krate, _)| *krate == name).map(|(_, to)| *to);
    for dependency in shipped(package) {
        let bound = dependency.starts_with(OURS) && dependency != WORDS;
        if bound && !allowed.is_some_and(|to| to.contains(&dependency)) {
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

/// Every dependency is named by a source file of the package: each costs a reader and a build.
fn check_used(
    name: &str,
    package: &Value,
    packages: &[Value],
    wrong: &mut Vec<String>,
) -> Result<()> {
    let manifest = package["manifest_path"].as_str().context("a package has a manifest")?;
    let directory = Path::new(manifest).parent().context("a manifest lies in a directory")?;
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let listed = dependency["name"].as_str().context("a dependency has a name")?;
        let known = dependency["rename"].as_str().unwrap_or_else(|| library(packages, listed));
        let mut source = String::new();
        match dependency["kind"].as_str() {
            None => read_sources(&directory.join("src"), &mut source)?,
            Some("build") => read_source(&directory.join("build.rs"), &mut source)?,
            Some(_) => read_sources(directory, &mut source)?,
        }
        let is_generated = USED_BY_GENERATED.contains(&(name, listed));
        if !is_generated && !names(&source, &known.replace('-', "_")) {
            wrong.push(format!("{name} depends on {listed}, which none of its sources names"));
        }
    }
    Ok(())
}

/// Whatever the workspace lists, one of its packages takes from there.
fn check_listed(wrong: &mut Vec<String>) -> Result<()> {
    let listed = fs::read_to_string("Cargo.toml").context("read Cargo.toml")?;
    let mut packages = String::new();
    for directory in fs::read_dir("crates").context("read crates")? {
        let manifest = directory.context("read crates")?.path().join("Cargo.toml");
        read_source(&manifest, &mut packages)?;
    }
    read_source(Path::new("xtask/Cargo.toml"), &mut packages)?;
    let listed = listed.lines().skip_while(|line| *line != "[workspace.dependencies]").skip(1);
    for line in listed.take_while(|line| !line.starts_with('[')) {
        let Some((name, _)) = line.split_once(" = ") else { continue };
        let is_taken =
            |it: &str| it.starts_with(&format!("{name}.")) || it.starts_with(&format!("{name} "));
        if !line.starts_with('#') && !packages.lines().any(is_taken) {
            wrong.push(format!("Cargo.toml lists {name}, which no package takes"));
        }
    }
    Ok(())
}

/// The name of a package's library, which need not be its own.
fn library<'a>(packages: &'a [Value], package: &'a str) -> &'a str {
    let package_of = packages.iter().find(|it| it["name"] == package);
    let targets = package_of.and_then(|it| it["targets"].as_array()).into_iter().flatten();
    let kinds = [json!(["lib"]), json!(["rlib"]), json!(["proc-macro"])];
    let is_library = |target: &&Value| kinds.contains(&target["kind"]);
    let named = targets.filter(is_library).find_map(|it| it["name"].as_str());
    named.unwrap_or(package)
}

fn read_sources(directory: &Path, source: &mut String) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry.context("read a directory")?.path();
        if path.is_dir() && !path.ends_with("target") {
            read_sources(&path, source)?;
        } else if path.extension().is_some_and(|it| it == "rs") {
            read_source(&path, source)?;
        }
    }
    Ok(())
}

fn read_source(path: &Path, source: &mut String) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    source.push_str(&text);
    Ok(())
}

/// Whether source text has a path that begins with this crate.
fn names(text: &str, krate: &str) -> bool {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.into_iter().any(|line| {
        line.match_indices(krate).any(|(at, _)| {
            let (before, after) = (&line[..at], &line[at + krate.len()..]);
            let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            let is_imported = before.ends_with("use ") && after.starts_with([';', ' ']);
            !before.ends_with(is_part) && (after.starts_with("::") || is_imported)
        })
    })
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
    use super::{allowed, names};

    #[test]
    fn a_crate_is_named_by_a_path() {
        assert!(names("use h2::client;", "h2"));
        assert!(names("let it = slab::Slab::new();", "slab"));
        assert!(names("use rand;", "rand"));
        assert!(!names("use hyper_util::rt;", "hyper"));
        assert!(!names("let bytes = 1;", "bytes"));
        assert!(!names("    // see slab::Slab", "slab"));
    }

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
