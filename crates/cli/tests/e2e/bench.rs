//! `ambit bench`: every mode is measured and kept, a peer that fails gets a row, Ctrl-C keeps the
//! results so far, wrong inputs get one error. The figures mean nothing here: neither the build nor
//! the host is fit for measurements.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ambit_bench::{Ending, ModeOutcome, Run};
use ambit_net::sys::process::{Signal, kill};

use crate::machine::{Machine, Said, binary};

/// A place for a run that is not there yet.
fn fresh(name: &str) -> PathBuf {
    let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{name}"));
    let _none_yet = fs::remove_dir_all(&place);
    place
}

fn start(words: &str, keep: &Path) -> Child {
    Command::new(binary())
        .arg("bench")
        .args(words.split_whitespace())
        .arg("--keep")
        .arg(keep)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary under test starts")
}

/// Runs it to its end; nothing of its machines may be left.
fn bench(words: &str, keep: &Path) -> Said {
    let child = start(words, keep);
    let pid = child.id();
    let said = child.wait_with_output().expect("it ends").into();
    assert_gone(pid);
    said
}

/// No directory, process or mount of the run's machines is left.
fn assert_gone(pid: u32) {
    let state = format!("ambit-bench-{pid}");
    for parent in ["/run".into(), std::env::temp_dir()] {
        assert!(!parent.join(&state).exists(), "{state} is left");
    }
    let mounts = fs::read_to_string("/proc/self/mounts").expect("list mounts");
    assert!(!mounts.contains(&state), "a mount of {state} is left");
    for process in fs::read_dir("/proc").expect("list processes").flatten() {
        let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).into_owned();
        assert!(!words.contains(&state), "{words} is left");
    }
}

fn run(keep: &Path) -> Run {
    let text = fs::read(keep.join("run.json")).expect("the run is kept");
    serde_json::from_slice(&text).expect("a run")
}

#[test]
fn every_mode_is_measured_and_a_peer_that_fails_is_a_row() {
    let turn = Machine::none("bench");
    let keep = fresh("modes");
    let words = "path --modes none,ambient,ambient+l4policy,ztunnel --peer ztunnel=/bin/false \
                 --only rps --repetitions 1 --duration 300ms --warm-up 100ms";
    let said = bench(words, &keep);
    assert!(said.status.success(), "{}", said.err);
    let run = run(&keep);
    assert_eq!((run.ending.clone(), run.repetitions), (Ending::Complete, 1));
    let cases: Vec<&str> = run.cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(cases, ["1000 rps", "1000 rps, one node"]);
    for mode in &run.modes {
        let measured: Vec<_> = run.measurements.iter().filter(|it| it.mode == mode.name).collect();
        match &mode.outcome {
            ModeOutcome::Failed(reason) => {
                assert_eq!(mode.name, "ztunnel", "{reason}");
                assert!(measured.is_empty() && !reason.is_empty());
            }
            ModeOutcome::Ran => {
                assert_ne!(mode.name, "ztunnel");
                assert_eq!(measured.len(), cases.len(), "{}", mode.name);
            }
        }
        for measurement in measured {
            let load = &measurement.load;
            assert!(load.requests >= 100 && load.failed == 0, "{}: {load:?}", mode.name);
            assert!(measurement.memory_before["application"].rss_bytes > 0);
            let has_proxy = measurement.usage.contains_key("proxy");
            assert_eq!(has_proxy, mode.name != "none", "{}", mode.name);
            let worked = |role: &str| {
                let usage = measurement.usage[role];
                usage.user_seconds + usage.system_seconds > 0.0
            };
            assert!(worked("load") && worked("application"), "{measurement:?}");
            assert!(!has_proxy || worked("proxy") && measurement.memory["proxy"].rss_bytes > 0);
        }
    }
    let page = fs::read_to_string(keep.join("report.html")).expect("the report is kept");
    assert!(
        page.contains("ambient+l4policy") && !page.contains("src=\"http"),
        "it needs no network"
    );
    drop(turn);
}

