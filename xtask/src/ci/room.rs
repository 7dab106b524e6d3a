//! Looks whether the disk has room for a run: one that is full half way fails in strange places.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// What a run takes below the target directory where nothing is built yet: 7.4 GB were measured
/// with `CARGO_INCREMENTAL=0`. Incremental builds keep as much again.
const WHOLE_MIB: u64 = 9 << 10;
/// What it takes where everything is built: state, logs and what is linked again.
const LEAST_MIB: u64 = 3 << 10;

/// Refuses to start where the disk would become full.
pub(super) fn check() -> Result<()> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    std::fs::create_dir_all(&target).context("make the target directory")?;
    let place = target.display().to_string();
    let free = number("df", &["-Pm", &place], 1, 3)?;
    let built = number("du", &["-sm", &place], 0, 0)?;
    let is_incremental = std::env::var_os("CARGO_INCREMENTAL").is_none_or(|it| it != "0");
    let needed = needed(built, is_incremental);
    ensure!(
        free >= needed,
        "the disk of {place} has {free} MiB free, and this run takes {needed}; make room there, or \
         set CARGO_TARGET_DIR"
    );
    Ok(())
}

fn needed(built_mib: u64, is_incremental: bool) -> u64 {
    let whole = if is_incremental { 2 * WHOLE_MIB } else { WHOLE_MIB };
    whole.saturating_sub(built_mib).max(LEAST_MIB)
}

/// A number of what a program prints, by line and column.
fn number(program: &str, words: &[&str], line: usize, column: usize) -> Result<u64> {
    let output = Command::new(program).args(words).output();
    let output = output.with_context(|| format!("start {program}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().nth(line).and_then(|it| it.split_whitespace().nth(column));
    let number = found.and_then(|it| it.parse().ok());
    number.with_context(|| format!("{program} {} prints no number: {text}", words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_needs_no_room_again() {
        let check = |built, is_incremental, expected| {
            assert_eq!(needed(built, is_incremental), expected, "{built}");
        };
        check(0, false, WHOLE_MIB);
        check(1000, false, WHOLE_MIB - 1000);
        check(WHOLE_MIB, false, LEAST_MIB);
        check(WHOLE_MIB, true, WHOLE_MIB);
        check(10 * WHOLE_MIB, true, LEAST_MIB);
    }

    #[test]
    fn the_room_of_a_disk_is_read() {
        assert!(number("df", &["-Pm", "/"], 1, 1).unwrap() > 0);
        assert!(number("df", &["-Pm", "/"], 0, 0).is_err(), "its heading is no number");
    }
}
