//! Invented runs for tests: several modes and cases, one mode that failed, one that lost requests.

use ambit_load::{Latencies, Protocol, REPORT_VERSION, Report};

use super::record::{
    Calls, Case, Ending, Host, MachineSize, Meanwhile, Measurement, Memory, ModeOutcome, ModeRun,
    RUN_VERSION, Run, Usage,
};
use super::statistics::Random;

/// Answers in a histogram; the counts beside it say more.
const ANSWERS: usize = 1000;
const REPETITIONS: usize = 6;
/// Name, title, latency and processor time as multiples of none's.
const MODES: [(&str, &str, f64, f64); 6] = [
    ("none", "no mesh", 1.0, 0.0),
    ("ambient", "Ambit: mutual TLS", 1.9, 1.0),
    ("ambient+l4policy", "Ambit: mutual TLS and policies", 1.95, 1.03),
    ("ztunnel", "Istio's ztunnel", 3.1, 1.6),
    ("envoy", "Envoy sidecars, HTTP", 6.2, 3.9),
    ("linkerd", "Linkerd's proxy", 3.0, 2.0),
];

/// A measurement without anything to doubt: 1000 requests/s for ten seconds.
pub(super) fn measurement(case: &str, mode: &str, repetition: usize) -> Measurement {
    Measurement {
        repetition,
        mode: mode.to_owned(),
        case: case.to_owned(),
        started_at: "2026-11-22T05:00:00Z".to_owned(),
        load: Report {
            version: REPORT_VERSION,
            url: "http://server.bench:8080/?size=1024".to_owned(),
            requested_rate: Some(1000.0),
            requested_seconds: Some(10.0),
            connections: 10,
            requests: 10_000,
            seconds: 10.0,
            attack_seconds: 9.999,
            rate: 1000.0,
            throughput: 1000.0,
            status_codes: [(200, 10_000)].into(),
            latency: latencies(0.24, 1),
            ..Report::default()
        },
        usage: [("load".to_owned(), usage(0.5, 1))].into(),
        memory_before: [].into(),
        memory: [].into(),
        calls: [].into(),
        host: Meanwhile {
            busy: 0.3,
            mhz_before: 3000.0,
            mhz_after: 3000.0,
            ..Meanwhile::default()
        },
        warnings: vec![],
    }
}

/// The micro cases in six modes, one of which did not start.
pub(super) fn run() -> Run {
    let words = |text: &str| vec![text.split(' ').map(Into::into).collect()];
    let case = |name: &str, title: &str, load: &str| Case {
        name: name.to_owned(),
        title: title.to_owned(),
        machine: machine_name(1),
        namespaces: 1,
        load: words(load),
        published: [].into(),
        published_source: String::new(),
    };
    let http = "load http://server.bench:8080/?size=1024";
    let cases = vec![
        case("rate", "1000 rps on 10 connections", &format!("{http} --rate 1000 --connections 10")),
        case("saturation", "saturation on 16 connections", &format!("{http} --connections 16")),
        case("stream", "one stream", "load tcp://server.bench:9000 --protocol tcp-stream"),
    ];
    let mut run = Run { experiment: "path".to_owned(), cases, ..empty() };
    run.title = "the path of a request, in micro cases".to_owned();
    fill(&mut run, &|_| 1.0);
    run
}

/// Three sizes of the tiered application.
pub(super) fn tiered() -> Run {
    let published = |figures: [f64; 4]| {
        let names = ["p50", "p90", "p95", "p99"].map(str::to_owned);
        names.into_iter().zip(figures).collect()
    };
    let case = |namespaces: u32| Case {
        name: format!("tiered-{namespaces}"),
        title: format!("{namespaces} namespaces, 50 rps in each"),
        machine: machine_name(namespaces),
        namespaces,
        load: (1..=namespaces)
            .map(|it| vec!["load".into(), format!("http://tier-1-app-a.ns-{it}:8080")])
            .collect(),
        published: [
            ("none".to_owned(), published([1.57, 1.74, 1.82, 2.09])),
            ("ztunnel".to_owned(), published([2.36, 2.56, 2.67, 2.96])),
            ("sidecar".to_owned(), published([6.38, 7.11, 7.54, 9.27])),
        ]
        .into(),
        published_source: "Somebody (2024): 50 namespaces, 450 rps into each".to_owned(),
    };
    let cases = [1, 5, 20].map(case).into();
    let mut run = Run { experiment: "tiered".to_owned(), cases, ..empty() };
    run.title = "four services in three tiers, in each of many namespaces".to_owned();
    fill(&mut run, &|namespaces| 6.0 + f64::from(namespaces) * 0.15);
    run
}

