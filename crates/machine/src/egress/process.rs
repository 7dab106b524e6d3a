//! `ambit lab-egress`: the process on the host that opens connections and asks resolvers for a
//! machine.
//!
//! It has nothing but one end of a socket: no terminal, no file of the user's command, no state
//! directory. It ends when the other end closes, so it outlives neither the machine nor a start
//! that failed. It judges every address itself, whatever process 1 says.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ambit_net::seqpacket::{BlockingConnection, Connection, PacketError};
use ambit_net::socket::{DialOptions, ISTIO_KEEPALIVE, tcp_dial};
use ambit_net::sys::process;
use ambit_words::names::RESOLV_CONF;
use anyhow::{Context, bail};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::allowed::Egress;
use super::protocol::{
    Answer, CONTROL_DIALS_MAX, DIALS_MAX, PACKET_SIZE_MAX_BYTES, QUERIES_MAX, Question,
};
use super::resolve;
use crate::image::SHIPPED_BINARY;

/// The hidden subcommand.
pub(crate) const COMMAND: &str = "lab-egress";
/// How long a connection may take to be opened.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts the process, where the caller is. What is returned is process 1's end of its socket: when
/// the last copy of it closes, the process ends.
pub(crate) fn start(binary: &Path, egress: &Egress, source: Option<IpAddr>) -> io::Result<OwnedFd> {
    let (theirs, ours) = BlockingConnection::pair()?;
    let mut command = Command::new(binary);
    command
        .arg0(SHIPPED_BINARY)
        .args([OsStr::new(COMMAND), OsStr::new(&egress.to_string())])
        .args(source.map(|source| source.to_string()))
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    process::start_with_standard_only(&mut command);
    // The runtime collects it if it ends before the caller.
    let _child = tokio::process::Command::from(command).spawn()?;
    Ok(ours.into())
}

/// Runs until the machine has ended.
pub(crate) fn run(words: &[OsString]) -> anyhow::Result<ExitCode> {
    process::new_session().context("leave the caller's terminal")?;
    process::raise_open_files_limit().context("raise the limit of open files")?;
    let (networks, source) = match words {
        [networks] => (networks, None),
        [networks, source] => (networks, Some(source)),
        _ => bail!("this is the machine's own; use `ambit up --egress`"),
    };
    let egress: Egress = networks.to_str().context("the networks are no text")?.parse()?;
    let source = source.map(|it| it.to_str().context("the address is no text")).transpose()?;
    let source = source.map(str::parse::<IpAddr>).transpose().context("read the address")?;
    let socket = io::stdin().as_fd().try_clone_to_owned().context("take over the socket")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(socket, egress, source))?;
    Ok(ExitCode::SUCCESS)
}

/// What the questions share.
struct Host {
    egress: Egress,
    /// Of a machine that carries a workload of a cluster: the workload's address.
    source: Option<IpAddr>,
    connection: Connection,
    dials: Semaphore,
    queries: Semaphore,
}

async fn serve(socket: OwnedFd, egress: Egress, source: Option<IpAddr>) -> anyhow::Result<()> {
    let host = Arc::new(Host {
        egress,
        source,
        connection: Connection::from_fd(socket)?,
        dials: Semaphore::new(DIALS_MAX + CONTROL_DIALS_MAX),
        queries: Semaphore::new(QUERIES_MAX),
    });
    let mut buffer = vec![0; PACKET_SIZE_MAX_BYTES];
    loop {
        let length = match host.connection.receive(&mut buffer).await {
            Ok(packet) => packet.length,
            Err(PacketError::Closed) => return Ok(()),
            // Process 1 was killed with answers that it had not taken.
            Err(PacketError::Receive(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let (number, question) =
            Question::read(&buffer[..length]).context("process 1 asks for what there is not")?;
        tokio::spawn(answer(Arc::clone(&host), number, question));
    }
}

async fn answer(host: Arc<Host>, number: u64, question: Question) {
    let outcome = match question {
        Question::Dial(to) => match host.dials.try_acquire() {
            Ok(_held) => dial(&host, to).await.map(|it| (Vec::new(), Some(it))),
            Err(_full) => Err(system_error(rustix::io::Errno::AGAIN)),
        },
        Question::Resolve(query) => match host.queries.try_acquire() {
            Ok(_held) => resolve::resolve(&query, Path::new(RESOLV_CONF))
                .await
                .map(|it| (it, None))
                .ok_or_else(|| system_error(rustix::io::Errno::TIMEDOUT)),
            Err(_full) => Err(system_error(rustix::io::Errno::AGAIN)),
        },
    };
    let (errno, content, stream) = match outcome {
        Ok((content, stream)) => (0, content, stream),
        Err(error) => (errno(&error), Vec::new(), None),
    };
    let packet = Answer { number, errno, content }.write();
    let fds: Vec<_> = stream.iter().map(AsFd::as_fd).collect();
    // Nobody waits for it when the machine has ended, and the loop above hears of that.
    let _sent = host.connection.send(&packet, &fds).await;
}

fn system_error(errno: rustix::io::Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.raw_os_error())
}

/// An error as a number; one that the system did not give is like a refused connection.
fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(rustix::io::Errno::CONNREFUSED.raw_os_error())
}

/// A connection from the host; an address that is refused is `EACCES`.
async fn dial(host: &Host, to: SocketAddr) -> io::Result<TcpStream> {
    let refusal = match host.source {
        None => host.egress.refusal(to.ip()),
        Some(_) => host.egress.refusal_of_cluster(to.ip()),
    };
    if refusal.is_some() {
        return Err(system_error(rustix::io::Errno::ACCESS));
    }
    // Others know the workload by its address, of those that the host has.
    let (keepalive, local) = (Some(ISTIO_KEEPALIVE), host.source);
    let options = DialOptions { keepalive, local, ..DialOptions::default() };
    let connecting = async { tcp_dial(to, &options)?.connected().await };
    let connecting = timeout(DIAL_TIMEOUT, connecting);
    connecting.await.unwrap_or_else(|_| Err(system_error(rustix::io::Errno::TIMEDOUT)))
}
