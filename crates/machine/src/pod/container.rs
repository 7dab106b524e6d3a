//! Starts a container's processes: first as `ambit lab-container`, which sets its file tree, user,
//! session and directory, then as the program.
//!
//! The step in between is a separate process with one thread, because namespaces, sessions and
//! users belong to processes. It begins with the privileges of the pod's init, behind the stage,
//! and must give both up before it runs anything. Until then nothing steers it that a container
//! can change, or that an image or a manifest says: its environment is empty, what it becomes comes
//! in sealed memory, and a user is looked up in the image itself. If it fails, it prints the reason
//! to the container's log and reports it to the init.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use ambit_image::mount_point::Kind;
use ambit_image::{Limits, users};
use ambit_net::memfd::Sealed;
use ambit_net::seqpacket::{BlockingConnection, Connection, PacketError};
use ambit_net::sys::mount;
use ambit_net::sys::process::{self, Namespaces, Pid, Signal};
use anyhow::{Context, bail, ensure};
use clap::Parser;
use rustix::process::ioctl_tiocsctty;
use serde::{Deserialize, Serialize};

use super::isolation::{self, Tree};
use super::root::{self, Shown};
use super::{ContainerPlan, MountPlan, ProcessPlan, RootPlan, UserPlan};
use super::{room, volumes};
use crate::image::SHIPPED_BINARY;

/// The shipped binary, also where the container's file tree does not show it.
const OWN_BINARY: &str = "/proc/self/exe";
/// What a shell answers when there is no such program.
const NOT_FOUND: u8 = 127;
/// What a shell answers when the program cannot be run.
const NOT_EXECUTABLE: u8 = 126;
/// Longest reason of a failure that is reported.
const REASON_MAX_CHARACTERS: usize = 1000;
/// Room for a report: a character takes six bytes of it at most.
const REPORT_SIZE_MAX_BYTES: usize = 8 << 10;

#[derive(Debug, Parser)]
#[command(name = "lab-container", hide = true)]
struct Arguments {
    /// The descriptor of a [`Launch`], in sealed memory.
    #[arg(long)]
    launch: i32,
    /// That of the pod's tree.
    #[arg(long)]
    pod_tree: i32,
    /// That of the container's mount namespace, which is there already.
    #[arg(long)]
    join: Option<i32>,
    /// That of the socket for [`Report`].
    #[arg(long)]
    report: i32,
    /// Those of the files by which a process enters the container's control groups.
    #[arg(long)]
    cgroup: Vec<i32>,
}

/// What a launcher becomes.
#[derive(Debug, Serialize, Deserialize)]
struct Launch {
    process: ProcessPlan,
    /// The program and its arguments.
    command: Vec<String>,
    /// Its variables.
    environment: BTreeMap<String, String>,
    /// Its standard input is a terminal, and becomes that of its session.
    owns_terminal: bool,
}

/// What a launcher says before it is the program. The program holds the socket no more, so that the
/// end of the reports is its beginning.
#[derive(Debug, Serialize, Deserialize)]
enum Report {
    /// It has made the container's mount namespace, which comes along.
    Tree {
        /// The device of its root, if that is the container's own.
        root_device: Option<u64>,
    },
    /// It has given up.
    Failure {
        /// Why.
        reason: String,
    },
}

/// Becomes the program of a container.
pub(crate) fn run(words: &[OsString]) -> anyhow::Result<ExitCode> {
    isolation::forbid_tracing()?;
    let program_name = OsString::from("lab-container");
    let arguments = Arguments::try_parse_from(std::iter::once(&program_name).chain(words))?;
    let report = process::take_inherited(arguments.report).context("take over the report")?;
    let report = BlockingConnection::from(report);
    process::close_on_exec_from(3).context("let go of inherited descriptors")?;
    let (launch, home) = match prepare(&arguments, &report) {
        Ok(ready) => ready,
        Err(error) => {
            report_failure(&report, &format!("{error:#}"));
            return Err(error);
        }
    };
    let error = become_program(&launch, &home)?;
    let reason = format!("cannot run {}: {error}", launch.command[0]);
    report_failure(&report, &reason);
    eprintln!("{reason}");
    let not_found = error.kind() == io::ErrorKind::NotFound;
    Ok(ExitCode::from(if not_found { NOT_FOUND } else { NOT_EXECUTABLE }))
}

fn report_failure(report: &BlockingConnection, reason: &str) {
    let reason = reason.chars().take(REASON_MAX_CHARACTERS).collect();
    let text = serde_json::to_vec(&Report::Failure { reason }).expect("reports can be JSON");
    // The init may be gone; the log has it too.
    let _unread = report.send(&text, &[]);
}

