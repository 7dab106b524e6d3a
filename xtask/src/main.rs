//! The chores of the project: `cargo xtask ci` is CI, `cargo xtask tidy` holds the house style.
//!
//! Nothing here ships. A chore fails with one line that names the place and what to do.

mod ci;
mod tidy;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
cargo xtask ci      everything CI runs: fmt, clippy, tidy, docs, all tests
cargo xtask tidy    the house style and its scoreboard, licences and crate edges";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = root.parent().context("xtask lies in the workspace")?;
    std::env::set_current_dir(root).context("enter the workspace")?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["ci"] => ci::run(),
        ["tidy"] => tidy::run(),
        _ => bail!("usage:\n{USAGE}"),
    }
}
