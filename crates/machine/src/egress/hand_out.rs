//! Hands sockets of the host's network to the proxy of a machine that carries a workload of a
//! cluster: connections to others, and the listener that others connect to.
//!
//! What passes does not pass here: the proxy has the sockets themselves. One question a connection;
//! the socket lies in the state directory, which pods do not see.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ambit_net::outside::{Question, answer, question};
use ambit_net::seqpacket::{Connection, Listener};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::way::Way;
use crate::accepting::ACCEPT_PAUSE;

/// Questions that are answered at a time; more wait.
const QUESTIONS_MAX: usize = 256;
/// How long one may take to be asked.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Answers at `path` for as long as the machine lives. Needs a runtime.
pub(super) fn serve(path: &Path, way: Arc<Way>, hbone: Arc<OwnedFd>) -> io::Result<()> {
    let listener = Listener::bind(path)?;
    tokio::spawn(async move {
        let places = Arc::new(Semaphore::new(QUESTIONS_MAX));
        loop {
            let held = Arc::clone(&places).acquire_owned().await.expect("nobody closes it");
            match listener.accept().await {
                Ok(caller) => {
                    let (way, hbone) = (Arc::clone(&way), Arc::clone(&hbone));
                    tokio::spawn(async move {
                        hand_out(&caller, &way, &hbone).await;
                        drop(held);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot take who asks for a socket; waiting");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    Ok(())
}

async fn hand_out(caller: &Connection, way: &Way, hbone: &OwnedFd) {
    let Ok(Some(asked)) = timeout(QUESTION_TIMEOUT, question(caller)).await else { return };
    let socket = match asked {
        Question::Listener => hbone.try_clone(),
        Question::Dial(to) => dial(way, to).await,
    };
    let socket = socket.map_err(|error| {
        // What the system did not say is like a host that nobody reaches.
        error.raw_os_error().unwrap_or(rustix::io::Errno::HOSTUNREACH.raw_os_error())
    });
    if let Err(error) = answer(caller, socket).await {
        tracing::debug!(%error, "who asked for a socket has gone");
    }
}

async fn dial(way: &Way, to: SocketAddr) -> io::Result<OwnedFd> {
    let dialled = way.dial(to).await;
    if let Err(error) = &dialled
        && error.kind() == io::ErrorKind::PermissionDenied
    {
        let why = "--egress does not name it, or it is the host itself";
        tracing::warn!(%to, why, "a connection of the workload is refused");
    }
    dialled.map(OwnedFd::from)
}