#[test]
fn system_calls_are_counted_and_manifests_of_ones_own_are_measured() {
    let turn = Machine::none("bench-own");
    let keep = fresh("calls");
    let words = "syscalls --only details-new --modes none,ambient --repetitions 1 --duration 1s";
    let said = bench(words, &keep);
    // Counting needs root of the host, not of a user namespace.
    let is_root = ambit_net::sys::process::effective_uid() == 0;
    assert_eq!(said.status.success(), is_root, "{}", said.err);
    if is_root {
        for measurement in run(&keep).measurements {
            let (calls, load) = (&measurement.calls, &measurement.load);
            let reads = calls["application"].reads as f64 / load.requests as f64;
            assert!((0.9..20.0).contains(&reads), "{}: {reads} reads", measurement.mode);
            assert_eq!(calls.contains_key("proxy"), measurement.mode == "ambient");
        }
    } else {
        assert!(said.err.contains("only root (or CAP_PERFMON)"), "{}", said.err);
    }
    let app = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/tiered-app");
    let keep = fresh("own");
    let words = format!(
        "{app}/app.yaml --url http://tier-1-app-a.ns-1:8080/ --from client/load --modes \
         none,ambient --repetitions 1 --duration 300ms --warm-up 0s"
    );
    let said = bench(&words, &keep);
    assert!(said.status.success(), "{}", said.err);
    assert_eq!(run(&keep).measurements.len(), 2);
    drop(turn);
}

/// A run that is interrupted when it has measured something; what it said from then on.
fn interrupted(name: &str, is_heard: bool) -> Vec<String> {
    let keep = fresh(name);
    let words = "path --only rps --modes none,ambient --repetitions 50 --duration 300ms";
    let mut child = start(words, &keep);
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let measured = lines.by_ref().map_while(Result::ok).find(|line| line.contains(" p50 "));
    assert!(measured.is_some(), "something is measured before the run ends");
    let lines = is_heard.then_some(lines);
    if !is_heard {
        // As with `2>&1 | tee log`, which Ctrl-C ends first.
        drop(child.stdout.take());
    }
    let pid = i32::try_from(child.id()).expect("process ids are positive");
    kill(pid, Signal::Interrupt).expect("it runs");
    let said: Vec<String> = lines.into_iter().flatten().map_while(Result::ok).collect();
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(130), "{said:?}");
    assert_gone(child.id());
    let run = run(&keep);
    assert_eq!(run.ending, Ending::Interrupted);
    assert!(!run.measurements.is_empty() && run.measurements.len() < 200);
    said
}

#[test]
fn an_interrupted_run_keeps_what_it_has_and_leaves_nothing() {
    let turn = Machine::none("bench-ctrl-c");
    let said = interrupted("ctrl-c", true);
    assert!(said.iter().any(|line| line.contains("taking everything down")), "{said:?}");
    drop(turn);
}

#[test]
fn an_interrupted_run_that_nobody_hears_leaves_nothing_either() {
    let turn = Machine::none("bench-unheard");
    interrupted("unheard", false);
    drop(turn);
}

#[test]
fn wrong_inputs_get_one_error_and_nothing_is_kept() {
    let turn = Machine::none("bench-wrong");
    let keep = fresh("wrong");
    let app = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/tiered-app/app.yaml");
    let own = format!("{app} --modes none --repetitions 1 --duration 300ms");
    for (words, remedy) in [
        ("speed", "experiments are tiered, details-old"),
        ("./no-such.yaml", "no-such.yaml"),
        ("path --modes fast", "there are none, ambient"),
        ("path --modes envoy", "--peer envoy=PATH"),
        ("path --peer envoy=/no/such", "there is no program"),
        ("path --peer envoy=/etc/passwd", "is not a program"),
        ("path --only nothing", "no case has that in its name"),
        ("path --rate 5/s", "path has loads of its own"),
        ("ratings --namespaces 3", "--namespaces is for `tiered`"),
        ("tiered --namespaces 0", "0 is not in"),
        ("tiered --rate fast", "write 450/s"),
        ("tiered --connections 0", "--connections must be between 1"),
        ("path --duration 0s", "write 100ms to"),
        (
            &format!("{app} --url http://a/ --modes ambient+l4policy"),
            "holds no AuthorizationPolicy",
        ),
        (app, "say what to load of"),
        (&format!("{own} --url http://nobody.ns-1:8080/"), "nobody.ns-1"),
        (&format!("{own} --url http://tier-1-app-a.ns-1:8080/ --from a/b"), "a/b"),
        ("compare /no/such /no/such", "/no/such"),
    ] {
        let child = match words.starts_with("compare") {
            true => Command::new(binary()).arg("bench").args(words.split(' ')).output(),
            false => {
                let child = start(words, &keep);
                let pid = child.id();
                let output = child.wait_with_output();
                assert_gone(pid);
                output
            }
        };
        let said: Said = child.expect("it ends").into();
        assert!(!said.status.success(), "{words}");
        assert!(said.err.contains(remedy), "{words}: {}", said.err);
        assert!(!keep.join("run.json").exists(), "{words} kept a run");
    }
    drop(turn);
}
