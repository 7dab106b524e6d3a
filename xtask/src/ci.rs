//! CI as a program: the same steps here, on a laptop and on the CI machine.
//!
//! The tests come last, and the run ends with one line that adds up what every test binary said.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::image::{self, Profile};

/// Runs every step and stops at the first that fails.
pub(crate) fn run() -> Result<()> {
    step("format", &["fmt", "--all", "--check"], &[])?;
    step("lint", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
    timed("tidy", crate::tidy::run)?;
    let deny = [("RUSTDOCFLAGS", "-D warnings")];
    step("docs", &["doc", "--workspace", "--no-deps"], &deny)?;
    step("shipped binary", &["build", "--release", "--bin", "ambit"], &[])?;
    timed("tests", tests)
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

/// Runs all tests, end-to-end ones with the shipped binary, and adds up their closing lines.
fn tests() -> Result<()> {
    let mut child = Command::new(crate::cargo())
        .args(["test", "--workspace", "--no-fail-fast"])
        .env("AMBIT_BINARY", image::binary(Profile::Release)?)
        .stdout(Stdio::piped())
        .spawn()
        .context("start cargo test")?;
    let stdout = child.stdout.take().context("cargo test has a standard output")?;
    let (mut passed, mut failed) = (0, 0);
    for line in BufReader::new(stdout).lines() {
        let line = line.context("read what cargo test says")?;
        writeln!(std::io::stdout(), "{line}")?;
        if let Some((good, bad)) = closing_line(&line) {
            passed += good;
            failed += bad;
        }
    }
    let status = child.wait().context("wait for cargo test")?;
    println!("{passed} passed, {failed} failed");
    if !status.success() || failed > 0 || passed == 0 {
        bail!("tests failed");
    }
    Ok(())
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
