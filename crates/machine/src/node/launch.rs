//! Starts a pod's init in its own namespaces, and finds one that is running.
//!
//! A thread moves into the pod's namespaces, starts the init there, and ends: its child stays
//! there. This process itself does not change.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use ambit_net::memfd::Sealed;
use ambit_net::namespace::NetNs;
use ambit_net::seqpacket::{Connection, PacketError};
use ambit_net::sys::process::{self, Namespaces, Pid};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::image::SHIPPED_BINARY;
use crate::layout::SOCKET_NAME;
use crate::pod::{PodPlan, PodRequest, VolumePlan};
use crate::reaper::{Reaper, exit_code};

/// How long a pod's init may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How often it is looked for meanwhile.
const START_INTERVAL: Duration = Duration::from_millis(5);
/// How many of its messages may wait: the last one counts, and the log has the others.
const COMPLAINT_SIZE_MAX_BYTES: u64 = 4 << 10;

/// A pod that could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    /// No process.
    #[error("cannot start the pod's init")]
    Start(#[source] io::Error),
    /// It ended at once.
    #[error("the pod's init ended with {code}: {complaint}")]
    Ended {
        /// Its exit.
        code: i32,
        /// What it said.
        complaint: String,
    },
    /// It does not listen.
    #[error("the pod's init does not answer within {} s", START_TIMEOUT.as_secs())]
    Silent,
    /// It cannot be talked to.
    #[error("cannot talk to the pod's init at {path}")]
    Connect {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no memory for what the volumes hold.
    #[error("cannot hand over what the volumes hold")]
    Volumes(#[source] io::Error),
    /// A request could not be sent.
    #[error("cannot ask the pod's init")]
    Ask(#[source] PacketError),
}

/// A pod's init that answers.
#[derive(Debug)]
pub(crate) struct Running {
    /// Stands for the process, also after its end.
    pub(crate) pidfd: OwnedFd,
    /// Its process id inside the machine.
    pub(crate) pid: Pid,
    /// The connection that reports the pod's state.
    pub(crate) follow: Connection,
}

/// Starts a pod's init and waits until it answers.
pub(crate) async fn start(
    plan: PodPlan,
    netns: NetNs,
    reaper: &Reaper,
) -> Result<Running, LaunchError> {
    let socket = plan.directory.join(SOCKET_NAME);
    let (said, says) = io::pipe().map_err(LaunchError::Start)?;
    let pid = spawn(plan, netns, says.into()).await.map_err(LaunchError::Start)?;
    let mut ended = reaper.end_of(pid);
    let latest = Instant::now() + START_TIMEOUT;
    loop {
        if let Ok(running) = find(&socket).await {
            return Ok(running);
        }
        tokio::select! {
            exit = &mut ended => {
                let code = exit.map_or(-1, exit_code);
                return Err(LaunchError::Ended { code, complaint: complaint(said) });
            }
            () = sleep(START_INTERVAL) => {}
        }
        if Instant::now() > latest {
            let _gone = process::kill(pid, process::Signal::Kill);
            return Err(LaunchError::Silent);
        }
    }
}

/// What a dead init said last.
fn complaint(said: io::PipeReader) -> String {
    use io::Read;
    let mut text = String::new();
    // Its end of the pipe is closed, so that this does not wait.
    if let Err(error) = said.take(COMPLAINT_SIZE_MAX_BYTES).read_to_string(&mut text) {
        tracing::debug!(%error, "a pod's init said something that is no text");
    }
    text.trim().to_owned()
}

async fn spawn(plan: PodPlan, netns: NetNs, says: OwnedFd) -> io::Result<Pid> {
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new().name("pod-start".to_owned()).spawn(move || {
        // The receiver waits for it.
        let _sent = sender.send(spawn_here(&plan, &netns, says));
    })?;
    receiver.await.unwrap_or_else(|_| Err(io::Error::other("the starting thread died")))
}

fn spawn_here(plan: &PodPlan, netns: &NetNs, says: OwnedFd) -> io::Result<Pid> {
    netns.enter()?;
    process::unshare(Namespaces::MOUNT | Namespaces::PID | Namespaces::IPC | Namespaces::UTS)?;
    let mut child = Command::new("/proc/self/exe")
        .arg0(SHIPPED_BINARY)
        .arg("lab-pod-init")
        .stdin(Stdio::piped())
        // What it logs goes where this process' log goes, also after the end of this process.
        .stdout(io::stderr().as_fd().try_clone_to_owned()?)
        .stderr(says)
        .current_dir("/")
        .spawn()?;
    let text = serde_json::to_vec(plan)?;
    let mut input = child.stdin.take().expect("its input is a pipe");
    input.write_all(&text)?;
    Ok(Pid::try_from(child.id()).expect("process ids are positive"))
}

/// Connects to a running init of a pod, whichever process started it.
pub(crate) async fn find(socket: &Path) -> Result<Running, LaunchError> {
    let failed = |source| LaunchError::Connect { path: socket.to_owned(), source };
    let follow = ask(socket, &PodRequest::Follow).await?;
    let pid = follow.peer_credentials().map_err(failed)?.pid;
    let pidfd = process::pidfd_open(pid).map_err(failed)?;
    Ok(Running { pidfd, pid, follow })
}

/// Sends a request to a pod's init over a connection of its own.
pub(crate) async fn ask(socket: &Path, request: &PodRequest) -> Result<Connection, LaunchError> {
    ask_with(socket, request, &[]).await
}

/// Tells a pod's init what its volumes hold now. It may be much, and secret: it goes in memory.
pub(crate) async fn send_volumes(socket: &Path, volumes: &[VolumePlan]) -> Result<(), LaunchError> {
    let text = serde_json::to_vec(volumes).expect("volumes can be written as JSON");
    let sealed = Sealed::create("volumes", &text).map_err(LaunchError::Volumes)?;
    ask_with(socket, &PodRequest::Volumes, &[sealed.as_fd()]).await.map(drop)
}

/// [`ask`] with descriptors that the request is about.
pub(crate) async fn ask_with(
    socket: &Path,
    request: &PodRequest,
    fds: &[BorrowedFd<'_>],
) -> Result<Connection, LaunchError> {
    let failed = |source| LaunchError::Connect { path: socket.to_owned(), source };
    let connection = Connection::connect(socket).map_err(failed)?;
    let text = serde_json::to_vec(request).expect("requests can be written as JSON");
    connection.send(&text, fds).await.map_err(LaunchError::Ask)?;
    Ok(connection)
}
