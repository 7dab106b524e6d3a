//! A command in a pod that is typed at a terminal.
//!
//! It gets a terminal of its own. Its caller's would be in strangers' hands: whoever has a terminal
//! reads what is typed at it, and a process that a command leaves behind, or one that was there
//! before and has looked at the command, could keep it. What is typed goes to the command's
//! terminal, also Ctrl-C, and its output comes back until the command ends.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::{future, thread};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;

use super::call::{ExecError, ExecRequest, exec_with};
use super::relay::{Keys, Relay, is_in_foreground, nothing};
use crate::layout::Layout;
use crate::terminal::{TERMINAL_SIZE_MAX_BYTES, Terminal};

/// Passed on at once.
const PIECE_BYTES: usize = 32 << 10;

/// Whether these are a terminal at which somebody types for this process.
pub(super) fn is_typed_at(input: BorrowedFd<'_>, output: BorrowedFd<'_>) -> bool {
    input.is_terminal() && output.is_terminal() && is_in_foreground(input)
}

/// [`super::exec`] for a terminal, with these files of the caller.
pub(super) async fn exec(
    layout: &Layout,
    request: &ExecRequest,
    [input, output, error]: [BorrowedFd<'_>; 3],
) -> Result<i32, ExecError> {
    let files = ExecError::Files;
    let resizes = signal(SignalKind::window_change()).map_err(ExecError::Signals)?;
    let (terminal, theirs) = Terminal::open().map_err(files)?;
    adapt(&terminal, input);
    // Errors may go elsewhere.
    let nothing = nothing().map_err(files)?;
    let is_elsewhere = !error.is_terminal();
    let error = if is_elsewhere { error } else { nothing.as_fd() };
    let relay =
        Relay::new(&[nothing.as_fd(), nothing.as_fd(), error], Keys::Others).map_err(files)?;
    let raw = Raw::enter(input.try_clone_to_owned().map_err(files)?).map_err(files)?;
    let (tell, over) = oneshot::channel();
    let command = async {
        let error = if is_elsewhere { relay.fds()[2] } else { theirs.as_fd() };
        let code = exec_with(layout, request, &[theirs.as_fd(), theirs.as_fd(), error]).await;
        let _shown_until_then = tell.send(());
        code
    };
    let output = File::from(output.try_clone_to_owned().map_err(files)?);
    let (code, shown) = tokio::select! {
        both = async { tokio::join!(command, show(&terminal, Arc::new(output), over)) } => both,
        never = typed(&terminal, input) => match never? {},
        never = follow(&terminal, input, resizes) => match never {},
    };
    drop(raw);
    let code = code?;
    shown.map_err(files)?;
    relay.finish().await.map_err(files)?;
    Ok(code)
}

/// A terminal that passes on every key, until this is dropped.
struct Raw {
    terminal: OwnedFd,
    before: Termios,
}

impl Raw {
    fn enter(terminal: OwnedFd) -> io::Result<Self> {
        let before = tcgetattr(&terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&terminal, OptionalActions::Now, &raw)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs it no more.
        let _restored = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

/// Gives a terminal the size of the caller's.
fn adapt(terminal: &Terminal, caller: BorrowedFd<'_>) {
    let adapted = tcgetwinsize(caller).map_err(io::Error::from);
    if let Err(error) = adapted.and_then(|size| terminal.resize(size)) {
        tracing::debug!(%error, "the size of a terminal cannot be set");
    }
}

/// Lets a terminal have the size that the caller's gets.
async fn follow(terminal: &Terminal, caller: BorrowedFd<'_>, mut resizes: Signal) -> Infallible {
    while resizes.recv().await.is_some() {
        adapt(terminal, caller);
    }
    future::pending().await
}

/// Passes on what is typed. The thread that reads ends with the process.
async fn typed(terminal: &Terminal, input: BorrowedFd<'_>) -> Result<Infallible, ExecError> {
    let (send, mut pieces) = mpsc::channel::<Vec<u8>>(1);
    let mut input = File::from(input.try_clone_to_owned().map_err(ExecError::Files)?);
    let read = move || {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match input.read(&mut piece) {
                Ok(length @ 1..) if send.blocking_send(piece[..length].to_vec()).is_ok() => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // It is gone, or the command is.
                Ok(_) | Err(_) => return,
            }
        }
    };
    let thread = thread::Builder::new().name("exec-typed".into());
    thread.spawn(read).map_err(ExecError::Files)?;
    while let Some(piece) = pieces.recv().await {
        if terminal.write_all(&piece).await.is_err() {
            break;
        }
    }
    future::pending().await
}

/// Shows what the command writes until it is over, and then what it had written by then: a process
/// that it has left behind may go on for ever.
async fn show(
    terminal: &Terminal,
    to: Arc<File>,
    mut over: oneshot::Receiver<()>,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        tokio::select! {
            biased;
            _ended = &mut over => break,
            read = terminal.read(&mut piece) => write(&to, piece[..read?].to_vec()).await?,
        }
    }
    let mut left = TERMINAL_SIZE_MAX_BYTES;
    // Nothing, or an error, once all is read.
    while let Ok(length @ 1..) = terminal.read_now(&mut piece) {
        write(&to, piece[..length].to_vec()).await?;
        left = left.saturating_sub(length);
        if left == 0 {
            break;
        }
    }
    Ok(())
}

/// Writes all, not on the thread that passes on what is typed: a terminal may take nothing for
/// long.
async fn write(to: &Arc<File>, piece: Vec<u8>) -> io::Result<()> {
    let to = Arc::clone(to);
    spawn_blocking(move || to.as_ref().write_all(&piece)).await.map_err(io::Error::other)?
}
