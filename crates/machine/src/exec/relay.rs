//! What a command in a pod gets instead of the caller's files.
//!
//! Whoever has a descriptor of a file may change its mode, and may open it again with other rights.
//! A command of a stranger's image is not to do that with a file of the host. So it gets pipes in
//! the place of files and devices. Pipes and sockets cannot be changed so; terminals are the pod's
//! affair.

use std::fs::File;
use std::io::{self, IsTerminal, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::thread;

use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Read from a pipe at once.
const PIECE_BYTES: usize = 64 * 1024;

/// Standard input, output and error of a command.
pub(super) struct Relay {
    given: [OwnedFd; 3],
    outputs: Vec<Output>,
}

/// A pipe that is copied to a file.
struct Output {
    /// What is left of it then.
    copied: JoinHandle<Option<(Receiver, File)>>,
    is_over: oneshot::Sender<()>,
}

impl Relay {
    /// Takes the place of these.
    pub(super) fn new(fds: &[BorrowedFd<'_>; 3]) -> io::Result<Self> {
        let mut outputs = Vec::new();
        let input = if is_harmless(fds[0])? { own(fds[0])? } else { feed(own(fds[0])?.into())? };
        let output = given(fds[1], &mut outputs)?;
        // One pipe for both, or their lines would come in another order.
        let is_same = !outputs.is_empty() && same_file(fds[1], fds[2])?;
        let error = if is_same { output.try_clone()? } else { given(fds[2], &mut outputs)? };
        Ok(Self { given: [input, output, error], outputs })
    }

    /// What the command gets.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; 3] {
        self.given.each_ref().map(AsFd::as_fd)
    }

    /// Copies what the command has said before it ended.
    pub(super) async fn finish(self) {
        drop(self.given);
        for output in self.outputs {
            let _gone = output.is_over.send(());
            let Ok(Some((pipe, mut to))) = output.copied.await else { continue };
            let mut piece = vec![0; PIECE_BYTES];
            // A process that the command has left behind may go on for ever: it is not waited for.
            while let Ok(bytes @ 1..) = pipe.try_read(&mut piece) {
                if to.write_all(&piece[..bytes]).is_err() {
                    break;
                }
            }
        }
    }
}

/// What a command gets for its output.
fn given(fd: BorrowedFd<'_>, outputs: &mut Vec<Output>) -> io::Result<OwnedFd> {
    if is_harmless(fd)? {
        return own(fd);
    }
    let (reader, writer) = io::pipe()?;
    let (pipe, to) = (Receiver::from_owned_fd(reader.into())?, File::from(own(fd)?));
    let (is_over, over) = oneshot::channel();
    outputs.push(Output { copied: tokio::spawn(copy(pipe, to, over)), is_over });
    Ok(writer.into())
}

/// Copies until the command is over. When nobody takes its output the pipe breaks, as without us.
async fn copy(
    pipe: Receiver,
    mut to: File,
    mut over: oneshot::Receiver<()>,
) -> Option<(Receiver, File)> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        tokio::select! {
            _over = &mut over => return Some((pipe, to)),
            ready = pipe.readable() => ready.ok()?,
        }
        match pipe.try_read(&mut piece) {
            Ok(bytes @ 1..) => to.write_all(&piece[..bytes]).ok()?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => return None,
        }
    }
}

/// A pipe with what is in a file. It ends with its reader.
fn feed(mut from: File) -> io::Result<OwnedFd> {
    let (reader, writer) = io::pipe()?;
    thread::Builder::new().name("exec-input".into()).spawn(move || pour(&mut from, writer))?;
    Ok(reader.into())
}

fn pour(from: &mut File, mut into: PipeWriter) {
    let mut piece = vec![0; PIECE_BYTES];
    // What cannot be read is at its end, for the command.
    while let Ok(bytes @ 1..) = from.read(&mut piece) {
        if into.write_all(&piece[..bytes]).is_err() {
            return;
        }
    }
}

/// Whether there is nothing to be changed or opened again: a pipe without a name, or a socket.
/// Terminals are protected by the pod.
fn is_harmless(fd: BorrowedFd<'_>) -> io::Result<bool> {
    if fd.is_terminal() {
        return Ok(true);
    }
    let metadata = File::from(own(fd)?).metadata()?;
    if metadata.file_type().is_socket() {
        return Ok(true);
    }
    let (nameless, _writer) = io::pipe()?;
    let nameless = File::from(OwnedFd::from(nameless)).metadata()?.dev();
    Ok(metadata.file_type().is_fifo() && metadata.dev() == nameless)
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

    #[tokio::test]
    async fn a_command_gets_no_file_of_the_caller() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("in"), "question").unwrap();
        let input = File::open(path("in")).unwrap();
        let output = File::create(path("out")).unwrap();
        let relay = Relay::new(&[input.as_fd(), output.as_fd(), output.as_fd()]).unwrap();
        let nothing = File::open("/dev/null").unwrap();
        let of_nothing = Relay::new(&[nothing.as_fd(), nothing.as_fd(), nothing.as_fd()]).unwrap();
        for fd in relay.fds().iter().chain(&of_nothing.fds()) {
            assert!(File::from(own(*fd).unwrap()).metadata().unwrap().file_type().is_fifo());
        }
        let [its_input, its_output, its_error] = relay.fds().map(|fd| File::from(own(fd).unwrap()));
        let command = thread::spawn(move || {
            let (mut asked, mut into, mut errors) = (String::new(), its_output, its_error);
            { its_input }.read_to_string(&mut asked).unwrap();
            writeln!(into, "{asked}?").unwrap();
            writeln!(errors, "hm").unwrap();
            write!(into, "{}", "answer".repeat(5000)).unwrap();
            // It leaves somebody behind who keeps its output.
            into
        });
        let left_behind = command.join().unwrap();
        relay.finish().await;
        drop((left_behind, of_nothing));
        let said = fs::read_to_string(path("out")).unwrap();
        assert_eq!(said, format!("question?\nhm\n{}", "answer".repeat(5000)));
        // What has nothing to change is given as it is.
        let (reader, writer) = io::pipe().unwrap();
        let relay = Relay::new(&[reader.as_fd(), writer.as_fd(), writer.as_fd()]).unwrap();
        assert!(relay.outputs.is_empty() && same_file(relay.fds()[0], reader.as_fd()).unwrap());
    }
}