/// Returns only if there is no such program, or it cannot be run.
fn become_program(launch: &Launch, home: &Path) -> anyhow::Result<io::Error> {
    let (program, rest) = launch.command.split_first().context("a command has a program")?;
    // An image's own `ambit` is another program.
    let is_shipped = launch.process.root.is_none() && program == SHIPPED_BINARY;
    let mut command = Command::new(if is_shipped { OWN_BINARY } else { program });
    command.arg0(program).args(rest).env_clear();
    if !home.as_os_str().is_empty() {
        command.env("HOME", home);
    }
    Ok(command.envs(&launch.environment).exec())
}

/// Becomes everything but the program; answers with what it is and the user's home directory, which
/// is empty without an image.
fn prepare(
    arguments: &Arguments,
    report: &BlockingConnection,
) -> anyhow::Result<(Launch, PathBuf)> {
    let sealed = process::take_inherited(arguments.launch).context("take over what to run")?;
    let text = Sealed::from_fd(sealed).and_then(|sealed| sealed.read()).context("read it")?;
    let launch: Launch = serde_json::from_slice(&text).context("what to run is not as expected")?;
    let plan = &launch.process;
    let pod_tree = process::take_inherited(arguments.pod_tree).context("take over the pod")?;
    let joined = arguments.join.map(process::take_inherited).transpose();
    let cgroups = arguments.cgroup.iter().map(|fd| process::take_inherited(*fd).map(File::from));
    let cgroups = cgroups.collect::<io::Result<Vec<_>>>().context("take over control groups")?;
    process::new_session().context("start a session")?;
    if launch.owns_terminal {
        ioctl_tiocsctty(io::stdin()).context("take the terminal")?;
    }
    process::default_signals().context("forget which signals were ignored")?;
    let mut user = user(plan)?;
    user.groups.extend(&plan.groups);
    let made = match (joined.context("take over the container")?, &plan.root) {
        (Some(joined), _) => {
            process::enter(joined, Namespaces::MOUNT).context("enter the container")?;
            None
        }
        (None, None) => enter_pod(&plan.mounts, &pod_tree)?,
        (None, Some(root)) => Some(enter_image(root, plan, &pod_tree)?),
    };
    // From here on, nothing leads back behind the stage.
    if let Some(namespace) = made {
        let root_device = plan.root.as_ref().map(|_| std::fs::metadata("/").map(|it| it.dev()));
        let root_device = root_device.transpose().context("look at the container's root")?;
        let text = serde_json::to_vec(&Report::Tree { root_device })?;
        report.send(&text, &[namespace.as_fd()]).context("report the container's tree")?;
    }
    for mut entrance in cgroups {
        entrance.write_all(b"0").context("enter a control group")?;
    }
    isolation::give_up_privileges()?;
    become_user(&user, plan.is_rootless)?;
    std::env::set_current_dir(&plan.working_directory).with_context(|| {
        format!("workingDir {} cannot be entered", plan.working_directory.display())
    })?;
    Ok((launch, user.home))
}

/// Who the process runs as. Names are looked up in the image's tree, not in the container's: that
/// one may have changed, and its processes can show other files in its place.
fn user(plan: &ProcessPlan) -> anyhow::Result<users::User> {
    Ok(match (&plan.user, &plan.root) {
        (UserPlan::Numbers { user, group }, _) => {
            let home = PathBuf::new();
            users::User { uid: *user, gid: *group, groups: Vec::new(), home }
        }
        (UserPlan::OfImage(name), Some(root)) => {
            users::resolve(&root.image, name, &Limits::default())?
        }
        (UserPlan::OfImage(name), None) => bail!("user {name:?} of an image that is not there"),
    })
}

/// Makes and enters a root of the container's own; answers with its mount namespace. The pod's
/// containers share `/dev`, with its shared memory, and `/proc`.
fn enter_image(root: &RootPlan, plan: &ProcessPlan, pod_tree: &OwnedFd) -> anyhow::Result<File> {
    let behind = own_mount_namespace()?;
    process::enter(pod_tree, Namespaces::MOUNT).context("enter the pod")?;
    let take = |path: &str| -> anyhow::Result<Shown> {
        let tree = mount::detached_whole(Path::new(path));
        let tree = tree.with_context(|| format!("take the pod's {path}"))?;
        Ok(Shown { target: path.into(), tree, kind: Kind::Directory })
    };
    let mut shown = vec![take("/dev")?, take("/proc")?];
    process::enter(&behind, Namespaces::MOUNT).context("go back behind the stage")?;
    process::unshare(Namespaces::MOUNT).context("make the container's mount namespace")?;
    let namespace = own_mount_namespace()?;
    for (target, content) in &root.shown {
        shown.push(root::unchanging(target, content)?);
    }
    shown.extend(take_mounts(&plan.mounts)?);
    root::enter(root, shown, &plan.working_directory, plan.is_rootless)?;
    Ok(namespace)
}

