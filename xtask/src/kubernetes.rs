//! `cargo xtask e2e kubernetes`: tests the mesh on a real cluster that it builds and removes.
//!
//! Builds Kubernetes from its own modules (`e2e/kubernetes`), starts two nodes in namespaces of
//! this machine, installs the chart with Helm, runs `crates/cli/tests/kubernetes`, takes everything
//! down and compares the machine with its state before. Nothing in it is a mock.

mod cluster;
mod conformance;
mod kit;
mod remains;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::Receiver;

use anyhow::{Context, Result, bail, ensure};

use crate::ci::{self, Counts, Steps};
use crate::depth::Depth;
use crate::image::{self, Profile};
use cluster::Cluster;

/// The image as the cluster knows it.
pub(crate) const IMAGE: &str = "registry.local/ambit:test";
const NODES: u8 = 2;
/// How many tests run at a time; those that disturb the mesh wait until they are alone.
const TEST_THREADS: &str = "4";
/// What the names of those that count each request of a load have in common.
const UNDER_LOAD: &str = "nobody_notices";
/// Where all of the cluster is, unless another place is named.
const STATE: &str = "target/kubernetes";
const USAGE: &str = "\
cargo xtask e2e kubernetes [--dist | --binary FILE] [--keep | --up | --down] [--state DIR]
                           [--deep | --scale PODS,PODS] [-- TEST WORDS]
cargo xtask conformance [--dist | --binary FILE] [--keep | --up | --down] [--state DIR]
                        [-- TEST NAMES]
    --dist      the shipped binary instead of a quick build
    --deep      all tests, also those that are for a release alone
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
    depth: Depth,
    state: PathBuf,
    /// Not to be built.
    binary: Option<PathBuf>,
    /// Numbers of pods.
    scale: Option<String>,
    /// Instead of our own tests, the Gateway API's.
    is_conformance: bool,
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
    run_wanted(&parse(words)?)
}

/// Runs the Gateway API's conformance suite; the words are those of [`run`] that it knows.
pub(crate) fn conform(words: &[&str]) -> Result<()> {
    let mut wanted = parse(words)?;
    let is_other = wanted.depth == Depth::Release || wanted.scale.is_some();
    ensure!(!is_other, "the suite has no such parts\n{USAGE}");
    wanted.is_conformance = true;
    run_wanted(&wanted)
}

fn run_wanted(wanted: &Wanted) -> Result<()> {
    let steps = Steps::default();
    let state = state_directory(&wanted.state)?;
    if wanted.mode == Mode::Down {
        let _lock = lock(&state)?;
        return steps.timed("cluster down", || Cluster::at(&state, NODES).down());
    }
    if let Err(reason) = kit::possible()? {
        bail!("Kubernetes tests NOT run: {reason}");
    }
    kit::install_missing()?;
    steps.timed("Kubernetes from its modules", || kit::build(&state))?;
    if wanted.is_conformance {
        steps.timed("the suite from its modules", || conformance::build(&state))?;
    }
    let before = remains::Machine::look(&state)?;
    let is_new = !Cluster::at(&state, NODES).is_up();
    perform(&steps, wanted, &state, None)?;
    if wanted.mode == Mode::All && is_new {
        steps.timed("nothing is left", || left(&before, &state))?;
    }
    Ok(())
}

/// Says why the tests cannot run here, if they cannot; installs Debian's packages otherwise, which
/// must succeed.
pub(crate) fn prepare() -> Result<Result<(), String>> {
    let state = state_directory(Path::new(STATE))?;
    let is_up = Cluster::at(&state, NODES).is_up();
    ensure!(!is_up, "a cluster was kept; end it: cargo xtask e2e kubernetes --down");
    match kit::possible()? {
        Ok(()) => kit::install_missing().map(Ok),
        Err(reason) => Ok(Err(reason)),
    }
}

/// Builds the programs of the cluster.
pub(crate) fn build() -> Result<()> {
    kit::build(&state_directory(Path::new(STATE))?)
}

/// What the machine is like.
pub(crate) fn look() -> Result<remains::Machine> {
    remains::Machine::look(&state_directory(Path::new(STATE))?)
}

/// Fails if the machine differs from before.
pub(crate) fn nothing_is_left(before: &remains::Machine) -> Result<()> {
    left(before, &state_directory(Path::new(STATE))?)
}

/// Starts a cluster, runs the tests with this binary, and takes it down; its programs must be
/// there. Where other work goes on beside it, the tests that send load wait for its end: two cores
/// that are shared starve what is tested, and every request is late.
pub(crate) fn test(
    steps: &Steps,
    depth: Depth,
    binary: &Path,
    others: Option<&Receiver<()>>,
) -> Result<Counts> {
    let mut wanted = Wanted::of(Profile::Dev, Mode::All);
    wanted.depth = depth;
    wanted.binary = Some(binary.to_owned());
    if depth == Depth::Release {
        wanted.profile = Profile::Dist;
    }
    perform(steps, &wanted, &state_directory(Path::new(STATE))?, others)
}

