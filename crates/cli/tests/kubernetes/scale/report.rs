//! The report of a run: `run.json` with everything, a table and a picture for people.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::growth;

/// Istio's figures for the same (docs/design/scale.md says how they were taken), at 10,000 pods.
const HEAD: &str = "\
| | target | istiod, ztunnel at 10,000 pods |";

/// One line of the table.
struct Line {
    what: &'static str,
    target: &'static str,
    istio: &'static str,
    /// From a size's row, and the row of the empty cluster.
    figure: fn(&Value, &Value) -> String,
}

const LINES: [Line; 21] = [
    Line {
        what: "control: RSS at rest, grown with the cluster / started in it",
        target: "",
        istio: "428 MB",
        figure: |row, _| format!("{} / {} MB", mb(row, "/grown/control"), mb(row, "/rest/control")),
    },
    Line {
        what: "control: RSS per pod, grown / started",
        target: "6 KB",
        istio: "26 KB",
        figure: |row, empty| {
            let of = |part| per_pod(row, part, empty, "/rest/control");
            format!("{} / {} KB", of("/grown/control"), of("/rest/control"))
        },
    },
    Line {
        what: "proxy (supervisor and worker): RSS",
        target: "",
        istio: "32 MB",
        figure: |row, _| format!("{} MB", mb(row, "/rest/proxy")),
    },
    Line {
        what: "proxy: RSS per pod",
        target: "1.2 KB",
        istio: "1.45 KB",
        figure: |row, empty| format!("{} KB", per_pod(row, "/rest/proxy", empty, "/rest/proxy")),
    },
    Line {
        what: "agent: RSS",
        target: "",
        istio: "",
        figure: |row, _| format!("{} MB", mb(row, "/rest/agent")),
    },
    Line {
        what: "control at rest: CPU in 20 s",
        target: "",
        istio: "",
        figure: |row, _| format!("{} s", number(row, "/rest/control/cpu_s")),
    },
    Line {
        what: "first sync of one proxy, on the stream, to the view: median",
        target: "100 ms",
        istio: "51 ms (182 ms from its start)",
        figure: |row, _| format!("{} ms", first_sync(row)),
    },
    Line {
        what: "what it gets",
        target: "",
        istio: "2.2 MiB",
        figure: |row, _| {
            let bytes = row.pointer("/views/0/bytes").and_then(Value::as_f64).unwrap_or_default();
            format!("{:.2} MiB", bytes / 1_048_576.0)
        },
    },
    Line {
        what: "1,000 proxies that begin with nothing: the last has everything after",
        target: "",
        istio: "40 s",
        figure: |row, _| format!("{} ms", number(row, "/sync/fleet/all_ms")),
    },
    Line {
        what: "control meanwhile: peak, CPU",
        target: "",
        istio: "1,460 MB",
        figure: |row, _| {
            let peak = number(row, "/sync/control/peak_kb") / 1024.0;
            format!("{peak:.0} MB, {} s", number(row, "/sync/control/cpu_s"))
        },
    },
    Line {
        what: "a change reaches a proxy, quiet: p50 / p99",
        target: "",
        istio: "112 ms / - (1,000 proxies: 194 / 272 at most)",
        figure: |row, _| pair(row, "/quiet/fleet/each"),
    },
    Line {
        what: "a change reaches all 1,000, quiet: p50 / p99",
        target: "p99 250 ms",
        istio: "",
        figure: |row, _| pair(row, "/quiet/fleet/all"),
    },
    Line {
        what: "a change reaches all 1,000, 40 changes/s: p50 / p99",
        target: "p99 250 ms",
        istio: "3,700 ms / 9,000 at most (one proxy)",
        figure: |row, _| pair(row, "/churn/fleet/all"),
    },
    Line {
        what: "the same with 250 proxies: p50 / p99",
        target: "",
        istio: "",
        figure: |row, _| pair(row, "/fewer/churn/fleet/all"),
    },
    Line {
        what: "processor time that the host kept for itself, 40 changes/s, 1,000 / 250 proxies",
        target: "",
        istio: "",
        figure: |row, _| {
            let share = |of: &str| {
                let stolen = number(row, &format!("{of}/stolenSeconds"));
                100.0 * stolen / number(row, &format!("{of}/fleet/seconds"))
            };
            format!("{:.0} / {:.0} % of one", share("/churn"), share("/fewer/churn"))
        },
    },
    Line {
        what: "of the 1,000, until the API server answered: p50 / p99",
        target: "",
        istio: "",
        figure: |row, _| pair(row, "/churn/fleet/answered"),
    },
    Line {
        what: "changes that a proxy never got, quiet / 40 changes/s",
        target: "0",
        istio: "",
        figure: |row, _| {
            let missing = |of: &str| number(row, &format!("/{of}/fleet/missing"));
            format!("{} / {}", missing("quiet"), missing("churn"))
        },
    },
    Line {
        what: "control's CPU per change, quiet / 40 changes/s",
        target: "",
        istio: "115 ms",
        figure: |row, _| {
            let cpu = |of: &str| {
                let changes = number(row, &format!("/{of}/fleet/answered/count"));
                number(row, &format!("/{of}/control/cpu_s")) * 1000.0 / changes
            };
            format!("{:.1} / {:.1} ms", cpu("quiet"), cpu("churn"))
        },
    },
    Line {
        what: "new connections lost by rollouts of a Deployment meanwhile",
        target: "0",
        istio: "up to 15 of 545",
        figure: |row, _| {
            let of = |name: &str| number(row, &format!("/rollouts/{name}"));
            format!("{} of {}", of("failed"), of("connections"))
        },
    },
    Line {
        what: "control killed: the last of 1,000 has everything, from the kill / from the first \
               stream accepted",
        target: "5 s",
        istio: "",
        figure: |row, _| {
            let of = |name: &str| number(row, &format!("/restart/fleet/synced/{name}"));
            format!("{:.0} / {:.0} ms", of("all_ms"), of("all_ms") - of("first_accepted_ms"))
        },
    },
    Line {
        what: "of these resumed / took everything",
        target: "",
        istio: "",
        figure: |row, _| {
            let of = |name: &str| number(row, &format!("/restart/fleet/synced/{name}"));
            format!("{} / {}", of("resumed"), of("full"))
        },
    },
];

