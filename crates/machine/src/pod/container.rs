//! Starts a container's processes: first as `ambit lab-container`, which sets its file tree, user,
//! session and directory, then as the program.
//!
//! The step in between is a separate process with one thread, because namespaces, sessions and
//! users belong to processes. It begins with the privileges of the pod's init, behind the stage,
//! and must give both up before it runs anything. If it fails, it prints the reason to the
//! container's log and reports it to the init.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ambit_image::mount_point::Kind;
use ambit_image::{Limits, users};
use ambit_net::sys::mount;
use ambit_net::sys::process::{self, Namespaces, Pid, Signal};
use anyhow::Context;
use clap::Parser;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

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
/// Longest reason of a failure that the init reads.
const REPORT_SIZE_MAX_BYTES: u64 = 4 << 10;

#[derive(Debug, Parser)]
#[command(name = "lab-container", hide = true)]
struct Arguments {
    /// A [`ProcessPlan`].
    #[arg(long)]
    process: String,
    /// The descriptor of the pod's tree.
    #[arg(long)]
    pod_tree: i32,
    /// That of a process of the container, whose mount namespace to join.
    #[arg(long)]
    join: Option<i32>,
    /// That of the pipe for the reason of a failure.
    #[arg(long)]
    report: i32,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Becomes the program of a container.
pub(crate) fn run(words: &[OsString]) -> anyhow::Result<ExitCode> {
    isolation::forbid_tracing()?;
    let program_name = OsString::from("lab-container");
    let arguments = Arguments::try_parse_from(std::iter::once(&program_name).chain(words))?;
    let report = process::take_inherited(arguments.report).context("take over the report")?;
    process::close_on_exec_from(3).context("let go of inherited descriptors")?;
    let ready = prepare(&arguments);
    if let Err(error) = &ready {
        // The init may be gone; the log has it too.
        let _unread = File::from(report).write_all(format!("{error:#}").as_bytes());
    }
    let home = ready?;
    let (program, rest) = arguments.command.split_first().context("a command has a program")?;
    let path = if program == SHIPPED_BINARY { OWN_BINARY.into() } else { program.clone() };
    let mut command = Command::new(path);
    if let Some(home) = home.filter(|_| std::env::var_os("HOME").is_none()) {
        command.env("HOME", home);
    }
    let error = command.arg0(program).args(rest).exec();
    eprintln!("cannot run {}: {error}", program.to_string_lossy());
    let not_found = error.kind() == io::ErrorKind::NotFound;
    Ok(ExitCode::from(if not_found { NOT_FOUND } else { NOT_EXECUTABLE }))
}

/// Becomes everything but the program; answers the user's home directory in an image.
fn prepare(arguments: &Arguments) -> anyhow::Result<Option<PathBuf>> {
    let plan: ProcessPlan =
        serde_json::from_str(&arguments.process).context("read what the process is made of")?;
    let pod_tree = process::take_inherited(arguments.pod_tree).context("take over the pod")?;
    let joined = arguments.join.map(process::take_inherited).transpose();
    process::new_session().context("start a session")?;
    process::default_signals().context("forget which signals were ignored")?;
    match (joined.context("take over the container")?, &plan.root) {
        (Some(joined), _) => {
            process::enter(joined, Namespaces::MOUNT).context("enter the container")?;
        }
        (None, None) => enter_pod(&plan.mounts, &pod_tree)?,
        (None, Some(root)) => {
            enter_image(root, &plan.mounts, &pod_tree, &plan.working_directory)?;
        }
    }
    // From here on, nothing leads back behind the stage.
    let mut user = match &plan.user {
        UserPlan::Numbers { user, group } => {
            let home = PathBuf::new();
            users::User { uid: *user, gid: *group, groups: Vec::new(), home }
        }
        UserPlan::OfImage(name) => users::resolve(Path::new("/"), name, &Limits::default())?,
    };
    user.groups.extend(&plan.groups);
    isolation::give_up_privileges()?;
    become_user(&user)?;
    std::env::set_current_dir(&plan.working_directory).with_context(|| {
        format!("workingDir {} cannot be entered", plan.working_directory.display())
    })?;
    Ok(Some(user.home).filter(|home| !home.as_os_str().is_empty()))
}

/// Makes and enters a root of the container's own. The pod's containers share `/dev`, with its
/// shared memory, and `/proc`.
fn enter_image(
    plan: &RootPlan,
    mounts: &[MountPlan],
    pod_tree: &OwnedFd,
    working_directory: &Path,
) -> anyhow::Result<()> {
    let behind = File::open("/proc/self/ns/mnt").context("open the mount namespace")?;
    process::enter(pod_tree, Namespaces::MOUNT).context("enter the pod")?;
    let take = |path: &str| -> anyhow::Result<Shown> {
        let tree = mount::detached_whole(Path::new(path));
        let tree = tree.with_context(|| format!("take the pod's {path}"))?;
        Ok(Shown { target: path.into(), tree, kind: Kind::Directory })
    };
    let mut shown = vec![take("/dev")?, take("/proc")?];
    process::enter(&behind, Namespaces::MOUNT).context("go back behind the stage")?;
    process::unshare(Namespaces::MOUNT).context("make the container's mount namespace")?;
    for (target, content) in &plan.shown {
        shown.push(root::unchanging(target, content)?);
    }
    shown.extend(take_mounts(mounts)?);
    Ok(root::enter(plan, shown, working_directory)?)
}

/// Enters the pod's tree, with volumes that only this container sees.
fn enter_pod(mounts: &[MountPlan], pod_tree: &OwnedFd) -> anyhow::Result<()> {
    let shown = take_mounts(mounts)?;
    process::enter(pod_tree, Namespaces::MOUNT).context("enter the pod")?;
    if shown.is_empty() {
        return Ok(());
    }
    process::unshare(Namespaces::MOUNT).context("make the container's mount namespace")?;
    shown.into_iter().try_for_each(|shown| Ok(room::show(shown)?))
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
    mounts.iter().map(take).collect()
}

fn become_user(user: &users::User) -> anyhow::Result<()> {
    let (uid, gid) = (user.uid, user.gid);
    // Where there is one user only, it cannot even ask for its own groups.
    if (uid, gid) == (0, 0) && user.groups.iter().all(|group| *group == 0) {
        return Ok(());
    }
    let groups: Vec<u32> = std::iter::once(gid).chain(user.groups.iter().copied()).collect();
    process::become_user(uid, gid, &groups).with_context(|| format!("become user {uid}:{gid}"))
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
}

/// Where a pod's processes come from.
#[derive(Debug)]
pub(crate) struct Stage {
    pod_tree: File,
    binary: Option<File>,
    nowhere: File,
}

impl Stage {
    /// Of the pod whose tree this is. All processes of this one inherit it, so these must be
    /// launchers, which let it go.
    pub(crate) fn new(tree: Tree, binary: Option<File>) -> io::Result<Self> {
        let Tree { namespace: pod_tree, nowhere } = tree;
        process::let_inherit(&pod_tree)?;
        Ok(Self { pod_tree, binary, nowhere })
    }

