//! CI as a program: the same steps here, on a laptop and on the CI machine.
//!
//! There are two depths. Every change must pass `cargo xtask ci`, with one build for tests,
//! machines and the cluster. `--deep` is for a release: it runs everything except the test of
//! scale, with the shipped binary. Steps run in parallel where they can: Kubernetes is built beside
//! our own build, and its tests run beside the others. The run ends with a table of seconds and one
//! line with the totals of all test binaries.

mod room;
mod steps;
mod suite;

use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};

use crate::depth::Depth;
use crate::image::{self, Profile};
use crate::kubernetes;
pub(crate) use steps::Steps;
use suite::Part;
pub(crate) use suite::{Counts, run_tests};

const USAGE: &str = "\
cargo xtask ci [--deep]
    --deep    all but `e2e kubernetes --scale`, at full size and with the binary that is shipped,
              on a machine that does nothing else";

/// Runs what the words say.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let depth = match words {
        [] => Depth::Change,
        ["--deep"] => Depth::Release,
        _ => bail!("{}: not understood\n{USAGE}", words.join(" ")),
    };
    let steps = Arc::new(Steps::default());
    let outcome = perform(&steps, depth);
    let reported = steps.report(outcome.is_ok());
    let Outcome { counts, not_run } = outcome?;
    reported?;
    if let Some(reason) = not_run {
        println!("Kubernetes tests were NOT run: {reason}");
    }
    println!("{} passed, {} failed", counts.passed, counts.failed);
    Ok(())
}

/// The outcome of a run whose steps all passed.
struct Outcome {
    counts: Counts,
    /// Why there was no cluster.
    not_run: Option<String>,
}

/// Runs every step and stops at the first that fails.
fn perform(steps: &Arc<Steps>, depth: Depth) -> Result<Outcome> {
    room::check()?;
    let not_run = kubernetes::prepare()?.err();
    if let (Some(reason), Depth::Release) = (&not_run, depth) {
        bail!("--deep needs a cluster: {reason}");
    }
    if let Some(reason) = &not_run {
        println!("== Kubernetes tests will NOT run: {reason}");
    }
    let has_cluster = not_run.is_none();
    // Ends with us where a step before it fails.
    let programs = has_cluster.then(|| {
        let steps = Arc::clone(steps);
        thread::spawn(move || steps.timed("Kubernetes' programs, beside", kubernetes::build))
    });
    let binary = prepare(steps, depth)?;
    if let Some(programs) = programs {
        programs.join().ok().context("the thread that builds Kubernetes panicked")??;
    }
    let counts = match depth {
        Depth::Change => side_by_side(steps, has_cluster, &binary)?,
        Depth::Release => in_turn(steps, has_cluster, &binary)?,
    };
    Ok(Outcome { counts, not_run })
}

/// Checks what can be checked without running anything, and builds all that is run; says which
/// binary is under test.
fn prepare(steps: &Steps, depth: Depth) -> Result<std::path::PathBuf> {
    let step = |name: &str, words: &[&str], environment: &[(&str, &str)]| {
        steps.timed(name, || cargo(words, environment))
    };
    step("format", &["fmt", "--all", "--check"], &[])?;
    steps.timed("tidy", crate::tidy::run)?;
    step("lint", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
    // Not part of `--all-targets`, since `cargo test` for all does not run it.
    let cluster = ["clippy", "--workspace", "--test", "kubernetes", "--", "-D", "warnings"];
    step("lint, tests on a cluster", &cluster, &[])?;
    step("docs", &["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    steps.timed("build", suite::build)?;
    match depth {
        Depth::Change => image::binary(Profile::Dev),
        Depth::Release => {
            let fuzz = ["check", "--manifest-path", "fuzz/Cargo.toml", "--locked"];
            step("fuzz targets", &fuzz, &[("RUSTFLAGS", "--cfg fuzzing")])?;
            steps.timed("the shipped binary", || image::build(Profile::Dist))
        }
    }
}

/// Runs the tests on a cluster beside all others, since both mostly wait; those under load come
/// when the others have ended, on one machine first and then on the cluster. At last it checks
/// whether the machine is left unchanged.
fn side_by_side(steps: &Steps, has_cluster: bool, binary: &std::path::Path) -> Result<Counts> {
    let before = kubernetes::look()?;
    let (end_of_others, others_end) = mpsc::channel();
    let cluster = move || kubernetes::test(steps, Depth::Change, binary, Some(&others_end));
    let (on_cluster, others) = thread::scope(|scope| {
        let on_cluster = has_cluster.then(|| scope.spawn(cluster));
        let run = |part| suite::run(Depth::Change, part, binary);
        let calm = steps.timed("tests", || run(Part::Calm));
        let others = both(calm, steps.timed("tests under load", || run(Part::UnderLoad)));
        drop(end_of_others);
        let nothing = || Ok(Counts::default());
        (on_cluster.map_or_else(nothing, joined), others)
    });
    let counts = both(others, on_cluster.context("on a cluster"))?;
    steps.timed("nothing is left", || kubernetes::nothing_is_left(&before))?;
    Ok(counts)
}

/// What two parts come to; both are heard where both fail.
fn both(one: Result<Counts>, other: Result<Counts>) -> Result<Counts> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok(one + other),
        (Err(one), Err(other)) => bail!("{one:#}; and {other:#}"),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// Everything, one after the other, at full size.
fn in_turn(steps: &Steps, has_cluster: bool, binary: &std::path::Path) -> Result<Counts> {
    let before = kubernetes::look()?;
    let mut counts = steps.timed("tests", || suite::run(Depth::Release, Part::All, binary))?;
    if has_cluster {
        counts = counts + kubernetes::test(steps, Depth::Release, binary, None)?;
    }
    steps.timed("demo", || {
        let status = Command::new(binary).arg("demo").status().context("start the demo")?;
        if status.success() { Ok(()) } else { Err(anyhow!("the demo failed ({status})")) }
    })?;
    steps.timed("nothing is left", || kubernetes::nothing_is_left(&before))?;
    Ok(counts)
}

fn joined<T>(handle: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    handle.join().map_err(|_| anyhow!("a thread panicked"))?
}

fn cargo(words: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let mut cargo = Command::new(crate::cargo::program());
    let status = cargo.args(words).envs(environment.iter().copied()).status();
    let status = status.with_context(|| format!("start cargo {}", words.join(" ")))?;
    if !status.success() {
        bail!("cargo {} failed", words.join(" "));
    }
    Ok(())
}
