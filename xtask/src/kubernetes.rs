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

use anyhow::{Context, Result, bail, ensure};

use crate::ci::{self, Counts, timed};
use crate::image::{self, Profile};
use cluster::Cluster;

/// The image as the cluster knows it.
pub(crate) const IMAGE: &str = "registry.local/ambit:test";
const NODES: u8 = 2;
/// Where all of the cluster is, unless another place is named.
const STATE: &str = "target/kubernetes";
const USAGE: &str = "\
cargo xtask e2e kubernetes [--release | --binary FILE] [--keep | --up | --down] [--state DIR]
                           [--scale PODS,PODS] [-- TEST WORDS]
    --release   the shipped binary instead of a quick build
    --binary    a static binary that is there already, instead of any build
    --scale     instead of the tests: a thousand nodes with so many pods, one number after the
                other; the report lies in the state directory, in `scale`
    --keep      leave the cluster as the tests leave it
    --up        the cluster and the chart alone, without tests; again to update both
    --down      take a kept cluster down
    --state     where all of the cluster is [default: target/kubernetes]";

/// What to do.
struct Wanted {
    profile: Profile,
    mode: Mode,
    state: PathBuf,
    /// Not to be built.
    binary: Option<PathBuf>,
    /// Numbers of pods.
    scale: Option<String>,
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
    perform(&Wanted::of(profile, Mode::All))
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
    let digest = timed("image", || build_image(&state, wanted))?;
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
        timed("cluster up", || cluster.up(wanted.mode != Mode::All, wanted.scale.is_some()))?;
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
        cargo.env("AMBIT_BINARY", wanted.binary()?);
        if let Some(pods) = &wanted.scale {
            cargo.args(["--ignored", "--nocapture", "scale::"]).env("AMBIT_SCALE", pods);
            cargo.env("AMBIT_SCALE_REPORT", cluster.state().join("scale"));
        }
        ci::run_tests(&mut cargo)
    })
}

impl Wanted {
    fn of(profile: Profile, mode: Mode) -> Self {
        Self { profile, mode, state: STATE.into(), binary: None, scale: None, tests: Vec::new() }
    }

    /// The binary under test.
    fn binary(&self) -> Result<PathBuf> {
        match &self.binary {
            Some(binary) => Ok(binary.clone()),
            None => image::binary(self.profile),
        }
    }
}

/// Makes the image; says its digest.
fn build_image(state: &Path, wanted: &Wanted) -> Result<String> {
    let binary = match &wanted.binary {
        Some(binary) => binary.clone(),
        None => image::build(wanted.profile)?,
    };
    let archive = state.join("img/ambit.tar");
    image::write(&binary, wanted.profile, IMAGE, &archive)
}

fn parse(words: &[&str]) -> Result<Wanted> {
    let mut wanted = Wanted::of(Profile::Dev, Mode::All);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "--release" => wanted.profile = Profile::Release,
            "--keep" => wanted.mode = Mode::Keep,
            "--up" => wanted.mode = Mode::Up,
            "--down" => wanted.mode = Mode::Down,
            "--state" => wanted.state = words.next().context("--state: no directory")?.into(),
            "--binary" => {
                let binary = words.next().context("--binary: no file")?;
                let binary = std::fs::canonicalize(binary).with_context(|| (*binary).to_owned())?;
                wanted.binary = Some(binary);
            }
            "--scale" => wanted.scale = Some(scale(words.next().copied().unwrap_or_default())?),
            "--" => wanted.tests.extend(words.by_ref().map(|word| (*word).to_owned())),
            _ => bail!("{word}: not understood\n{USAGE}"),
        }
    }
    Ok(wanted)
}

/// Numbers of pods, each larger than the one before it.
fn scale(numbers: &str) -> Result<String> {
    let pods: Result<Vec<u32>, _> = numbers.split(',').map(str::parse).collect();
    let pods = pods.with_context(|| format!("--scale {numbers:?}: not numbers of pods"))?;
    let grows = pods.windows(2).all(|pair| pair[0] < pair[1]) && pods[0] > 0;
    ensure!(grows, "--scale {numbers}: a cluster only grows");
    Ok(numbers.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood_or_refused() {
        let wanted = parse(&["--keep", "--state", "x", "--", "policy"]).expect("understood");
        assert_eq!((wanted.mode, wanted.tests), (Mode::Keep, vec!["policy".to_owned()]));
        let wanted = parse(&["--scale", "10000,50000"]).expect("understood");
        assert_eq!(wanted.scale.as_deref(), Some("10000,50000"));
        let wrong = [&["--nodes"][..], &["--state"], &["--scale", "2,1"], &["--scale"]];
        for words in wrong {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
