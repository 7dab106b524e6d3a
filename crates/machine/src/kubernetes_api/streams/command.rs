//! A command in a container, and the files of it that its client reads and writes.
//!
//! The command runs as one of `ambit exec` does: the machine passes its files to the pod's init.
//! Here the other ends of these files stay, and what goes through them is passed on piece by piece:
//! who does not read holds up the command, and makes nothing grow. When the client is gone, so is
//! the connection to the pod's init, and it ends the command.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ambit_kubeapi::Status;
use ambit_kubeapi::streams::{Channel, Exec, TerminalSize, exited};
use ambit_net::seqpacket::Connection;
use ambit_words::error_chain;
use futures::future::join_all;
use hyper::body::Bytes;
use rustix::termios::Winsize;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};

use crate::client::PodInfo;
use crate::exec::{ExecError, answer_of, ask_as_caller, nothing};
use crate::pod::{ExecMessage, PodRequest};
use crate::state::Machine;
use crate::terminal::{TERMINAL_SIZE_MAX_BYTES, Terminal};

/// Most that is passed on at once.
const PIECE_SIZE_MAX_BYTES: usize = 32 << 10;
/// The kind of terminal that clients of Kubernetes have.
const TERMINAL_KIND: &str = "xterm";

/// What a client sends for its command.
#[derive(Debug)]
pub(super) enum Incoming {
    /// More input.
    Input(Bytes),
    /// There is no more input.
    InputEnd,
    /// Its terminal has this size.
    Resize(TerminalSize),
}

/// What the command has written, and where.
pub(super) type Outgoing = (Channel, Bytes);

/// The files of a command, here.
struct Files {
    input: Option<Input>,
    outputs: Vec<(Channel, Output)>,
    terminal: Option<Arc<Terminal>>,
}

enum Input {
    Pipe(pipe::Sender),
    Terminal(Arc<Terminal>),
}

enum Output {
    Pipe(pipe::Receiver),
    Terminal(Arc<Terminal>),
}

/// Runs a command to its end; answers with what the error channel says of it. Dropped before, it
/// ends the command.
pub(super) async fn run(
    machine: &Machine,
    pod: &PodInfo,
    exec: &Exec,
    incoming: mpsc::Receiver<Incoming>,
    outgoing: mpsc::Sender<Outgoing>,
) -> Value {
    match start(machine, pod, exec).await {
        Ok((files, connection)) => attend(files, &connection, incoming, outgoing).await,
        Err(reason) => Status::internal(reason).to_json(),
    }
}

async fn start(
    machine: &Machine,
    pod: &PodInfo,
    exec: &Exec,
) -> Result<(Files, Connection), String> {
    let (files, theirs) = if exec.tty { terminal(exec) } else { pipes(exec) }
        .map_err(|error| format!("cannot make the files of the command: {error}"))?;
    let request = PodRequest::Exec(ExecMessage {
        container: exec.container.clone(),
        command: exec.command.clone(),
        terminal: exec.tty.then(|| TERMINAL_KIND.to_owned()),
    });
    let connection = ask_as_caller(machine, pod, &request, &theirs).await?;
    Ok((files, connection))
}

fn pipes(exec: &Exec) -> io::Result<(Files, [OwnedFd; 3])> {
    let (input, their_input) = if exec.stdin {
        let (reader, writer) = io::pipe()?;
        (Some(Input::Pipe(pipe::Sender::from_owned_fd(writer.into())?)), reader.into())
    } else {
        (None, nothing()?)
    };
    let mut outputs = Vec::new();
    let mut output = |channel, is_wanted: bool| -> io::Result<OwnedFd> {
        if !is_wanted {
            return nothing();
        }
        let (reader, writer) = io::pipe()?;
        outputs.push((channel, Output::Pipe(pipe::Receiver::from_owned_fd(reader.into())?)));
        Ok(writer.into())
    };
    let their_output = output(Channel::Stdout, exec.stdout)?;
    let their_error = output(Channel::Stderr, exec.stderr)?;
    let files = Files { input, outputs, terminal: None };
    Ok((files, [their_input, their_output, their_error]))
}

fn terminal(exec: &Exec) -> io::Result<(Files, [OwnedFd; 3])> {
    let (terminal, theirs) = Terminal::open()?;
    let terminal = Arc::new(terminal);
    let input = exec.stdin.then(|| Input::Terminal(Arc::clone(&terminal)));
    let outputs = vec![(Channel::Stdout, Output::Terminal(Arc::clone(&terminal)))];
    let files = Files { input, outputs, terminal: Some(terminal) };
    Ok((files, [theirs.try_clone()?, theirs.try_clone()?, theirs]))
}