fn state_directory(path: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(path).context("make the state directory")?;
    std::fs::canonicalize(path).context("find the state directory")
}

fn lock(state: &Path) -> Result<std::fs::File> {
    let lock = std::fs::File::create(state.join("lock")).context("make the lock")?;
    lock.try_lock().with_context(|| format!("{} is in use by another run", state.display()))?;
    Ok(lock)
}

fn left(before: &remains::Machine, state: &Path) -> Result<()> {
    remains::check(before, &remains::Machine::look(state)?)
}

fn perform(
    steps: &Steps,
    wanted: &Wanted,
    state: &Path,
    others: Option<&Receiver<()>>,
) -> Result<Counts> {
    let _lock = lock(state)?;
    let digest = steps.timed("image", || build_image(state, wanted))?;
    let cluster = Cluster::at(state, NODES);
    let outcome = up(steps, &cluster, wanted, &digest)
        .and_then(|()| run_all(steps, &cluster, wanted, others));
    if wanted.mode != Mode::All {
        cluster.print_how_to_reach();
        return outcome;
    }
    if outcome.is_err() {
        cluster.print_state();
    }
    let down = steps.timed("cluster down", || cluster.down());
    let counts = outcome?;
    down?;
    Ok(counts)
}

/// Brings the cluster up, with the mesh in it.
fn up(steps: &Steps, cluster: &Cluster, wanted: &Wanted, digest: &str) -> Result<()> {
    if cluster.is_up() {
        steps.timed("images to the nodes", || cluster.import_images())?;
    } else {
        let is_kept = wanted.mode != Mode::All;
        steps.timed("cluster up", || cluster.up(is_kept, wanted.scale.is_some()))?;
    }
    steps.timed("chart", || cluster.install_chart(digest))?;
    // After it: control does without, and takes it when it comes.
    steps.timed("Gateway API", || conformance::install(cluster, wanted.is_conformance))
}

/// Runs what is wanted of the tests.
fn run_all(
    steps: &Steps,
    cluster: &Cluster,
    wanted: &Wanted,
    others: Option<&Receiver<()>>,
) -> Result<Counts> {
    if wanted.mode == Mode::Up {
        return Ok(Counts::default());
    }
    if wanted.is_conformance {
        if wanted.tests.is_empty() {
            steps.timed("control without a mesh", || conformance::control(cluster))?;
        }
        steps.timed("conformance", || conformance::test(cluster, &wanted.tests))?;
        return Ok(Counts::default());
    }
    let run = |words: &[&str]| run_tests(cluster, wanted, words);
    let Some(others) = others else {
        return steps.timed("tests on a cluster", || run(&[]));
    };
    let calm = steps.timed("tests on a cluster", || run(&["--skip", UNDER_LOAD]))?;
    // Its sender says nothing: it goes when the others have ended.
    while others.recv().is_ok() {}
    let loaded = steps.timed("tests on a cluster, under load", || run(&[UNDER_LOAD]))?;
    Ok(calm + loaded)
}

fn run_tests(cluster: &Cluster, wanted: &Wanted, words: &[&str]) -> Result<Counts> {
    let mut cargo = Command::new(crate::cargo::program());
    cargo.args(["test", "--workspace", "--test", "kubernetes", "--"]);
    cargo.args(["--test-threads", TEST_THREADS]).args(&wanted.tests).args(words);
    cargo.env("AMBIT_KUBERNETES", cluster.state());
    cargo.env("AMBIT_BINARY", wanted.binary()?);
    if let Some(pods) = &wanted.scale {
        cargo.args(["--ignored", "--nocapture", "scale::"]).env("AMBIT_SCALE", pods);
        cargo.env("AMBIT_SCALE_REPORT", cluster.state().join("scale"));
    } else if wanted.depth == Depth::Release || !wanted.tests.is_empty() {
        cargo.args(["--include-ignored", "--skip", "scale::"]);
    }
    ci::run_tests(&mut cargo)
}

impl Wanted {
    fn of(profile: Profile, mode: Mode) -> Self {
        Self {
            profile,
            mode,
            depth: Depth::Change,
            state: STATE.into(),
            binary: None,
            scale: None,
            is_conformance: false,
            tests: Vec::new(),
        }
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
            "--dist" => wanted.profile = Profile::Dist,
            "--deep" => wanted.depth = Depth::Release,
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
    let runs_none = matches!(wanted.mode, Mode::Up | Mode::Down);
    let names_some =
        !wanted.tests.is_empty() || wanted.depth == Depth::Release || wanted.scale.is_some();
    ensure!(!(runs_none && names_some), "--up and --down run no tests\n{USAGE}");
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
        let wrong = [
            &["--nodes"][..],
            &["--up", "--", "policy"],
            &["--deep", "--down"],
            &["--state"],
            &["--scale", "2,1"],
            &["--scale"],
        ];
        for words in wrong {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