/// Writes them into a directory. The first row is that of the empty cluster.
pub(super) fn write(directory: &Path, rows: &[Value]) {
    std::fs::create_dir_all(directory).unwrap();
    let run = serde_json::to_string_pretty(&json!({ "machine": machine(), "rows": rows })).unwrap();
    std::fs::write(directory.join("run.json"), run + "\n").unwrap();
    std::fs::write(directory.join("growth.svg"), growth::picture(&rows[1..])).unwrap();
    std::fs::write(directory.join("README.md"), page(rows)).unwrap();
}

fn page(rows: &[Value]) -> String {
    let (empty, sizes) = rows.split_first().expect("the empty cluster is the first row");
    let mut page = format!("# A thousand nodes\n\n```\n{}\n```\n\n{HEAD}", machine());
    for row in sizes {
        let of = |name: &str| number(row, &format!("/{name}"));
        let (pods, services) = (of("pods"), of("services"));
        write!(page, " Ambit, {pods} pods, {services} services |").expect("memory takes it");
    }
    page.push_str("\n|---|---|---|");
    page.push_str(&"---|".repeat(sizes.len()));
    for Line { what, target, istio, figure } in LINES {
        write!(page, "\n| {what} | {target} | {istio} |").expect("memory takes it");
        for row in sizes {
            write!(page, " {} |", figure(row, empty)).expect("memory takes it");
        }
    }
    page.push_str("\n\n![growth with the number of pods](growth.svg)");
    page.push_str("\n\n`cargo xtask e2e kubernetes --release --scale PODS,PODS`\n");
    page
}

/// The machine that all of it ran on.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let of = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let processors = read("/proc/cpuinfo");
    let count = processors.lines().filter(|line| line.starts_with("processor")).count();
    let memory = read("/proc/meminfo");
    let kernel = read("/proc/sys/kernel/osrelease");
    let (name, memory) = (of(&processors, "model name"), of(&memory, "MemTotal"));
    format!("{count} x {name}, {memory}, Linux {}", kernel.trim())
}

/// The median of several first syncs of one proxy, in milliseconds.
pub(super) fn first_sync(row: &Value) -> f64 {
    let views = row["views"].as_array().cloned().unwrap_or_default();
    let mut all: Vec<f64> = views.iter().filter_map(|it| it["view_ms"].as_f64()).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

pub(super) fn number(row: &Value, pointer: &str) -> f64 {
    row.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

fn mb(row: &Value, pointer: &str) -> String {
    format!("{:.0}", number(row, &format!("{pointer}/rss_kb")) / 1024.0)
}

/// Kilobytes that a pod added; the nodes' proxies are pods too.
fn per_pod(row: &Value, pointer: &str, empty: &Value, before: &str) -> String {
    let kb = |row: &Value, pointer: &str| number(row, &format!("{pointer}/rss_kb"));
    let pods = number(row, "/pods") + number(row, "/nodes");
    format!("{:.2}", (kb(row, pointer) - kb(empty, before)) / pods)
}

fn pair(row: &Value, pointer: &str) -> String {
    let of = |name: &str| number(row, &format!("{pointer}/{name}"));
    format!("{:.0} / {:.0} ms", of("p50_ms"), of("p99_ms"))
}