fn empty() -> Run {
    Run {
        version: RUN_VERSION,
        experiment: String::new(),
        title: String::new(),
        started_at: "2026-11-22T05:00:00Z".to_owned(),
        seconds: 1234.5,
        ending: Ending::Complete,
        seed: 42,
        repetitions: REPETITIONS,
        seconds_each: 10.0,
        host: Host {
            cpu: "AMD EPYC".to_owned(),
            cpus: 2,
            memory_bytes: 24_684_096 << 10,
            kernel: "Linux 6.18.44".to_owned(),
            system: "Debian GNU/Linux 13".to_owned(),
        },
        programs: [
            ("ambit".to_owned(), "0.1.0 (b2d38d00d834), 31 MB".to_owned()),
            ("ztunnel".to_owned(), "1.29 (62d826530e5c), 24 MB".to_owned()),
        ]
        .into(),
        commands: vec![
            "ambit bench path --peer ztunnel=ZTUNNEL --peer envoy=ENVOY --repetitions 6".to_owned(),
            "ambit up bench.yaml --detach --state A".to_owned(),
        ],
        modes: vec![],
        cases: vec![],
        measurements: vec![],
        warnings: vec![],
    }
}

/// Measures every mode in every case. `slower` is by how much, for so many namespaces.
fn fill(run: &mut Run, slower: &dyn Fn(u32) -> f64) {
    let mut sizes: Vec<u32> = run.cases.iter().map(|it| it.namespaces).collect();
    sizes.dedup();
    for (name, title, _, cost) in MODES {
        let failed = name == "linkerd";
        let reason = "linkerd2-proxy ended with signal 11 after 0.2 s: <no output>".to_owned();
        run.modes.push(ModeRun {
            name: name.to_owned(),
            title: title.to_owned(),
            outcome: if failed { ModeOutcome::Failed(reason) } else { ModeOutcome::Ran },
            machines: sizes.iter().map(|size| machine(*size, cost)).collect(),
        });
    }
    let cases = run.cases.clone();
    let mut seed = 1;
    for repetition in 1..=REPETITIONS {
        for case in &cases {
            for mode in MODES.iter().filter(|it| it.0 != "linkerd") {
                seed += 1;
                let slower = slower(case.namespaces);
                run.measurements.push(invented(case, *mode, repetition, slower, seed));
            }
        }
    }
}

fn invented(
    case: &Case,
    (mode, _, slow, cost): (&str, &str, f64, f64),
    repetition: usize,
    slower: f64,
    seed: u64,
) -> Measurement {
    let mut it = measurement(&case.name, mode, repetition);
    let noise = 0.95 + Random::new(seed * 7919).below(100) as f64 / 1000.0;
    let load = &mut it.load;
    load.latency = latencies(0.24 * slow * slower * noise, seed);
    load.reads_per_response = if mode == "none" { 2.0 } else { 1.0 };
    match case.name.as_str() {
        "saturation" => {
            load.requested_rate = None;
            load.throughput = 31_800.0 / (slow * noise);
            load.requests = (load.throughput * 10.0) as u64;
            it.host.busy = 0.99;
        }
        "stream" => {
            load.protocol = Protocol::TcpStream;
            load.requested_rate = None;
            load.gigabits_per_second_out = 20.0 / (slow * noise);
            load.bytes_out = (load.gigabits_per_second_out * 1.25e9) as u64;
            load.latency = Latencies::default();
        }
        _ if mode == "envoy" && case.name == "rate" => {
            (load.failed, load.throughput) = (261, 973.9);
            load.status_codes = [(200, 9739), (503, 200)].into();
            load.errors =
                [("status 503".to_owned(), 200), ("connection reset".to_owned(), 61)].into();
            load.latency.count = 9939;
        }
        _ => {}
    }
    it.usage = [
        ("load".to_owned(), usage(0.30 * noise, seed)),
        ("application".to_owned(), usage(0.40 * noise * slower.sqrt(), seed)),
        ("proxy".to_owned(), usage(0.75 * cost * noise * slower.sqrt(), seed)),
        ("agent".to_owned(), usage(0.002 * cost.min(1.0), seed)),
        ("control".to_owned(), usage(0.01 * cost.min(1.0), seed)),
        ("machine".to_owned(), usage(0.01, seed)),
    ]
    .into();
    it.memory = memory(case.namespaces, cost, 1.4);
    it
}

