//! What a command in a pod gets instead of the caller's files.
//!
//! Whoever has a descriptor of a file may change its mode, and may open it again with other rights.
//! A command of a stranger's image is not to do that with a file of the host. So it gets pipes in
//! the place of files and devices, and above all of terminals: who has one reads what is typed at
//! it, also when the command has ended. Pipes and sockets cannot be changed so; the null device is
//! the pod's affair.

use std::fs::File;
use std::io::{self, IsTerminal as _, PipeWriter, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::ioctl_fionread;
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::pod::is_null;

/// Passed on at once.
const PIECE_BYTES: usize = 64 * 1024;
/// After this a file that could not be written for the moment is tried again.
const AGAIN: Duration = Duration::from_millis(10);

/// Whose the keys are that are typed at a terminal while the output goes elsewhere, such as to a
/// pager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// The command's.
    Command,
    /// Those of others that read the terminal.
    Others,
}

/// Standard input, output and error of a command.
pub(super) struct Relay {
    given: [OwnedFd; 3],
    input: Option<Input>,
    outputs: Vec<Output>,
}

/// A file that is copied to a pipe.
struct Input {
    from: File,
    /// How much is in the pipe, or was taken out of it.
    poured: Arc<AtomicU64>,
    pouring: JoinHandle<()>,
}

/// A pipe that is copied to a file.
struct Output {
    copying: JoinHandle<()>,
    is_over: oneshot::Sender<()>,
    /// How the file took it.
    written: oneshot::Receiver<io::Result<()>>,
}

impl Relay {
    /// Takes the place of these.
    pub(super) fn new(fds: &[BorrowedFd<'_>; 3], keys: Keys) -> io::Result<Self> {
        let (mut inputs, mut outputs) = (None, Vec::new());
        let input = if is_harmless(fds[0])? {
            own(fds[0])?
        } else if fds[0].is_terminal() && (keys == Keys::Others || !is_in_foreground(fds[0])) {
            // To read it in the background would stop this process.
            nothing()?
        } else {
            feed(fds[0], &mut inputs)?
        };
        let output = given(fds[1], &mut outputs)?;
        // One pipe for both, or their lines would come in another order.
        let is_same = !outputs.is_empty() && same_file(fds[1], fds[2])?;
        let error = if is_same { output.try_clone()? } else { given(fds[2], &mut outputs)? };
        Ok(Self { given: [input, output, error], input: inputs, outputs })
    }

    /// What the command gets.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; 3] {
        self.given.each_ref().map(AsFd::as_fd)
    }

    /// The command has ended. Copies what it had said by then, and lets the caller's next command
    /// read on where this one has stopped. An error if its output could not be written.
    pub(super) async fn finish(self) -> io::Result<()> {
        let Self { given, input, outputs } = self;
        let mut result = match input {
            Some(input) => input.finish(&given[0]).await,
            None => Ok(()),
        };
        drop(given);
        let outputs = outputs.into_iter().map(|output| {
            let _ended_before = output.is_over.send(());
            (output.copying, output.written)
        });
        for (copying, written) in outputs.collect::<Vec<_>>() {
            let _copied = copying.await;
            result = result.and(written.await.unwrap_or(Ok(())));
        }
        result
    }
}

impl Input {
    async fn finish(mut self, pipe: &OwnedFd) -> io::Result<()> {
        self.pouring.abort();
        let _aborted = self.pouring.await;
        let left = ioctl_fionread(pipe)?;
        let read = self.poured.load(Ordering::Relaxed).saturating_sub(left);
        if read > 0 {
            // Others may have read on meanwhile.
            self.from.seek(SeekFrom::Current(i64::try_from(read).unwrap_or(i64::MAX)))?;
        }
        Ok(())
    }
}

