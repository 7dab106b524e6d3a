//! `cargo xtask bench`: Ambit's proxy against a real ztunnel, both as they are shipped.
//!
//! Two machines of the same manifests stand side by side on this host, one with Ambit's proxy on
//! both nodes and one with ztunnel, under the same control plane, agent and capture rules. Only one
//! is loaded at a time, in turn and in an order that is shuffled anew, so that what the host does
//! meanwhile meets both. The raw numbers and how they came about are kept as a run below
//! `bench/runs`. It never touches the network of the host, and what it started it takes down.

mod counts;
mod cpu;
mod host;
mod mesh;
mod report;
mod rows;
mod statistics;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use mesh::Mesh;
use rows::{Measurement, ROWS, Side};
use statistics::Random;

/// Fewer repetitions make no interval.
const MIN_REPETITIONS: usize = 2;
/// More of them take longer than anybody waits.
const MAX_REPETITIONS: usize = 100;
/// The longest that one row may be driven.
const MAX_SECONDS: usize = 120;

/// What was asked for.
struct Options {
    ztunnel: PathBuf,
    ambit: PathBuf,
    repetitions: usize,
    seconds: usize,
    keep: bool,
}

/// Brings both machines up, measures every row in turn, says who won, and keeps the run.
pub(crate) fn peers(words: &[&str]) -> Result<()> {
    let options = Options::parse(words)?;
    let host = host::Host::describe(&options.ambit, &options.ztunnel)?;
    println!("{host}");
    let (with_ambit, with_ztunnel) = machines(&options)?;
    let seed = host::seed()?;
    let mut random = Random::new(seed);
    let mut measurements = Vec::new();
    for repetition in 1..=options.repetitions {
        for row in &ROWS {
            let mut sides = Side::ALL;
            random.shuffle(&mut sides);
            for side in sides {
                let mesh = if side == Side::Ztunnel { &with_ztunnel } else { &with_ambit };
                let measurement = Measurement::take(repetition, row, side, mesh, options.seconds)?;
                println!("{measurement}");
                measurements.push(measurement);
            }
        }
    }
    let report = report::Report::new(&measurements);
    println!("\n{report}");
    if options.keep {
        let directory = report.keep(&host, seed, &options, &measurements)?;
        println!("kept in {}", directory.display());
    }
    if report.has_lost() {
        bail!("a row is worse than ztunnel's");
    }
    Ok(())
}

/// Counts what a request costs both in system calls, futex calls and allocations.
pub(crate) fn counts(words: &[&str]) -> Result<()> {
    let options = Options::parse(words)?;
    let (with_ambit, with_ztunnel) = machines(&options)?;
    println!("per request:\n{}", counts::table(&with_ambit, &with_ztunnel, options.seconds)?);
    Ok(())
}

/// Brings up the two machines, and proves that they do the same work.
fn machines(options: &Options) -> Result<(Mesh, Mesh)> {
    let with_ambit = Mesh::up("ambit", &options.ambit, None)?;
    let with_ztunnel = Mesh::up("ztunnel", &options.ambit, Some(&options.ztunnel))?;
    with_ambit.prove()?;
    with_ztunnel.prove()?;
    println!("both: the client is let in, a stranger is refused, both proxies log each connection");
    Ok((with_ambit, with_ztunnel))
}

impl Options {
    fn parse(words: &[&str]) -> Result<Self> {
        let mut ztunnel = None;
        let mut ambit = "target/release/ambit";
        let (mut repetitions, mut seconds, mut keep) = (6, 6, true);
        let mut words = words.iter();
        while let Some(flag) = words.next() {
            if *flag == "--no-keep" {
                keep = false;
                continue;
            }
            let value = words.next().with_context(|| format!("{flag} needs a value"))?;
            match *flag {
                "--ztunnel" => ztunnel = Some(*value),
                "--ambit" => ambit = value,
                "--repetitions" => {
                    repetitions = number(flag, value, MIN_REPETITIONS, MAX_REPETITIONS)?;
                }
                "--seconds" => seconds = number(flag, value, 1, MAX_SECONDS)?,
                _ => bail!("{flag} is no flag of bench peers"),
            }
        }
        let ztunnel = ztunnel.context("name a real ztunnel with --ztunnel PATH")?;
        let find = |path: &str| std::fs::canonicalize(path).with_context(|| format!("find {path}"));
        let ambit = find(ambit).context("build it with `cargo build --release --bin ambit`")?;
        Ok(Self { ztunnel: find(ztunnel)?, ambit, repetitions, seconds, keep })
    }
}

fn number(flag: &str, text: &str, least: usize, most: usize) -> Result<usize> {
    match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => bail!("{flag} {text}: write a number between {least} and {most}"),
    }
}