/// Enters the pod's tree. With volumes that only this container sees, it makes a mount namespace
/// and answers with that.
fn enter_pod(mounts: &[MountPlan], pod_tree: &OwnedFd) -> anyhow::Result<Option<File>> {
    let shown = take_mounts(mounts)?;
    process::enter(pod_tree, Namespaces::MOUNT).context("enter the pod")?;
    if shown.is_empty() {
        return Ok(None);
    }
    process::unshare(Namespaces::MOUNT).context("make the container's mount namespace")?;
    let namespace = own_mount_namespace()?;
    shown.into_iter().try_for_each(room::show)?;
    Ok(Some(namespace))
}

fn own_mount_namespace() -> anyhow::Result<File> {
    File::open("/proc/self/ns/mnt").context("open the mount namespace")
}

/// Takes what a container mounts of the pod's volumes, behind the stage.
fn take_mounts(mounts: &[MountPlan]) -> anyhow::Result<Vec<Shown>> {
    let take = |mount: &MountPlan| {
        let MountPlan { source, sub_path, target, is_read_only } = mount;
        let taken = volumes::take(source, sub_path.as_deref(), *is_read_only);
        let (tree, kind) = taken.with_context(|| {
            let volume = source.file_name().unwrap_or_default().to_string_lossy();
            format!("take volume {volume:?} for {}", target.display())
        })?;
        Ok(Shown { target: target.clone(), tree, kind })
    };
    let shown: Vec<Shown> = mounts.iter().map(take).collect::<anyhow::Result<_>>()?;
    for outer in mounts.iter().filter(|mount| mount.is_read_only) {
        for inner in &shown {
            let Ok(path) = inner.target.strip_prefix(&outer.target) else { continue };
            if path != Path::new("") {
                let path = outer.sub_path.as_deref().unwrap_or(Path::new("")).join(path);
                let made = volumes::make_place(&outer.source, &path, inner.kind);
                made.with_context(|| {
                    format!("make {} in the volume around it", inner.target.display())
                })?;
            }
        }
    }
    Ok(shown)
}

/// Takes the user's numbers, and as root no group of whoever started the machine.
fn become_user(user: &users::User, is_rootless: bool) -> anyhow::Result<()> {
    let (uid, gid) = (user.uid, user.gid);
    if !is_rootless {
        let groups: Vec<u32> = std::iter::once(gid).chain(user.groups.iter().copied()).collect();
        return process::become_user(uid, gid, &groups)
            .with_context(|| format!("become user {uid}:{gid}"));
    }
    // The kernel does not let a user without privileges give up groups either.
    ensure!(
        (uid, gid) == (0, 0),
        "user {uid} with group {gid} is not there: without root a machine has one user only; run \
         `ambit up` as root, or set runAsUser and runAsGroup in securityContext to 0"
    );
    Ok(())
}

/// What a container process reads and writes.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Nothing, if absent.
    pub(crate) input: Option<OwnedFd>,
    /// Standard output.
    pub(crate) output: OwnedFd,
    /// Standard error.
    pub(crate) error: OwnedFd,
    /// The input is a terminal that no other session has.
    pub(crate) owns_terminal: bool,
}

impl Streams {
    /// The same of other descriptors.
    pub(crate) fn map(self, other: impl Fn(OwnedFd) -> io::Result<OwnedFd>) -> io::Result<Self> {
        let Self { input, output, error, owns_terminal } = self;
        let input = input.map(&other).transpose()?;
        Ok(Self { input, output: other(output)?, error: other(error)?, owns_terminal })
    }
}

/// Where a pod's processes come from.
#[derive(Debug)]
pub(crate) struct Stage {
    pod_tree: File,
    binary: Option<File>,
    nowhere: File,
    processes: File,
}

impl Stage {
    /// Of the pod whose tree this is. All processes of this one inherit it, so these must be
    /// launchers, which let it go.
    pub(crate) fn new(tree: Tree, binary: Option<File>) -> io::Result<Self> {
        let Tree { namespace: pod_tree, nowhere, processes } = tree;
        process::let_inherit(&pod_tree)?;
        Ok(Self { pod_tree, binary, nowhere, processes })
    }

    /// Reads nothing, and forgets what is written.
    pub(crate) fn nowhere(&self) -> io::Result<OwnedFd> {
        Ok(self.nowhere.try_clone()?.into())
    }

    /// The pod's `/proc`.
    pub(crate) fn processes(&self) -> &File {
        &self.processes
    }

    fn binary(&self) -> PathBuf {
        match &self.binary {
            Some(file) => format!("/proc/self/fd/{}", file.as_raw_fd()).into(),
            None => OWN_BINARY.into(),
        }
    }
}

/// A child of the init. Its number is its own until the init has waited for it.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    /// Its number.
    pub(crate) pid: Pid,
    handle: Arc<OwnedFd>,
}