/// What a command gets for its input: a pipe with what is in a file. A device is copied by a
/// thread of its own, which ends with the pipe's reader.
fn feed(fd: BorrowedFd<'_>, input: &mut Option<Input>) -> io::Result<OwnedFd> {
    let (reader, mut writer) = io::pipe()?;
    let mut from = File::from(own(fd)?);
    if !from.metadata()?.is_file() {
        let pour = move || drop(pass_on(&mut from, &mut writer));
        thread::Builder::new().name("exec-input".into()).spawn(pour)?;
        return Ok(reader.into());
    }
    let (start, poured) = (from.stream_position()?, Arc::new(AtomicU64::new(0)));
    let writer = Sender::from_owned_fd(writer.into())?;
    let pouring = tokio::spawn(pour(from.try_clone()?, start, writer, poured.clone()));
    *input = Some(Input { from, poured, pouring });
    Ok(reader.into())
}

/// Copies all that comes, also from what has nothing for the moment.
fn pass_on(from: &mut File, into: &mut PipeWriter) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(bytes) => into.write_all(&piece[..bytes])?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(AGAIN),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Copies a file to a pipe, and counts. What cannot be read is at its end, for the command.
async fn pour(from: File, start: u64, into: Sender, poured: Arc<AtomicU64>) {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let at = start + poured.load(Ordering::Relaxed);
        let Ok(bytes @ 1..) = from.read_at(&mut piece, at) else { return };
        if into.writable().await.is_err() {
            return;
        }
        match into.try_write(&piece[..bytes]) {
            Ok(bytes) => drop(poured.fetch_add(bytes as u64, Ordering::Relaxed)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// What a command gets for its output.
fn given(fd: BorrowedFd<'_>, outputs: &mut Vec<Output>) -> io::Result<OwnedFd> {
    if is_harmless(fd)? {
        return own(fd);
    }
    let (reader, writer) = io::pipe()?;
    let to = File::from(own(fd)?);
    let (is_over, over) = oneshot::channel();
    let (tell, written) = oneshot::channel();
    let (send, mut pieces) = mpsc::channel::<Vec<u8>>(1);
    // Not on the thread that passes signals on: a file may take nothing for long.
    let write = move || {
        let mut result = Ok(());
        while let Some(piece) = pieces.blocking_recv().filter(|_| result.is_ok()) {
            result = write_all(&to, &piece);
        }
        // Who has stopped reading wants no more: the command hears of it, and it is no fault.
        let is_unwanted = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        let _nobody_asks =
            tell.send(result.or_else(|it| if is_unwanted(&it) { Ok(()) } else { Err(it) }));
    };
    thread::Builder::new().name("exec-output".into()).spawn(write)?;
    let pipe = Receiver::from_owned_fd(reader.into())?;
    outputs.push(Output { copying: tokio::spawn(copy(pipe, send, over)), is_over, written });
    Ok(writer.into())
}

/// Copies until the command is over, and then what it had said by then: a process that it has left
/// behind may go on for ever. When the file takes no more the pipe breaks, as without us.
async fn copy(pipe: Receiver, send: mpsc::Sender<Vec<u8>>, mut over: oneshot::Receiver<()>) {
    let mut left = u64::MAX;
    while left > 0 {
        if left == u64::MAX {
            tokio::select! {
                biased;
                _over = &mut over => left = ioctl_fionread(&pipe).unwrap_or(0),
                ready = pipe.readable() => if ready.is_err() { return },
            }
        } else if pipe.readable().await.is_err() {
            return;
        }
        let most = usize::try_from(left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let mut piece = vec![0; most];
        match pipe.try_read(&mut piece) {
            Ok(bytes @ 1..) => {
                piece.truncate(bytes);
                if send.send(piece).await.is_err() {
                    return;
                }
                left = if left == u64::MAX { left } else { left - bytes as u64 };
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => return,
        }
    }
}

/// Writes all, also to what takes nothing for the moment.
fn write_all(mut to: &File, mut piece: &[u8]) -> io::Result<()> {
    while !piece.is_empty() {
        match to.write(piece) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(bytes) => piece = &piece[bytes..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(AGAIN),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether there is nothing to be changed or opened again: a pipe without a name, or a socket. Or
/// whether the pod takes care: of the null device.
fn is_harmless(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let metadata = File::from(own(fd)?).metadata()?;
    if metadata.file_type().is_socket() || is_null(&metadata) {
        return Ok(true);
    }
    let (nameless, _writer) = io::pipe()?;
    let nameless = File::from(OwnedFd::from(nameless)).metadata()?.dev();
    Ok(metadata.file_type().is_fifo() && metadata.dev() == nameless)
}

/// The null device, which has no input and takes all output.
pub(crate) fn nothing() -> io::Result<OwnedFd> {
    Ok(File::options().read(true).write(true).open("/dev/null")?.into())
}

/// Whether this process is of those to which its terminal listens now.
pub(super) fn is_in_foreground(terminal: impl AsFd) -> bool {
    tcgetpgrp(terminal).is_ok_and(|group| group == getpgrp())
}

fn same_file(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> io::Result<bool> {
    let number = |fd| -> io::Result<_> {
        let metadata = File::from(own(fd)?).metadata()?;
        Ok((metadata.dev(), metadata.ino()))
    };
    Ok(number(one)? == number(other)?)
}

fn own(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    fd.try_clone_to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn all(relay: &Relay) -> [File; 3] {
        relay.fds().map(|fd| File::from(own(fd).unwrap()))
    }

    #[tokio::test]
    async fn a_command_gets_no_file_of_the_caller() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let question = "question ".repeat(100_000);
        fs::write(path("in"), &question).unwrap();
        let mut input = File::open(path("in")).unwrap();
        input.read_exact(&mut [0; 9]).unwrap();
        let output = File::create(path("out")).unwrap();
        let relay =
            Relay::new(&[input.as_fd(), output.as_fd(), output.as_fd()], Keys::Command).unwrap();
        for file in all(&relay) {
            assert!(file.metadata().unwrap().file_type().is_fifo());
        }
        let [mut its_input, mut its_output, mut its_error] = all(&relay);
        let command = tokio::task::spawn_blocking(move || {
            let mut asked = vec![0; 300_000];
            its_input.read_exact(&mut asked).unwrap();
            writeln!(its_output, "{}?", asked.len()).unwrap();
            writeln!(its_error, "hm").unwrap();
            write!(its_output, "{}", "answer".repeat(50_000)).unwrap();
            // It leaves somebody behind who keeps its output, and who goes on for ever.
            thread::spawn(move || while its_output.write_all(&[b'y'; 1024]).is_ok() {})
        });
        let left_behind = command.await.unwrap();
        relay.finish().await.unwrap();
        left_behind.join().unwrap();
        let said = fs::read_to_string(path("out")).unwrap();
        let expected = format!("300000?\nhm\n{}", "answer".repeat(50_000));
        assert!(said.starts_with(&expected), "{} bytes", said.len());
        // Who comes next reads on behind what the command has read.
        assert_eq!(input.stream_position().unwrap(), 300_009);
        // Also if somebody else has read on meanwhile.
        let relay =
            Relay::new(&[input.as_fd(), output.as_fd(), output.as_fd()], Keys::Command).unwrap();
        input.seek(SeekFrom::Start(400_000)).unwrap();
        relay.finish().await.unwrap();
        assert_eq!(input.stream_position().unwrap(), 400_000);
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_an_error() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let relay = Relay::new(&[full.as_fd(), full.as_fd(), full.as_fd()], Keys::Command).unwrap();
        let [_, mut its_output, _] = all(&relay);
        write!(its_output, "answer").unwrap();
        drop(its_output);
        assert_eq!(relay.finish().await.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[tokio::test]
    async fn what_nobody_can_change_is_given_as_it_is() {
        let (reader, writer) = io::pipe().unwrap();
        let nothing = File::open("/dev/null").unwrap();
        let relay =
            Relay::new(&[reader.as_fd(), writer.as_fd(), nothing.as_fd()], Keys::Command).unwrap();
        assert!(relay.outputs.is_empty() && relay.input.is_none());
        assert!(same_file(relay.fds()[0], reader.as_fd()).unwrap());
        relay.finish().await.unwrap();
    }
}
