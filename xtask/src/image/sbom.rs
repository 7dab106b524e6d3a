//! What the binary is made of: a CycloneDX 1.6 bill of materials of cargo's dependency tree.
//!
//! It lists only what is linked: dependencies of build scripts and tests are not in the binary. It
//! has no time and no serial number, so the same commit has the same bill.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// The package whose binary is shipped.
const ROOT: &str = "ambit-cli";

/// The bill of `ambit` as built for `triple`.
pub(crate) fn bill(triple: &str) -> Result<String> {
    let output = Command::new(crate::cargo::program())
        .args(["metadata", "--locked", "--format-version", "1", "--filter-platform", triple])
        .output()
        .context("ask cargo for the dependency tree")?;
    ensure!(output.status.success(), "cargo metadata failed");
    let metadata: Value = serde_json::from_slice(&output.stdout).context("read cargo metadata")?;
    let checksums = checksums(&std::fs::read_to_string("Cargo.lock").context("read Cargo.lock")?);
    let bill = compose(&metadata, &checksums)?;
    Ok(format!("{}\n", serde_json::to_string_pretty(&bill).context("write the bill")?))
}

fn compose(metadata: &Value, checksums: &BTreeMap<(String, String), String>) -> Result<Value> {
    let packages: BTreeMap<&str, &Value> = list(metadata, "packages")
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let edges: BTreeMap<&str, Vec<&str>> = list(&metadata["resolve"], "nodes")
        .filter_map(|node| Some((node["id"].as_str()?, linked(node))))
        .collect();
    let root = packages.iter().find(|(_, package)| package["name"] == ROOT);
    let (root, _) = root.with_context(|| format!("cargo metadata does not list {ROOT}"))?;
    let mut reached = BTreeSet::from([*root]);
    let mut open = vec![*root];
    while let Some(id) = open.pop() {
        for next in edges.get(id).into_iter().flatten() {
            if reached.insert(next) {
                open.push(next);
            }
        }
    }
    let reference = |id: &str| packages.get(id).map(|package| purl(package)).unwrap_or_default();
    let mut components: Vec<Value> = Vec::new();
    let mut dependencies: Vec<Value> = Vec::new();
    for id in &reached {
        let mut on: Vec<String> =
            edges.get(id).into_iter().flatten().map(|next| reference(next)).collect();
        on.sort();
        dependencies.push(json!({ "ref": reference(id), "dependsOn": on }));
        if id != root {
            components.extend(packages.get(id).map(|package| component(package, checksums)));
        }
    }
    components.sort_by_key(|component| component["purl"].to_string());
    dependencies.sort_by_key(|dependency| dependency["ref"].to_string());
    let mut application = component(packages[root], checksums);
    application["type"] = "application".into();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "component": application },
        "components": components,
        "dependencies": dependencies,
    }))
}

/// What a node links: its normal dependencies, not those of its build script or tests.
fn linked(node: &Value) -> Vec<&str> {
    let is_normal = |kind: &Value| kind["kind"].is_null();
    let dependencies = list(node, "deps");
    let normal = dependencies.filter(|dependency| list(dependency, "dep_kinds").any(is_normal));
    normal.filter_map(|dependency| dependency["pkg"].as_str()).collect()
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

fn purl(package: &Value) -> String {
    let text = |name: &str| package[name].as_str().unwrap_or_default();
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let text = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
    let mut component = json!({
        "type": "library",
        "bom-ref": purl(package),
        "name": text("name"),
        "version": text("version"),
        "purl": purl(package),
    });
    if let Some(licence) = package["license"].as_str() {
        // Some packages still write the slash of old for "or", which is no SPDX expression.
        let expression = licence.replace('/', " OR ");
        component["licenses"] = json!([{ "expression": expression }]);
    }
    if let Some(checksum) = checksums.get(&(text("name"), text("version"))) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

/// The checksums that `Cargo.lock` holds, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |block: &str, name: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
        line.map(|value| value.trim_end_matches('"').to_owned())
    };
    let blocks = lock.split("[[package]]");
    blocks
        .filter_map(|block| {
            let key = (field(block, "name")?, field(block, "version")?);
            Some((key, field(block, "checksum")?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_linked_is_listed() {
        let package = |name: &str| {
            let licence = "MIT/Apache-2.0";
            json!({ "id": name, "name": name, "version": "1.0.0", "license": licence })
        };
        let on = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [package(ROOT), package("linked"), package("built"), package("tested")],
            "resolve": { "nodes": [
                { "id": ROOT, "deps": [on("linked", Value::Null), on("tested", "dev".into())] },
                { "id": "linked", "deps": [on("built", "build".into())] },
            ]},
        });
        let lock = "[[package]]\nname = \"linked\"\nversion = \"1.0.0\"\nchecksum = \"abc\"\n";
        let bill = compose(&metadata, &checksums(lock)).expect("composed");
        let components = bill["components"].as_array().expect("a list");
        assert_eq!(components.len(), 1, "{components:?}");
        assert_eq!(components[0]["purl"], "pkg:cargo/linked@1.0.0");
        assert_eq!(components[0]["hashes"][0]["content"], "abc");
        assert_eq!(components[0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(bill["metadata"]["component"]["name"], ROOT);
    }
}