/// Passes on until the command has ended, and then what it had written by then: a process that it
/// has left behind may go on for ever.
async fn attend(
    files: Files,
    connection: &Connection,
    incoming: mpsc::Receiver<Incoming>,
    outgoing: mpsc::Sender<Outgoing>,
) -> Value {
    let Files { input, outputs, terminal } = files;
    let (has_ended, over) = watch::channel(false);
    let ended = async {
        let answer = answer_of(connection).await;
        has_ended.send_replace(true);
        answer
    };
    let copying = outputs
        .into_iter()
        .map(|(channel, output)| copy(channel, output, outgoing.clone(), over.clone()));
    let copying = join_all(copying);
    drop(outgoing);
    tokio::select! {
        (answer, _) = async { tokio::join!(ended, copying) } => said(answer),
        never = feed(input, terminal.as_deref(), incoming) => match never {},
    }
}

fn said(answer: Result<i32, ExecError>) -> Value {
    match answer.map(u8::try_from) {
        Ok(Ok(code)) => exited(code),
        Ok(Err(_)) => Status::internal("how the command ended is not known").to_json(),
        Err(error) => Status::internal(error_chain(&error)).to_json(),
    }
}

/// Passes on what the client sends, and throws away what the command does not want.
async fn feed(
    mut input: Option<Input>,
    terminal: Option<&Terminal>,
    mut incoming: mpsc::Receiver<Incoming>,
) -> std::convert::Infallible {
    while let Some(message) = incoming.recv().await {
        match message {
            Incoming::Input(bytes) => {
                let written = match &mut input {
                    Some(Input::Pipe(pipe)) => pipe.write_all(&bytes).await,
                    Some(Input::Terminal(terminal)) => terminal.write_all(&bytes).await,
                    None => Ok(()),
                };
                if written.is_err() {
                    input = None;
                }
            }
            // A terminal's input has no end but Ctrl-D, which is input.
            Incoming::InputEnd => input = None,
            Incoming::Resize(TerminalSize { rows, columns }) => {
                let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
                if let Some(Err(error)) = terminal.map(|it| it.resize(size)) {
                    tracing::debug!(%error, "the size of a terminal cannot be set");
                }
            }
        }
    }
    std::future::pending().await
}

/// Copies until the command is over, and what it had written by then.
async fn copy(
    channel: Channel,
    output: Output,
    to: mpsc::Sender<Outgoing>,
    mut over: watch::Receiver<bool>,
) {
    let mut piece = vec![0; PIECE_SIZE_MAX_BYTES];
    let mut left = None;
    loop {
        let read = match &mut left {
            None => tokio::select! {
                read = output.read(&mut piece) => read,
                _ended = over.wait_for(|over| *over) => {
                    left = Some(output.size_bytes());
                    continue;
                }
            },
            Some(0) => return,
            Some(left) => {
                let most = piece.len().min(*left);
                let read = output.read_now(&mut piece[..most]);
                *left -= read.as_ref().unwrap_or(&0);
                read
            }
        };
        // Nothing at the end, or for the moment when it is over.
        let Ok(length @ 1..) = read else { return };
        if to.send((channel, Bytes::copy_from_slice(&piece[..length]))).await.is_err() {
            return;
        }
    }
}

