//! The chores of the project: `cargo xtask ci` is CI, `cargo xtask tidy` holds the house style,
//! `cargo xtask bench` times what must stay fast, `cargo xtask image` builds the container image
//! and `cargo xtask e2e kubernetes` tests it on a cluster.
//!
//! Nothing here ships. A chore fails with one line that names the place and the remedy.

mod bench;
mod cargo;
mod ci;
mod depth;
mod dist;
mod image;
mod kubernetes;
mod tidy;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
cargo xtask ci      what every change must pass: fmt, clippy, tidy, docs, tests; --deep: all of it
cargo xtask tidy    the house style and its scoreboard, licences and crate edges
cargo xtask bench   the micro-benchmarks, beside the run that was kept; --keep: this run
cargo xtask image   the container image: an OCI archive FROM scratch, and what it is made of
cargo xtask dist    what the page of a release offers: binary, chart, image, checksums
cargo xtask e2e kubernetes    the mesh on a real cluster of two nodes on this machine; --keep, --up,
                    --down; needs root, Go and Debian's containerd (installed when missing)
cargo xtask conformance       the Gateway API's conformance suite, there";

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
        ["ci", words @ ..] => ci::run(words),
        ["tidy"] => tidy::run(),
        ["e2e", "kubernetes", words @ ..] => kubernetes::run(words),
        ["conformance", words @ ..] => kubernetes::conform(words),
        ["bench", words @ ..] => bench::run(words),
        ["dist", words @ ..] => dist::run(words),
        ["image", words @ ..] => image::run(words),
        _ => bail!("usage:\n{USAGE}"),
    }
}
