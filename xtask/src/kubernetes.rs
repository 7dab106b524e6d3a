//! `cargo xtask e2e kubernetes`: the mesh on a real cluster, from nothing and back to nothing.
//!
//! Builds Kubernetes from its own modules (`e2e/kubernetes`), starts two nodes in namespaces of
//! this machine, installs the chart with Helm, runs `crates/cli/tests/kubernetes`, takes all of it
//! down and compares the machine with what it was before. Nothing in it is a mock.

mod cluster;
mod kit;
mod remains;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::ci::{self, Counts, timed};
use crate::image::{self, Profile};
use cluster::Cluster;

/// The image as the cluster knows it.
pub(crate) const IMAGE: &str = "registry.local/ambit:test";
const NODES: u8 = 2;
/// Where all of the cluster is, unless another place is named.
const STATE: &str = "target/kubernetes";
const USAGE: &str = "\
cargo xtask e2e kubernetes [--release] [--keep | --up | --down] [--state DIR] [-- TEST WORDS]
    --release   the shipped binary instead of a quick build
    --keep      leave the cluster as the tests leave it
    --up        the cluster and the chart alone, without tests; again to update both
    --down      take a kept cluster down
    --state     where all of the cluster is [default: target/kubernetes]";

/// What to do.
struct Wanted {
    profile: Profile,
    mode: Mode,
    state: PathBuf,
    tests: Vec<String>,
}

/// Which part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Up, test, down.
    All,
    /// Up, test.
    Keep,
    /// Up.
    Up,
    /// Down.
    Down,
}

/// Runs what the words say.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    perform(&parse(words)?).map(|_| ())
}

/// Says why the tests cannot run here, if they cannot; installs Debian's packages otherwise.
pub(crate) fn prepare() -> Result<()> {
    kit::prepare()
}

/// Builds the programs of the cluster.
pub(crate) fn build() -> Result<()> {
    kit::build(&state_directory(Path::new(STATE))?)
}

/// Runs all of it.
pub(crate) fn test(profile: Profile) -> Result<Counts> {
    perform(&Wanted { profile, mode: Mode::All, state: STATE.into(), tests: Vec::new() })
}

fn state_directory(path: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(path).context("make the state directory")?;
    std::fs::canonicalize(path).context("find the state directory")
}

fn perform(wanted: &Wanted) -> Result<Counts> {
    let state = state_directory(&wanted.state)?;
    let lock = std::fs::File::create(state.join("lock")).context("make the lock")?;
    lock.try_lock().with_context(|| format!("{} is in use by another run", state.display()))?;
    if wanted.mode == Mode::Down {
        timed("cluster down", || Cluster::at(&state, NODES).down())?;
        return Ok(Counts::default());
    }
    kit::prepare().context("Kubernetes tests NOT run")?;
    let before = remains::Machine::look(&state)?;
    timed("Kubernetes from its modules", || kit::build(&state))?;
    let digest = timed("image", || build_image(&state, wanted.profile))?;
    let cluster = Cluster::at(&state, NODES);
    let is_new = !cluster.is_up();
    let outcome = up_and_test(&cluster, wanted, &digest);
    if wanted.mode != Mode::All {
        cluster.print_how_to_reach();
        return outcome;
    }
    if outcome.is_err() {
        cluster.print_state();
    }
    timed("cluster down", || cluster.down())?;
    if is_new {
        timed("nothing is left", || remains::check(&before, &remains::Machine::look(&state)?))?;
    }
    outcome
}

fn up_and_test(cluster: &Cluster, wanted: &Wanted, digest: &str) -> Result<Counts> {
    if cluster.is_up() {
        timed("images to the nodes", || cluster.import_images())?;
    } else {
        timed("cluster up", || cluster.up(wanted.mode != Mode::All))?;
    }
    timed("chart", || cluster.install_chart(digest))?;
    if wanted.mode == Mode::Up {
        return Ok(Counts::default());
    }
    timed("tests", || {
        let mut cargo = Command::new(crate::cargo());
        cargo.args(["test", "--package", "ambit-cli", "--test", "kubernetes", "--"]);
        cargo.args(["--test-threads", "1"]).args(&wanted.tests);
        cargo.env("AMBIT_KUBERNETES", cluster.state());
        cargo.env("AMBIT_BINARY", image::binary(wanted.profile)?);
        ci::run_tests(&mut cargo)
    })
}

/// Makes the image; says its digest.
fn build_image(state: &Path, profile: Profile) -> Result<String> {
    let binary = image::build(profile)?;
    let archive = state.join("img/ambit.tar");
    image::write(&binary, profile, IMAGE, &archive)
}

fn parse(words: &[&str]) -> Result<Wanted> {
    let mut wanted =
        Wanted { profile: Profile::Dev, mode: Mode::All, state: STATE.into(), tests: Vec::new() };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "--release" => wanted.profile = Profile::Release,
            "--keep" => wanted.mode = Mode::Keep,
            "--up" => wanted.mode = Mode::Up,
            "--down" => wanted.mode = Mode::Down,
            "--state" => wanted.state = words.next().context("--state: no directory")?.into(),
            "--" => wanted.tests.extend(words.by_ref().map(|word| (*word).to_owned())),
            _ => bail!("{word}: not understood\n{USAGE}"),
        }
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood_or_refused() {
        let wanted = parse(&["--keep", "--state", "x", "--", "policy"]).expect("understood");
        assert_eq!((wanted.mode, wanted.tests), (Mode::Keep, vec!["policy".to_owned()]));
        for words in [&["--nodes"][..], &["--state"]] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
