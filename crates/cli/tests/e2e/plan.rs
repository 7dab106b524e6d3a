//! `ambit plan`: the published experiment's figures from the example, whole pods, wrong inputs.
//!
//! A plan needs no machine; only the command is started.

use std::fs;
use std::process::Command;

use ambit_bench::{
    Case, Ending, Host, Meanwhile, Measurement, ModeOutcome, ModeRun, RUN_VERSION, Run, Usage,
};
use ambit_load::Report;
use serde_json::Value;

use crate::machine::binary;

const APP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/tiered-app/app.yaml");

/// What the command printed, and what it said beside.
fn plan(words: &str) -> (Option<i32>, String, String) {
    let output = Command::new(binary())
        .arg("plan")
        .args(words.split_whitespace())
        .output()
        .expect("start ambit");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn planned(words: &str) -> Value {
    let (code, output, said) = plan(&format!("{words} -o json"));
    assert_eq!(code, Some(0), "{said}");
    serde_json::from_str(&output).expect("JSON")
}

/// Nodes and monthly price of each mode's three estimates.
fn estimates(plan: &Value) -> Vec<[(u64, String); 3]> {
    let estimate = |it: &Value| {
        let nodes = it["nodes"].as_u64().expect("nodes");
        (nodes, it["monthly"].as_str().unwrap_or_default().to_owned())
    };
    let modes = plan["modes"].as_array().expect("modes").iter();
    modes.map(|it| ["ideal", "allocatable", "placed"].map(|name| estimate(&it[name]))).collect()
}

#[test]
fn the_example_in_fifty_namespaces_is_the_published_experiment() {
    let expected = |figures: [(u64, &str); 3]| figures.map(|(n, price)| (n, price.to_owned()));
    let published = planned(&format!("--published {APP} --namespaces 50"));
    assert_eq!(
        estimates(&published),
        [
            expected([(18, "5190.72"), (19, "5475.11"), (20, "5759.49")]),
            expected([(24, "6897.03"), (26, "7465.80"), (29, "8318.96")]),
            expected([(18, "5190.72"), (20, "5759.49"), (20, "5759.49")]),
            expected([(19, "5475.11"), (20, "5759.49"), (20, "5759.49")]),
        ]
    );
    assert_eq!(published["published"], planned("--published")["published"]);
    assert_eq!(published["published"]["rows"][3][6], "6328.26 # 5759.49");
    // With the control plane and the capturing agent counted, ambient needs a node more.
    let counted = estimates(&planned(&format!("{APP} --namespaces 50")));
    assert_eq!(counted[0][2], (20, "5759.49".to_owned()));
    assert_eq!(counted[1][2], (29, "8318.96".to_owned()));
    assert_eq!(counted[2], expected([(19, "5475.11"), (20, "5759.49"), (21, "6043.88")]));
    let (_, _, said) = plan(&format!("{APP} --namespaces 50"));
    assert!(said.contains("left out: Pod ns-1/details-two-writes"), "{said}");
}

/// 1000 requests, three times without a mesh and through proxies that use 50, 60 and 70 ms.
fn run_of_three() -> Run {
    let measurement = |mode: &str, repetition: usize| Measurement {
        repetition,
        mode: mode.to_owned(),
        case: "1000 rps".to_owned(),
        started_at: "2026-11-22T05:00:00Z".to_owned(),
        load: Report { requests: 1000, ..Report::default() },
        usage: [].into(),
        memory_before: [].into(),
        memory: [].into(),
        calls: [].into(),
        host: Meanwhile::default(),
        warnings: vec![],
    };
    let measurements = [50.0, 60.0, 70.0].into_iter().enumerate().flat_map(|(before, ms)| {
        let mut ambient = measurement("ambient", before + 1);
        let (user_seconds, system_seconds) = (ms / 4e3, ms * 3.0 / 4e3);
        let usage = Usage { user_seconds, system_seconds, processes: 2, ..Usage::default() };
        ambient.usage.insert("proxy".to_owned(), usage);
        [measurement("none", before + 1), ambient]
    });
    let mode = |name: &str| ModeRun {
        name: name.to_owned(),
        title: String::new(),
        outcome: ModeOutcome::Ran,
        machines: vec![],
    };
    Run {
        version: RUN_VERSION,
        experiment: "path".to_owned(),
        title: String::new(),
        started_at: "2026-11-22T05:00:00Z".to_owned(),
        seconds: 6.0,
        ending: Ending::Complete,
        seed: 1,
        repetitions: 3,
        seconds_each: 1.0,
        host: Host::default(),
        programs: [].into(),
        commands: vec![],
        modes: ["none", "ambient"].map(mode).into(),
        cases: vec![Case {
            name: "1000 rps".to_owned(),
            title: String::new(),
            machine: String::new(),
            namespaces: 1,
            load: vec![],
            published: [].into(),
            published_source: String::new(),
        }],
        measurements: measurements.collect(),
        warnings: vec![],
    }
}

#[test]
fn measured_cpu_stands_in_for_the_reservation_and_a_picture_is_drawn() {
    let directory = std::env::temp_dir().join(format!("ambit-plan-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let picture = directory.join("plan.svg");
    let run = directory.join("run.json");
    fs::write(&run, serde_json::to_string(&run_of_three()).unwrap()).unwrap();
    let flags = format!("--measured {} --rps 100000", directory.display());
    let pods = "--pods 200 --cpu 700m --memory 500Mi --reserve istiod=0/0";
    let (code, output, said) = plan(&format!("{pods} {flags} --chart {}", picture.display()));
    assert_eq!(code, Some(0), "{said}");
    let read = "ztunnel's CPU is measured instead: 60.0 µs of CPU per request for all proxies \
                together (median of 3 repetitions of ambient in \"1000 rps\", ";
    assert!(output.contains(read) && output.contains(" = 6000m for all ztunnels"), "{output}");
    // 6000m over 21 nodes are 286m; with the agent's 100m ten pods fit beside them (7.386), and on
    // 20 nodes (300m) they do too (7.4).
    assert!(output.contains("ambient L4, 20 nodes"), "{output}");
    let drawn = fs::read_to_string(&picture).unwrap();
    assert!(drawn.starts_with("<svg ") && drawn.contains("prefers-color-scheme: dark"));
    let refused = |more: &str, expected: &str| {
        let (code, _, said) = plan(&format!("{pods} --measured {} {more}", run.display()));
        assert!(code == Some(1) && said.contains(expected), "{more}: {said}");
    };
    refused("--rps 1 --measured-case x", "run.json has no case `x`; it has `1000 rps`");
    refused("--rps 1 --measured-mode ambit", "run.json has no mode `ambit`; it has `none`, `amb");
    refused("--rps 1 --measured-mode none", "run.json saw no proxy in mode `none`; name a mode");
    fs::write(&run, "{\"version\": 7}").unwrap();
    refused("--rps 1", "ambit: --measured: ");
    refused("--rps 1", "run.json is of version 7, and this ambit knows 1; read it with");
    fs::remove_dir_all(&directory).unwrap();
    refused("--rps 1", "ambit: --measured: there is no run at ");
}

#[test]
fn wrong_inputs_get_one_error_with_place_and_remedy() {
    let pods = "--pods 5 --cpu 1 --memory 1Gi";
    let manifests = std::env::temp_dir().join(format!("ambit-plan-{}.yaml", std::process::id()));
    let pod = |name: &str, cpu: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n  \
             - name: c\n    image: i\n    resources:\n      requests:\n        cpu: {cpu}\n        \
             memory: 1Gi\n---\n"
        )
    };
    let check = |words: &str, code: i32, expected: &str| {
        let (got, _, said) = plan(words);
        assert_eq!(got, Some(code), "{words}: {said}");
        assert!(said.contains(expected), "{words}: {said}");
    };
    check(&format!("{pods} --price -3"), 2, "'--price <PRICE>': is negative; write 0 or more");
    check("--pods 5 --cpu 1x --memory 1", 2, "is not a quantity; write it as 700m, 0.5 or 2");
    check(&format!("{pods} --node-type m9"), 1, "the node type `m9` is not known; known are n2-");
    check(
        "--pods 5 --cpu 9 --memory 1Gi",
        1,
        "ambit: plan mode baseline: ns-1/pods fits no node: it requests 9 vCPU and 1 GiB and an \
         empty n2-standard-8 has 7.5 vCPU and 28.34 GiB for it; take a larger --node-type, or make \
         the pod request less\n",
    );
    let path = manifests.display().to_string();
    fs::write(&manifests, pod("small", "1") + &pod("large", "9")).unwrap();
    check(
        &path,
        1,
        &format!("{path}:16: Pod default/large: spec: mode baseline: the pod fits no node: it "),
    );
    fs::write(&manifests, pod("odd", "two")).unwrap();
    check(
        &path,
        1,
        &format!(
            "{path}:10: Pod odd: spec.containers[0].resources.requests.cpu: `two` is not a \
             quantity; write for example `500m` of processors"
        ),
    );
    fs::write(&manifests, pod("quiet", "0").replace("memory: 1Gi", "")).unwrap();
    check(&path, 0, "Pod default/quiet: spec.containers[0].resources: neither CPU nor memory is");
    check(&format!("{path} --namespaces 3"), 1, "the workloads are in default; rename the one");
    fs::remove_file(manifests).unwrap();
}
