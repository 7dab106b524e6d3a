//! `cargo xtask bench counts`: what a request costs in calls, counted by the kernel.
//!
//! System calls, futex calls, context switches and allocations of the proxies, by `perf stat` with
//! tracepoints and with probes on the allocator's functions, of the program itself and of the C
//! library. Probes make a call slower, so nothing here is timed.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

use super::mesh::Mesh;
use super::rows::{Load, ROWS, Row, Side};

/// Makes the kernel's trace files visible to the command that follows, and to nothing else.
const WITH_TRACE_FILES: &str = "mount -t tracefs nodev /sys/kernel/tracing && exec \"$@\"";
/// Where probes are put, so that they can be found and removed again.
const GROUP: &str = "ambit_bench";
/// What counts as an allocation; Rust's own are prefixed where the allocator is not C's as well.
const ALLOCATORS: [&str; 7] =
    ["malloc", "calloc", "realloc", "mallocx", "rallocx", "aligned_alloc", "posix_memalign"];
const PREFIXES: [&str; 2] = ["", "_rjem_"];
const SYSTEM_CALLS: &str = "raw_syscalls:sys_enter";
const FUTEX_CALLS: &str = "syscalls:sys_enter_futex";
const CONTEXT_SWITCHES: &str = "context-switches";

/// Calls of a side's proxies while one row was driven.
#[derive(Default)]
struct Counts {
    system_calls: f64,
    futex_calls: f64,
    context_switches: f64,
    allocations: f64,
}

/// Counts each row of requests, on both sides, and returns the table.
pub(super) fn table(ambit: &Mesh, ztunnel: &Mesh, seconds: usize) -> Result<String> {
    let mut table = String::from(
        "| row | proxies | system calls | futex calls | context switches | allocations |\n\
         |---|---|---|---|---|---|",
    );
    for row in ROWS.iter().filter(|row| matches!(row.load, Load::Http { .. })) {
        for (side, mesh) in [(Side::Ambit, ambit), (Side::Ztunnel, ztunnel)] {
            let counts = count(row, mesh, seconds)?;
            let Counts { system_calls, futex_calls, context_switches, allocations } = counts;
            write!(
                table,
                "\n| {} | {} | {system_calls:.2} | {futex_calls:.3} | {context_switches:.2} | \
                 {allocations:.2} |",
                row.name,
                side.name()
            )?;
        }
    }
    Ok(table)
}

fn count(row: &Row, mesh: &Mesh, seconds: usize) -> Result<Counts> {
    mesh.load("bench/client", &row.load.words("bench", 1))?;
    let pids: Vec<u32> = mesh.proxies()?.of_node.into_values().flatten().collect();
    let probes = Probes::place(&pids)?;
    let events = [SYSTEM_CALLS, FUTEX_CALLS, CONTEXT_SWITCHES].join(",");
    let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let load = mesh.load_command("bench/client", &row.load.words("bench", seconds));
    let mut perf = traced("perf");
    perf.args(["stat", "-x", ";", "-e", &events, "-e", &probes.events(), "-p", &pids, "--"]);
    let output = run(perf.arg(load.get_program()).args(load.get_args()))?;
    let load: serde_json::Value = serde_json::from_slice(&output.stdout)
        .context("read what the load generator says under perf")?;
    let requests = load["requests"].as_f64().context("the load generator counts requests")?;
    let mut counts = Counts::default();
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        let mut fields = line.split(';');
        let (Some(value), Some(event)) = (fields.next(), fields.nth(1)) else { continue };
        let value: f64 = value.parse().with_context(|| format!("perf counted {line:?}"))?;
        let of_request = value / requests.max(1.0);
        match event {
            SYSTEM_CALLS => counts.system_calls += of_request,
            FUTEX_CALLS => counts.futex_calls += of_request,
            CONTEXT_SWITCHES => counts.context_switches += of_request,
            _ => counts.allocations += of_request,
        }
    }
    Ok(counts)
}

/// Probes on the allocator's functions. Are removed with their last use.
struct Probes(Vec<String>);

impl Probes {
    /// Places them in the programs of these processes and in their C library.
    fn place(pids: &[u32]) -> Result<Self> {
        let mut probes = Self(Vec::new());
        for (number, file) in programs(pids)?.iter().enumerate() {
            for prefix in PREFIXES {
                for function in ALLOCATORS {
                    let name = format!("{GROUP}:{function}{}_{number}", prefix.len());
                    let mut perf = traced("perf");
                    perf.args(["probe", "-q", "-x"]).arg(file);
                    perf.arg(format!("{name}={prefix}{function}"));
                    // Most programs have some of the functions only.
                    if perf.output().context("start perf probe")?.status.success() {
                        probes.0.push(name);
                    }
                }
            }
        }
        if probes.0.is_empty() {
            bail!("perf probe finds no allocator in {pids:?}; is it stripped, or are we not root?");
        }
        Ok(probes)
    }

    fn events(&self) -> String {
        self.0.join(",")
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        let removed = run(traced("perf").args(["probe", "-q", "-d", &format!("{GROUP}:*")]));
        if let Err(error) = removed {
            eprintln!("probes {GROUP} stay in the kernel: {error:#}");
        }
    }
}

/// The programs of the processes and the C libraries that they use.
fn programs(pids: &[u32]) -> Result<BTreeSet<PathBuf>> {
    let mut files = BTreeSet::new();
    for pid in pids {
        files.insert(fs::read_link(format!("/proc/{pid}/exe")).context("find a proxy's program")?);
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let mapped = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
        files.extend(
            mapped.filter(|path| path.contains("/libc.so")).map(|path| Path::new(path).into()),
        );
    }
    Ok(files)
}

/// A command that sees the kernel's trace files.
fn traced(program: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", WITH_TRACE_FILES, "sh", program]);
    command
}

fn run(command: &mut Command) -> Result<Output> {
    let output = command.output().with_context(|| format!("start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(output)
}
