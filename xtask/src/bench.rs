//! Runs the micro-benchmarks, and compares with the committed run.
//!
//! Another machine, or the same one at another hour, is faster or slower as a whole. So it compares
//! ratios, each with the median of all: if one differs from the others, the code changed and not
//! the machine. Nothing here ever fails a build.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

const USAGE: &str = "\
cargo xtask bench [--keep]
    --keep    write this run to bench/micro.json, with which later ones are compared";

/// The run that was kept.
const KEPT: &str = "bench/micro.json";
/// A benchmark is marked when it differs from the others by more than this.
const MARKED: f64 = 1.2;

/// What each operation took, in nanoseconds, by the benchmark's name.
type Times = BTreeMap<String, f64>;

/// Runs what the words say.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let keeps = match words {
        [] => false,
        ["--keep"] => true,
        _ => bail!("{}: not understood\n{USAGE}", words.join(" ")),
    };
    let directory = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    let directory = std::path::absolute(directory.join("criterion")).context("find target")?;
    if directory.exists() {
        // A benchmark that is no longer there would be compared for ever.
        fs::remove_dir_all(&directory).context("remove the results of an earlier run")?;
    }
    let mut cargo = Command::new(crate::cargo::program());
    cargo.args(["bench", "--workspace", "--bench", "hot"]).env("CRITERION_HOME", &directory);
    let status = cargo.status().context("start cargo bench")?;
    ensure!(status.success(), "cargo bench failed");
    let mut now = Times::new();
    read_results(&directory, &mut now)?;
    ensure!(!now.is_empty(), "no results below {}", directory.display());
    match fs::read_to_string(KEPT) {
        Ok(text) => {
            let kept: Value = serde_json::from_str(&text).with_context(|| KEPT.to_owned())?;
            println!("kept: {} on {}", kept["commit"], kept["machine"]);
            print!("{}", table(&now, &times_of(&kept)));
        }
        Err(error) if keeps => println!("{KEPT}: {error}; nothing to compare with"),
        Err(error) => println!("{KEPT}: {error}; nothing to compare with, --keep writes it"),
    }
    if keeps {
        let text = format!("{:#}\n", record(&now, &commit()?, &machine()));
        fs::write(KEPT, text).with_context(|| format!("write {KEPT}"))?;
        println!("kept as {KEPT}");
    }
    Ok(())
}

/// Reads criterion's results: a directory for each benchmark, `new` in it for the last run.
fn read_results(directory: &Path, times: &mut Times) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry.context("read criterion's results")?.path();
        if !path.is_dir() {
            continue;
        }
        if !path.ends_with("new") {
            read_results(&path, times)?;
            continue;
        }
        let read = |name: &str| -> Result<Value> {
            let file = path.join(name);
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            serde_json::from_str(&text).with_context(|| file.display().to_string())
        };
        let name = read("benchmark.json")?["full_id"].as_str().map(str::to_owned);
        let median = read("estimates.json")?["median"]["point_estimate"].as_f64();
        times.insert(name.context("a name")?, median.context("a median")?);
    }
    Ok(())
}

fn times_of(kept: &Value) -> Times {
    let listed = kept["nanoseconds"].as_object().into_iter().flatten();
    listed.filter_map(|(name, time)| Some((name.clone(), time.as_f64()?))).collect()
}

fn record(now: &Times, commit: &str, machine: &str) -> Value {
    let rounded = |time: f64| (time * 10.0).round() / 10.0;
    let times: BTreeMap<_, _> = now.iter().map(|(name, time)| (name, rounded(*time))).collect();
    json!({ "commit": commit, "machine": machine, "nanoseconds": times })
}

/// A row for each benchmark of either run.
fn table(now: &Times, kept: &Times) -> String {
    let ratio = |name: &str| Some(now.get(name)? / kept.get(name)?);
    let mut ratios: Vec<f64> = now.keys().filter_map(|name| ratio(name)).collect();
    ratios.sort_by(f64::total_cmp);
    let median = ratios.get(ratios.len() / 2).copied().unwrap_or(1.0);
    let mut text = format!("{:>12} {:>12} {:>7} {:>9}\n", "kept", "now", "ratio", "to median");
    let mut names: Vec<&String> = now.keys().chain(kept.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let time = |of: &Times| of.get(name).map_or_else(|| "-".to_owned(), |it| duration(*it));
        let (whole, beside) = (ratio(name), ratio(name).map(|it| it / median));
        let number = |it: Option<f64>| it.map_or_else(|| "-".to_owned(), |it| format!("{it:.2}"));
        let verdict = match beside {
            Some(beside) if beside > MARKED => "  slower than the others",
            Some(beside) if beside < 1.0 / MARKED => "  faster than the others",
            _ => "",
        };
        writeln!(
            text,
            "{:>12} {:>12} {:>7} {:>9}  {name}{verdict}",
            time(kept),
            time(now),
            number(whole),
            number(beside)
        )
        .expect("a string takes all text");
    }
    text
}

fn duration(nanoseconds: f64) -> String {
    match nanoseconds {
        it if it < 1e3 => format!("{it:.1} ns"),
        it if it < 1e6 => format!("{:.2} us", it / 1e3),
        it => format!("{:.2} ms", it / 1e6),
    }
}

fn commit() -> Result<String> {
    let described = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let described = described.context("ask git for the commit")?.stdout;
    Ok(String::from_utf8(described).context("a commit is text")?.trim().to_owned())
}

/// The number and the model of the processors.
fn machine() -> String {
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    let known = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = known.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown", |it| it.trim_start_matches([' ', '\t', ':']));
    format!("{count}x {model}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(listed: &[(&str, f64)]) -> Times {
        listed.iter().map(|(name, time)| ((*name).to_owned(), *time)).collect()
    }

    #[test]
    fn one_that_leaves_the_others_behind_is_marked() {
        let kept = times(&[("a", 100.0), ("b", 1_000.0), ("c", 2e6), ("gone", 1.0)]);
        let twice = times(&[("a", 200.0), ("b", 2_000.0), ("c", 4e6), ("new", 1.0)]);
        assert!(!table(&twice, &kept).contains("than the others"), "the machine is slower");
        let one = times(&[("a", 200.0), ("b", 1_000.0), ("c", 2e6)]);
        let text = table(&one, &kept);
        let marked: Vec<&str> = text.lines().filter(|it| it.contains("than the others")).collect();
        assert_eq!(marked.len(), 1);
        assert!(marked[0].contains("100.0 ns     200.0 ns    2.00      2.00  a  slower"));
        assert!(text.lines().any(|line| line.ends_with('-') || line.contains("-  gone")));
    }

    #[test]
    fn what_is_kept_can_be_read_again() {
        let now = times(&[("a", 100.04), ("b", 2e6)]);
        let kept = record(&now, "abc", "2x machine");
        assert_eq!(times_of(&kept), times(&[("a", 100.0), ("b", 2e6)]));
    }
}