impl Output {
    async fn read(&self, piece: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => loop {
                pipe.readable().await?;
                match pipe.try_read(piece) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => return read,
                }
            },
            Self::Terminal(terminal) => terminal.read(piece).await,
        }
    }

    /// Reads what is there. The runtime need not have heard of it yet.
    fn read_now(&self, piece: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => Ok(rustix::io::read(pipe, piece)?),
            Self::Terminal(terminal) => terminal.read_now(piece),
        }
    }

    /// As much as it holds, or more. A command may have made its pipe larger than pipes are.
    fn size_bytes(&self) -> usize {
        match self {
            Self::Pipe(pipe) => {
                let held = rustix::io::ioctl_fionread(pipe).unwrap_or_default();
                usize::try_from(held).unwrap_or(usize::MAX)
            }
            Self::Terminal(_) => TERMINAL_SIZE_MAX_BYTES,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};
    use std::thread;

    use super::*;
    use crate::pod::{ExecAnswer, answer};

    /// A command that has all files, and with a terminal no output for errors.
    pub(in super::super) fn exec(tty: bool) -> Exec {
        Exec {
            namespace: "a".to_owned(),
            pod: "web".to_owned(),
            container: None,
            command: vec!["cat".to_owned()],
            stdin: true,
            stdout: true,
            stderr: !tty,
            tty,
        }
    }

    /// Runs a thread as the command with these files; its client sends this. Answers with what the
    /// client gets: output, errors, and how it ended.
    async fn attended(
        tty: bool,
        sent: Vec<Incoming>,
        command: impl FnOnce([File; 3]) -> ExecAnswer + Send + 'static,
    ) -> (Vec<u8>, Vec<u8>, Value) {
        let exec = exec(tty);
        let (files, theirs) =
            if tty { terminal(&exec) } else { pipes(&exec) }.expect("files of a command");
        let (own, pod) = Connection::pair().expect("a pair");
        let (send, incoming) = mpsc::channel(1);
        let (outgoing, mut receive) = mpsc::channel::<Outgoing>(1);
        let pod = async {
            let ended = tokio::task::spawn_blocking(|| command(theirs.map(File::from))).await;
            answer(&pod, &ended.expect("a command")).await;
        };
        let client = async {
            for message in sent {
                send.send(message).await.expect("it is taken");
            }
            let (mut output, mut errors) = (Vec::new(), Vec::new());
            while let Some((channel, piece)) = receive.recv().await {
                let to = if channel == Channel::Stdout { &mut output } else { &mut errors };
                to.extend_from_slice(&piece);
            }
            (output, errors)
        };
        let attending = attend(files, &own, incoming, outgoing);
        let ((output, errors), status, ()) = tokio::join!(client, attending, pod);
        (output, errors, status)
    }

    #[tokio::test]
    async fn a_command_reads_and_writes() {
        let sent = vec![
            Incoming::Input(Bytes::from(vec![b'x'; 300_000])),
            Incoming::Resize(TerminalSize { rows: 1, columns: 1 }),
            Incoming::InputEnd,
        ];
        let (output, errors, status) =
            attended(false, sent, |[mut input, mut output, mut error]| {
                let mut read = Vec::new();
                input.read_to_end(&mut read).expect("its input");
                output.write_all(&read).expect("its output");
                write!(error, "{} bytes", read.len()).expect("its errors");
                ExecAnswer::Exit(3)
            })
            .await;
        assert!(output == vec![b'x'; 300_000], "{} bytes", output.len());
        assert_eq!(errors, b"300000 bytes");
        assert_eq!(status, exited(3));
    }

    #[tokio::test]
    async fn who_is_left_behind_holds_up_nothing() {
        let (output, _, status) = attended(false, Vec::new(), |[_, mut output, error]| {
            output.write_all(b"first").expect("its output");
            thread::spawn(move || {
                let _kept = error;
                while output.write_all(&[b'y'; 1024]).is_ok() {}
            });
            ExecAnswer::Exit(0)
        })
        .await;
        assert!(output.starts_with(b"first"), "what it wrote before its end is there");
        assert_eq!(status, exited(0));
    }

    #[tokio::test]
    async fn input_that_nobody_reads_is_thrown_away() {
        let piece = || Incoming::Input(Bytes::from(vec![b'x'; 100_000]));
        let (_, _, status) = attended(false, vec![piece(), piece()], |[input, ..]| {
            drop(input);
            ExecAnswer::Exit(0)
        })
        .await;
        assert_eq!(status, exited(0));
    }

    #[tokio::test]
    async fn a_terminal_has_a_size_and_an_echo() {
        let size = TerminalSize { rows: 33, columns: 101 };
        let sent = vec![Incoming::Resize(size), Incoming::Input(Bytes::from_static(b"hello\r"))];
        let (output, errors, status) = attended(true, sent, |[mut input, mut output, _]| {
            let mut line = [0; 6];
            input.read_exact(&mut line).expect("a line");
            let size = rustix::termios::tcgetwinsize(&input).expect("it is a terminal");
            let line = String::from_utf8_lossy(&line);
            write!(output, "{line:?} {}x{}", size.ws_row, size.ws_col).expect("written");
            ExecAnswer::Exit(0)
        })
        .await;
        assert_eq!(String::from_utf8_lossy(&output), "hello\r\n\"hello\\n\" 33x101");
        assert!(errors.is_empty());
        assert_eq!(status, exited(0));
    }

    #[test]
    fn ends_are_said() {
        let check = |answer: Result<i32, ExecError>, part: &str| {
            let said = said(answer).to_string();
            assert!(said.contains(part), "{said}");
        };
        check(Ok(0), "Success");
        check(Ok(137), "\"137\"");
        check(Ok(-1), "not known");
        check(Err(ExecError::Refused { reason: "no container".to_owned() }), "no container");
    }
}