impl Process {
    /// Whether the init has waited for it.
    pub(crate) fn has_ended(&self) -> bool {
        process::send_signal(&*self.handle, Signal::Number(0)).is_err()
    }

    /// Signals its whole session, or at least the process while the session is being made. Does
    /// nothing if it has ended: its number may be another's.
    pub(crate) fn signal(&self, signal: Signal) {
        // The init has one thread, so that nothing waits for the process meanwhile.
        if !self.has_ended() && process::kill(-self.pid, signal).is_err() {
            // This fails only when there is nobody left to hear it.
            let _gone = process::send_signal(&*self.handle, signal);
        }
    }
}

/// Ends a command when nobody waits for it any more.
#[derive(Debug)]
pub(crate) struct Attended(pub(crate) Process);

impl Drop for Attended {
    fn drop(&mut self) {
        self.0.signal(Signal::Kill);
    }
}

/// A file tree that a container does not share with the pod.
#[derive(Debug)]
pub(crate) struct OwnTree {
    /// Its mount namespace.
    pub(crate) namespace: OwnedFd,
    /// The device of its root, if that is the container's own.
    pub(crate) root_device: Option<u64>,
}

/// A process that is about to become a container's program.
#[derive(Debug)]
pub(crate) struct Started {
    /// The process.
    pub(crate) process: Process,
    reports: BlockingConnection,
}

impl Started {
    /// Waits until the program runs; answers with the tree that it has for itself, if any. If the
    /// process gave up before, the error is its reason.
    pub(crate) async fn launched(self) -> Result<Option<OwnTree>, String> {
        let unclear = |error: &dyn std::error::Error| {
            format!("cannot learn whether it started: {}", ambit_words::error_chain(error))
        };
        let reports = Connection::from_fd(self.reports.into()).map_err(|error| unclear(&error))?;
        let mut buffer = vec![0; REPORT_SIZE_MAX_BYTES];
        let mut tree = None;
        loop {
            let packet = match reports.receive(&mut buffer).await {
                Ok(packet) => packet,
                Err(PacketError::Closed) => return Ok(tree),
                Err(error) => return Err(unclear(&error)),
            };
            let report = serde_json::from_slice(&buffer[..packet.length]);
            match report.map_err(|error| unclear(&error))? {
                Report::Failure { reason } => return Err(reason),
                Report::Tree { root_device } => {
                    let namespace = packet.fds.into_iter().next();
                    tree = namespace.map(|namespace| OwnTree { namespace, root_device });
                }
            }
        }
    }
}

/// Starts a process of a container, in its own session, with `command` and more variables. The
/// caller's [`crate::reaper::Reaper`] reports its end. With `joined`, the container's mount
/// namespace, it shares that file tree instead of making one. `cgroups` are the files by which it
/// enters the container's control groups.
pub(crate) fn start(
    plan: &ContainerPlan,
    stage: &Stage,
    joined: Option<BorrowedFd<'_>>,
    cgroups: &[File],
    command: &[String],
    further: &BTreeMap<String, String>,
    streams: Streams,
) -> io::Result<Started> {
    let mut environment = plan.environment.clone();
    environment.extend(further.clone());
    let (process, command) = (plan.process.clone(), command.to_vec());
    let owns_terminal = streams.owns_terminal;
    let launch = Launch { process, command, environment, owns_terminal };
    let launch = serde_json::to_vec(&launch).expect("plans can be written as JSON");
    let launch = Sealed::create("launch", &launch)?;
    let (reports, reporter) = BlockingConnection::pair()?;
    let joined = joined.map(|joined| joined.try_clone_to_owned()).transpose()?;
    let mut launcher = Command::new(stage.binary());
    launcher.arg0(SHIPPED_BINARY).arg("lab-container").env_clear();
    // Nothing else is started meanwhile: the init has one thread.
    let fds = [
        ("--launch", Some(launch.as_fd())),
        ("--pod-tree", Some(stage.pod_tree.as_fd())),
        ("--report", Some(reporter.as_fd())),
        ("--join", joined.as_ref().map(AsFd::as_fd)),
    ];
    let fds = fds.into_iter().filter_map(|(flag, fd)| Some((flag, fd?)));
    for (flag, fd) in fds.chain(cgroups.iter().map(|entrance| ("--cgroup", entrance.as_fd()))) {
        process::let_inherit(fd)?;
        launcher.args([flag, &fd.as_raw_fd().to_string()]);
    }
    let input = streams.input.map_or_else(|| stage.nowhere(), Ok)?;
    let child = launcher.stdin(input).stdout(streams.output).stderr(streams.error).spawn()?;
    let pid = Pid::try_from(child.id()).expect("process ids are positive");
    let handle = Arc::new(process::pidfd_open(pid)?);
    Ok(Started { process: Process { pid, handle }, reports })
}