fn usage(seconds: f64, seed: u64) -> Usage {
    Usage {
        user_seconds: seconds * 0.25,
        system_seconds: seconds * 0.75,
        unsplit_seconds: None,
        voluntary_switches: (seconds * 30_000.0) as u64 + seed,
        involuntary_switches: 100,
        processes: 2,
    }
}

fn memory(namespaces: u32, cost: f64, grown: f64) -> std::collections::BTreeMap<String, Memory> {
    let of = |megabytes: f64| {
        let rss_bytes = (megabytes * 1e6) as u64;
        Memory { rss_bytes, private_bytes: rss_bytes * 2 / 3, processes: 2 }
    };
    let sidecars = if cost > 3.0 { f64::from(namespaces) * 3.0 } else { 1.0 };
    if cost == 0.0 {
        return [].into();
    }
    [
        ("proxy".to_owned(), of(17.0 * cost * sidecars * grown)),
        ("control".to_owned(), of(60.0 * cost.min(1.0))),
        ("agent".to_owned(), of(12.0 * cost.min(1.0))),
    ]
    .into()
}

fn machine_name(namespaces: u32) -> String {
    format!("{namespaces} namespaces")
}

fn machine(namespaces: u32, cost: f64) -> MachineSize {
    MachineSize {
        name: machine_name(namespaces),
        namespaces,
        pods: namespaces as usize * 5,
        up_seconds: 2.5 + f64::from(namespaces) * 0.2,
        down_seconds: 0.9,
        at_rest: memory(namespaces, cost, 1.0),
        after: memory(namespaces, cost, 1.3),
    }
}

/// Latencies with this median in milliseconds and a tail.
fn latencies(median_ms: f64, seed: u64) -> Latencies {
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut times: Vec<u64> = (0..ANSWERS)
        .map(|_| {
            let left = (random.below(1_000_000) as f64 + 0.5) / 1e6;
            let far = -left.ln();
            let times = 0.75 + 0.36 * far + 0.012 * far.powi(3);
            (median_ms * times * 1e6) as u64
        })
        .collect();
    times.sort_unstable();
    let at = |quantile: f64| times[(quantile * (ANSWERS - 1) as f64) as usize] as f64 / 1e3;
    Latencies {
        count: ANSWERS as u64,
        min_us: at(0.0),
        mean_us: times.iter().sum::<u64>() as f64 / 1e3 / ANSWERS as f64,
        stddev_us: 0.0,
        p50_us: at(0.5),
        p75_us: at(0.75),
        p90_us: at(0.9),
        p95_us: at(0.95),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: at(1.0),
        histogram_ns: times.into_iter().map(|it| (it, 1)).collect(),
    }
}

/// What a syscalls case adds.
pub(super) fn with_calls(mut run: Run) -> Run {
    for it in &mut run.measurements {
        let per_answer = if it.mode == "none" { 2 } else { 1 };
        let answers = it.load.requests - it.load.failed;
        let calls = |times: u64| Calls {
            reads: answers * times,
            writes: answers,
            waits: answers / 2,
            futexes: answers / 10,
            all: answers * (times + 2),
        };
        it.calls =
            [("load".to_owned(), calls(per_answer)), ("application".to_owned(), calls(1))].into();
        if it.mode != "none" {
            it.calls.insert("proxy".to_owned(), calls(3));
        }
    }
    run
}
