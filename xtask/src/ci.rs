//! CI as a program: the same steps here, on a laptop and on the CI machine.
//!
//! The tests come last, and the run ends with one line that adds up what every test binary said.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::image::{self, Profile};
use crate::kubernetes;

/// What tests said, added up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    passed: u32,
    failed: u32,
}

/// Runs every step and stops at the first that fails. Where a cluster can be made, Kubernetes is
/// built beside the steps that leave a processor idle.
pub(crate) fn run() -> Result<()> {
    let cluster = kubernetes::prepare();
    if let Err(reason) = &cluster {
        println!("== Kubernetes tests will NOT run: {reason:#}");
    }
    let programs = cluster.is_ok().then(|| thread::spawn(kubernetes::build));
    step("format", &["fmt", "--all", "--check"], &[])?;
    step("lint", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
    timed("tidy", crate::tidy::run)?;
    let deny = [("RUSTDOCFLAGS", "-D warnings")];
    step("docs", &["doc", "--workspace", "--no-deps"], &deny)?;
    step("shipped binary", &["build", "--release", "--bin", "ambit"], &[])?;
    let mut counts = Counts::default();
    if let Some(programs) = programs {
        let built = programs.join().ok().context("the thread that builds Kubernetes")?;
        built.context("build Kubernetes")?;
        counts.add(timed("Kubernetes", || kubernetes::test(Profile::Release))?);
    }
    counts.add(timed("tests", tests)?);
    if let Err(reason) = cluster {
        println!("Kubernetes tests were NOT run: {reason:#}");
    }
    println!("{} passed, {} failed", counts.passed, counts.failed);
    Ok(())
}

fn step(name: &str, words: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    timed(name, || {
        let mut cargo = Command::new(crate::cargo());
        let status = cargo.args(words).envs(environment.iter().copied()).status();
        let status = status.with_context(|| format!("start cargo {}", words.join(" ")))?;
        if !status.success() {
            bail!("{name}: cargo {} failed", words.join(" "));
        }
        Ok(())
    })
}

/// Runs one step and says how long it took.
pub(crate) fn timed<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("== {name}");
    let start = Instant::now();
    let outcome = work()?;
    println!("== {name}: {:.0} s", start.elapsed().as_secs_f64());
    Ok(outcome)
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// Runs all tests that need no cluster, end-to-end ones with the shipped binary.
fn tests() -> Result<Counts> {
    let mut cargo = Command::new(crate::cargo());
    cargo.args(["test", "--workspace", "--no-fail-fast"]);
    run_tests(cargo.env("AMBIT_BINARY", image::binary(Profile::Release)?))
}

/// Runs tests, which must pass, and adds up their closing lines.
pub(crate) fn run_tests(cargo: &mut Command) -> Result<Counts> {
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("start cargo test")?;
    let stdout = child.stdout.take().context("cargo test has a standard output")?;
    let mut counts = Counts::default();
    for line in BufReader::new(stdout).lines() {
        let line = line.context("read what cargo test says")?;
        writeln!(std::io::stdout(), "{line}")?;
        if let Some((passed, failed)) = closing_line(&line) {
            counts.add(Counts { passed, failed });
        }
    }
    let status = child.wait().context("wait for cargo test")?;
    let Counts { passed, failed } = counts;
    let is_good = status.success() && failed == 0 && passed > 0;
    ensure!(is_good, "tests failed: {passed} passed, {failed} failed");
    Ok(counts)
}

/// The counts of `test result: ok. 3 passed; 0 failed; ...`.
fn closing_line(line: &str) -> Option<(u32, u32)> {
    let rest = line.strip_prefix("test result: ")?;
    let count = |word: &str| {
        let before = rest.split(word).next()?;
        before.trim().rsplit([' ', '.']).next()?.parse().ok()
    };
    Some((count(" passed")?, count(" failed")?))
}

#[cfg(test)]
mod tests {
    use super::closing_line;

    #[test]
    fn closing_lines_are_counted() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; finished in 0.1s";
        assert_eq!(closing_line(line), Some((12, 3)));
        assert_eq!(closing_line("test foo ... ok"), None);
    }
}
