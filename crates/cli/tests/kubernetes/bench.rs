//! `ambit bench --kube`: every case in every mode; nothing is left behind, whatever happens; no
//! other namespace is touched. The figures mean nothing here: neither the build nor the host is fit
//! for measurements.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use ambit_bench::{Ending, ModeOutcome, Run};
use ambit_net::sys::process::{Signal, kill};

use crate::cluster::{Cluster, must, until};

const REPETITIONS: usize = 2;

/// A place for a run that is not there yet.
fn fresh(name: &str) -> PathBuf {
    let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("kube-{name}"));
    let _none_yet = std::fs::remove_dir_all(&place);
    place
}

/// The namespaces that runs have made.
fn left(cluster: &Cluster) -> String {
    cluster.ask(&["get", "namespaces", "-l", "ambit.io/bench-run", "-o", "name"])
}

fn words<'a>(text: &'a str, keep: &'a Path) -> Vec<&'a str> {
    let keep = ["--keep", keep.to_str().unwrap()];
    ["bench"].into_iter().chain(text.split_whitespace()).chain(keep).collect()
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn every_mode_is_measured_and_nothing_is_left() {
    let cluster = Cluster::alone();
    let keep = fresh("modes");
    let text = format!(
        "path --kube --only rps --only per --repetitions {REPETITIONS} --duration 1s --warm-up \
         200ms"
    );
    let said = cluster.ambit(&words(&text, &keep));
    must(&said);
    assert_eq!(left(&cluster), "", "{}", said.err);
    assert!(said.out.contains("1000 rps, one node"), "{}", said.out);
    assert!(said.err.contains("delete namespace -l ambit.io/bench-run="), "{}", said.err);
    let run = Run::read(&keep).unwrap();
    assert_eq!(run.ending, Ending::Complete);
    let modes: Vec<&str> = run.modes.iter().map(|mode| mode.name.as_str()).collect();
    assert_eq!(modes, ["none", "ambient", "ambient+l4policy"]);
    let cases: Vec<&str> = run.cases.iter().map(|case| case.name.as_str()).collect();
    let one_node = ["1000 rps, one node", "connection per request, one node"];
    assert_eq!(cases, [&["1000 rps", "connection per request"], &one_node[..]].concat());
    for mode in &run.modes {
        assert_eq!((&mode.outcome, mode.machines[0].pods), (&ModeOutcome::Ran, 4), "{}", said.err);
        for case in &cases {
            let of_case = run.measurements.iter();
            let measured: Vec<_> =
                of_case.filter(|it| it.mode == mode.name && it.case == *case).collect();
            assert_eq!(measured.len(), REPETITIONS, "{case} in {}: {}", mode.name, said.err);
            for measurement in &measured {
                let load = &measurement.load;
                // Without a mesh it is the cluster's own network, and no other's fault.
                let own_faults = if mode.name == "none" { load.requests / 1000 } else { 0 };
                let is_right = load.requests > 0 && load.failed <= own_faults;
                assert!(is_right, "{case} in {}: {load:?}", mode.name);
            }
            let used = measured.iter().filter_map(|it| it.usage["proxy"].unsplit_seconds);
            let used: f64 = used.sum();
            assert!(mode.name == "none" || used > 0.0, "{case} in {}: no CPU", mode.name);
        }
    }
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn an_interrupted_run_keeps_what_it_has_and_leaves_nothing() {
    let cluster = Cluster::alone();
    let keep = fresh("ctrl-c");
    let text = "path --kube --only rps --modes none,ambient --repetitions 50 --duration 500ms";
    let mut ambit = cluster.ambit_command(&cluster.admin(), &words(text, &keep));
    let mut child = ambit.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let measured = lines.find(|line| line.contains(" p50 "));
    assert!(measured.is_some(), "something is measured before the run ends");
    kill(i32::try_from(child.id()).unwrap(), Signal::Interrupt).unwrap();
    let said: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said:?}");
    assert_eq!(left(&cluster), "", "{said:?}");
    let run = Run::read(&keep).unwrap();
    assert_eq!(run.ending, Ending::Interrupted);
    assert!(!run.measurements.is_empty());
}

#[test]
fn what_cannot_be_measured_is_refused_and_foreign_namespaces_stay() {
    let cluster = Cluster::alone();
    let keep = fresh("refused");
    let refused = |text: &str, remedy: &str| {
        let said = cluster.ambit(&words(text, &keep));
        assert!(!said.is_success && said.err.contains(remedy), "{text}: {}", said.err);
        assert!(!keep.exists(), "{text} kept a run");
    };
    refused("tiered --kube", "on a cluster there is `path` alone");
    refused("./app.yaml --kube --url http://a/", "manifests of your own are measured on machines");
    refused("path --kube --modes ztunnel", "on a cluster there are none, ambient");
    refused("path --kube --peer ztunnel=/bin/false", "leave --peer out");
    refused("path --kube --mesh-namespace nowhere", "name its namespace with --mesh-namespace");
    let foreign = cluster.namespace("ambit-bench-ambient");
    refused("path --kube", "ambit-bench-ambient already, which is not of `ambit bench`");
    cluster.ask(&["get", "namespace", foreign.name]);
    assert_eq!(left(&cluster), "");
    let name = foreign.name;
    drop(foreign);
    until("the namespace is gone", || !cluster.kubectl(&["get", "namespace", name]).is_success);
}
