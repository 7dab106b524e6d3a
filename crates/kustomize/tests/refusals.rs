//! What is refused: mistakes, input that is meant to do harm, and what only kustomize does.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use ambit_kustomize::{build, is_kustomization};
use tempfile::TempDir;

const POD: &str = "{apiVersion: v1, kind: Pod, metadata: {name: a}}";

fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for (path, text) in files {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }
    directory
}

/// Builds the directory `k` of the files; the message must have these parts.
fn check(files: &[(&str, &str)], parts: &[&str]) {
    let directory = directory(files);
    refuse(directory.path(), parts);
}

fn refuse(directory: &Path, parts: &[&str]) {
    let error = build(&directory.join("k")).expect_err("it must be refused").to_string();
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

/// A kustomization of one text, with a pod beside it.
fn refuse_text(text: &str, parts: &[&str]) {
    check(&[("k/kustomization.yaml", text), ("k/pod.yaml", POD)], parts);
}

#[test]
fn what_only_kustomize_does_names_the_way_out() {
    for (text, parts) in [
        (
            "resources: ['https://example.org/a.yaml']",
            ["resources: https://", "nothing is fetched"],
        ),
        ("resources: [github.com/a/b//c?ref=v1]", ["resources: github.com", "nothing is fetched"]),
        ("components: [git@example.org:a/b]", ["components: git@", "nothing is fetched"]),
        ("resources: [example.org/a/b//c]", ["resources: example.org", "nothing is fetched"]),
        ("helmCharts: [{name: a}]", ["kustomization.yaml: helmCharts", "not rendered"]),
        ("generators: [a.yaml]", ["generators", "not run"]),
        ("crds: [a.yaml]", ["crds", "not read"]),
        ("openapi: {path: a.json}", ["openapi", "not read"]),
        ("buildMetadata: [originAnnotations]", ["buildMetadata", "not written"]),
        (
            "resources: [pod.yaml]\ntransformers:\n- |-\n  {apiVersion: a/v1, kind: B, metadata: \
             {name: c}}",
            ["transformers", "is a program"],
        ),
    ] {
        let remedy = ["; render it with: kubectl kustomize ", "/k | ambit apply -f -"];
        refuse_text(text, &[parts, remedy].concat());
    }
}

#[test]
fn an_unknown_field_is_a_slip_or_newer_than_this_library() {
    for (text, parts) in [
        (
            "resourcse: [pod.yaml]",
            ["resourcse: unknown field `resourcse`; correct", "its spelling"],
        ),
        ("patches: [{path: a, tarGet: {}}]", ["patches[0].tarGet: unknown field", "its spelling"]),
    ] {
        refuse_text(text, &[&parts[..], &["kubectl kustomize ", "/k | ambit apply -f -"]].concat());
    }
}

#[test]
fn mistakes_name_file_field_and_remedy() {
    for (text, parts) in [
        ("", ["the kustomization is empty", "add `resources`"]),
        ("kind: Pod\nresources: []", ["the kind \"Pod\" is unknown", "write Kustomization"]),
        ("resources: [absent.yaml]", ["absent.yaml", "correct the path"]),
        ("resources: [pod.yaml, pod.yaml]", ["v1 Pod a", "is already in the build"]),
        ("namePrefix: 1", ["namePrefix: invalid type", "correct the field"]),
        ("resources: [pod.yaml]\nreplicas: [{name: a, count: 1}]", ["replicas", "is called \"a\""]),
        (
            "resources: [pod.yaml]\npatches: [{patch: '{kind: Pod, metadata: {name: b}}'}]",
            ["patches", "b"],
        ),
        ("resources: [pod.yaml]\npatches: [{}]", ["neither `patch` nor `path`", "add one"]),
        ("a: [", ["kustomization.yaml:", "correct the file"]),
    ] {
        refuse_text(text, &parts);
    }
    check(&[("k/x", "")], &["no kustomization.yaml"]);
    check(&[("k/kustomization.yaml", ""), ("k/Kustomization", "")], &["more than one", "keep one"]);
}

#[test]
fn files_must_be_in_or_below_the_directory() {
    let secret = ("secret.yaml", POD);
    let parts = ["secret.yaml is not in or below", "move the file there"];
    check(&[("k/kustomization.yaml", "resources: [../secret.yaml]"), secret], &parts);
    let files = "configMapGenerator: [{name: a, files: [../secret.yaml]}]";
    check(&[("k/kustomization.yaml", files), secret], &parts);
    let directory = directory(&[("k/kustomization.yaml", "resources: [link.yaml]"), secret]);
    symlink("../secret.yaml", directory.path().join("k/link.yaml")).expect("a link");
    refuse(directory.path(), &["link.yaml is not in or below"]);
    refuse_text("resources: [/etc]", &["read /etc; correct the path"]);
}

#[test]
fn cycles_end() {
    check(&[("k/kustomization.yaml", "resources: [.]")], &["includes it", "remove one"]);
    check(
        &[("k/kustomization.yaml", "resources: [../b]"), ("b/kustomization.yaml", "bases: [../k]")],
        &["the base", "includes it"],
    );
    let around =
        [("kustomization.yaml", "resources: [k]"), ("k/kustomization.yaml", "bases: [..]")];
    check(&around, &["includes it"]);
}

#[test]
fn growth_is_bounded() {
    let chain: Vec<(String, String)> = (0..40)
        .map(|at| (format!("{at}/kustomization.yaml"), format!("resources: [../{}]", at + 1)))
        .collect();
    let mut files: Vec<(&str, &str)> =
        chain.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
    files.push(("k/kustomization.yaml", "resources: [../0]"));
    check(&files, &["more than 32 nested bases"]);
    // Each level includes the next one ten times.
    let tree: Vec<(String, String)> = (0..6)
        .map(|at| {
            let base = format!("../{}", at + 1);
            (
                format!("{at}/kustomization.yaml"),
                format!("resources: [{}]", vec![base; 10].join(", ")),
            )
        })
        .collect();
    let mut files: Vec<(&str, &str)> = tree.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
    files.push(("6/kustomization.yaml", "namePrefix: a"));
    files.push(("k/kustomization.yaml", "resources: [../0]"));
    check(&files, &["more than 1000 kustomizations"]);
    let bomb = "a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\n\
                c: &c [*b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c]\n\
                e: &e [*d, *d, *d, *d, *d, *d, *d, *d]\nf: &f [*e, *e, *e, *e, *e, *e, *e, *e]\n\
                g: [*f, *f, *f, *f, *f, *f, *f, *f]\n";
    check(&[("k/kustomization.yaml", bomb)], &["too large once its anchors are written out"]);
    let doubled = "replacements:\n- sourceValue: x\n  targets: [{select: {kind: Pod}, fieldPaths: \
                   [spec.c], options: {create: true}}]\n"
        .to_owned()
        + &"- source: {kind: Pod, fieldPath: spec}\n  targets: [{select: {kind: Pod}, \
            fieldPaths: [spec.a, spec.b], options: {create: true}}]\n"
            .repeat(40);
    refuse_text(&format!("resources: [pod.yaml]\n{doubled}"), &["replacements", "more than"]);
}

#[test]
fn a_kustomization_is_known_by_its_file() {
    let directory = directory(&[("k/Kustomization", "namePrefix: a"), ("n/pod.yaml", POD)]);
    assert!(is_kustomization(&directory.path().join("k")));
    assert!(!is_kustomization(&directory.path().join("n")));
}

#[test]
fn a_build_says_where_resources_come_from_and_what_is_deprecated() {
    let directory = directory(&[
        ("k/kustomization.yaml", "bases: [../b]\nconfigMapGenerator: [{name: a}]"),
        ("b/kustomization.yaml", "resources: [pod.yaml]"),
        ("b/pod.yaml", POD),
    ]);
    let root = directory.path();
    let built = build(&root.join("k")).expect("a build");
    let origins: Vec<_> = built.resources.iter().map(|it| it.origin.clone()).collect();
    assert_eq!(origins, [root.join("k/kustomization.yaml"), root.join("b/pod.yaml")]);
    let file = root.join("k/kustomization.yaml");
    let warning = format!("{}: `bases` is deprecated; use `resources`", file.display());
    assert_eq!(built.warnings, [warning]);
}
