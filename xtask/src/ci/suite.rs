//! The tests that need no cluster: built once, run by cargo, results added up.

use std::io::{BufRead, BufReader, Write};
use std::ops::Add;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::depth::Depth;

/// What tests said, added up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(super) passed: u32,
    pub(super) failed: u32,
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { passed: self.passed + other.passed, failed: self.failed + other.failed }
    }
}

/// Builds every test, also those that need a cluster, and with them the binary.
pub(super) fn build() -> Result<()> {
    // Beside `--tests`, `--test` is ignored.
    for targets in [&["--lib", "--bins", "--tests"][..], &["--test", "kubernetes"]] {
        let mut cargo = Command::new(crate::cargo::program());
        cargo.args(["test", "--no-run", "--quiet", "--workspace"]).args(targets);
        let status = cargo.status().context("start cargo test")?;
        ensure!(status.success(), "cargo test --no-run failed");
    }
    Ok(())
}

/// What the names of the end-to-end tests begin with that count each request of a load, or measure
/// how soon connections work again.
const UNDER_LOAD: [&str; 2] = ["disturbance::", "drills::"];

/// Which of the tests that need no cluster are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All of them.
    All,
    /// All but those under load.
    Calm,
    /// Those under load, which share the machine with no other test.
    UnderLoad,
}

/// Runs tests that need no cluster, end-to-end ones with the binary that is named, and for a
/// release at full size.
pub(super) fn run(depth: Depth, part: Part, binary: &Path) -> Result<Counts> {
    let mut cargo = Command::new(crate::cargo::program());
    cargo.args(["test", "--workspace", "--no-fail-fast"]).env("AMBIT_BINARY", binary);
    if depth == Depth::Release {
        cargo.env("AMBIT_E2E_FULL", "1");
    }
    match part {
        Part::All => {}
        Part::Calm => {
            cargo.arg("--").args(UNDER_LOAD.map(|name| ["--skip", name]).as_flattened());
        }
        Part::UnderLoad => {
            cargo.args(["--test", "e2e", "--"]).args(UNDER_LOAD);
        }
    }
    run_tests(&mut cargo)
}

/// Runs tests, which must pass, and adds up their closing lines. A binary's failures are printed in
/// one piece, because another may print at the same time.
pub(crate) fn run_tests(cargo: &mut Command) -> Result<Counts> {
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("start cargo test")?;
    let stdout = child.stdout.take().context("cargo test has a standard output")?;
    let mut counts = Counts::default();
    let mut held = String::new();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("read what cargo test says")?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let closing = closing_line(&line);
        let is_held = !held.is_empty() || line == "failures:";
        held.push_str(&line);
        held.push('\n');
        if !is_held || closing.is_some() {
            std::io::stdout().lock().write_all(held.as_bytes())?;
            held.clear();
        }
        if let Some((passed, failed)) = closing {
            counts = counts + Counts { passed, failed };
        }
    }
    std::io::stdout().lock().write_all(held.as_bytes())?;
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