    /// Reads nothing, and forgets what is written.
    pub(crate) fn nowhere(&self) -> io::Result<OwnedFd> {
        Ok(self.nowhere.try_clone()?.into())
    }

    fn binary(&self) -> PathBuf {
        match &self.binary {
            Some(file) => format!("/proc/self/fd/{}", file.as_raw_fd()).into(),
            None => OWN_BINARY.into(),
        }
    }
}

/// A process that is about to become a container's program.
#[derive(Debug)]
pub(crate) struct Started {
    /// Its number.
    pub(crate) pid: Pid,
    report: OwnedFd,
}

impl Started {
    /// Waits until the program runs. If the process gave up before, this is its reason.
    pub(crate) async fn complaint(self) -> Option<String> {
        let mut text = String::new();
        let receiver = pipe::Receiver::from_owned_fd(self.report);
        let read = match receiver {
            Ok(receiver) => receiver.take(REPORT_SIZE_MAX_BYTES).read_to_string(&mut text).await,
            Err(error) => Err(error),
        };
        match read {
            Ok(_) => Some(text).filter(|text| !text.is_empty()),
            Err(error) => Some(format!("cannot learn whether it started: {error}")),
        }
    }
}

/// Starts a process of a container, in its own session, with `command` and more variables. The
/// caller's [`crate::reaper::Reaper`] reports its end. With `joined`, a process of the container,
/// it shares that one's file tree instead of making one.
pub(crate) fn start(
    plan: &ContainerPlan,
    stage: &Stage,
    joined: Option<Pid>,
    command: &[String],
    further: &BTreeMap<String, String>,
    streams: Streams,
) -> io::Result<Started> {
    let (report, reports) = io::pipe()?;
    let joined = joined.map(process::pidfd_open).transpose()?;
    let process = serde_json::to_string(&plan.process).expect("a plan can be written as JSON");
    let mut launcher = Command::new(stage.binary());
    launcher.arg0(SHIPPED_BINARY).arg("lab-container").args(["--process", &process]);
    launcher.args(["--pod-tree", &stage.pod_tree.as_raw_fd().to_string()]);
    // Nothing else is started meanwhile: the init has one thread.
    for (flag, fd) in
        [("--report", Some(reports.as_fd())), ("--join", joined.as_ref().map(AsFd::as_fd))]
    {
        if let Some(fd) = fd {
            process::let_inherit(fd)?;
            launcher.args([flag, &fd.as_raw_fd().to_string()]);
        }
    }
    let input = streams.input.map_or_else(|| stage.nowhere(), Ok)?;
    let child = launcher
        .arg("--")
        .args(command)
        .env_clear()
        .envs(&plan.environment)
        .envs(further)
        .stdin(input)
        .stdout(streams.output)
        .stderr(streams.error)
        .spawn()?;
    let pid = Pid::try_from(child.id()).expect("process ids are positive");
    Ok(Started { pid, report: report.into() })
}

/// Signals a container's whole session, or at least its process while the session is being made.
pub(crate) fn signal(pid: Pid, signal: Signal) {
    // Either fails only when there is nobody left to hear it.
    if process::kill(-pid, signal).is_err() {
        let _gone = process::kill(pid, signal);
    }
}
