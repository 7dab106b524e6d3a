//! Connections of a client to ports of a pod, all over one SPDY connection.
//!
//! For each the client opens two streams: one on which it learns what went wrong, and then one for
//! the bytes. SPDY's windows are not kept to, by clients neither: a program in the pod that does
//! not read holds up the other connections of this client too, as on Kubernetes.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use ambit_kubeapi::spdy::{FrameWriter, ResetCode};
use futures::future::BoxFuture;
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use super::spdy::{Event, Outbox, Session, SessionError, header};
use crate::client::PodInfo;
use crate::exec::{answer_of, ask_as_caller};
use crate::pod::PodRequest;
use crate::state::Machine;

/// Connections of a client at once, those of which one stream is open included.
const CONNECTIONS_MAX: usize = 256;
/// Most that is passed on at once.
const PIECE_SIZE_MAX_BYTES: usize = 32 << 10;

/// Connects to a port.
pub(super) type Connect =
    Arc<dyn Fn(u16) -> BoxFuture<'static, Result<Connected, String>> + Send + Sync>;

/// A connection to a port.
pub(super) struct Connected {
    /// Its bytes.
    socket: UnixStream,
    /// How it ended.
    ended: BoxFuture<'static, Result<(), String>>,
}

/// How ports of a pod are connected to: by the pod's init, as for `ambit port-forward`.
pub(super) fn connect_within(machine: Arc<Machine>, pod: PodInfo) -> Connect {
    let pod = Arc::new(pod);
    Arc::new(move |port| {
        let (machine, pod) = (Arc::clone(&machine), Arc::clone(&pod));
        Box::pin(async move {
            let failed = |error: io::Error| error.to_string();
            let (socket, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
            socket.set_nonblocking(true).map_err(failed)?;
            let socket = UnixStream::from_std(socket).map_err(failed)?;
            let request = PodRequest::Forward { port };
            let asked = ask_as_caller(&machine, &pod, &request, &[theirs.into()]).await?;
            let ended = async move {
                let answer = answer_of(&asked).await;
                answer.map(drop).map_err(|error| ambit_words::error_chain(&error))
            };
            Ok(Connected { socket, ended: Box::pin(ended) })
        })
    })
}

/// A connection whose streams are open.
struct Open {
    /// Takes what the client sends; none after its last.
    input: Option<mpsc::Sender<Bytes>>,
    /// Ends it when it is dropped.
    _cut: oneshot::Sender<()>,
}

/// The connections of a client.
struct Forwarding<R> {
    session: Session<R>,
    outbox: Outbox,
    connect: Connect,
    /// For the connections of all clients.
    room: Arc<Semaphore>,
    /// Error streams that wait for the stream of bytes, by the number of the connection, and its
    /// place.
    waiting: HashMap<String, (u32, OwnedSemaphorePermit)>,
    /// By the stream of bytes.
    open: HashMap<u32, Open>,
    /// Each answers with its stream of bytes.
    carrying: JoinSet<u32>,
}

/// What a stream is for.
struct Purpose {
    is_error: bool,
    port: u16,
    request: String,
}

/// Carries a client's connections until it ends.
pub(super) async fn serve<S>(connection: S, pod: &str, connect: Connect, room: Arc<Semaphore>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (reader, writer) = tokio::io::split(connection);
    let (session, outbox, outgoing) = Session::new(reader);
    let forwarding = async {
        let (waiting, open, carrying) = (HashMap::new(), HashMap::new(), JoinSet::new());
        let mut forwarding = Forwarding { session, outbox, connect, room, waiting, open, carrying };
        if let Err(error) = forwarding.run(pod).await {
            forwarding.session.end(&error).await;
        }
        forwarding.carrying.shutdown().await;
    };
    let mut writing = std::pin::pin!(outgoing.write(writer));
    let written = tokio::select! {
        written = &mut writing => written,
        // It ends the connections, and lets go of the outbox.
        () = forwarding => writing.await,
    };
    if let Err(error) = written {
        tracing::debug!(%error, "a client of a port-forward is gone");
    }
}

impl<R: AsyncRead + Unpin> Forwarding<R> {
    async fn run(&mut self, pod: &str) -> Result<(), SessionError> {
        while let Some(event) = self.session.next().await? {
            while let Some(ended) = self.carrying.try_join_next() {
                self.open.remove(&ended.expect("a connection does not panic, nor is it aborted"));
            }
            match event {
                Event::Open { stream, headers, is_last } => {
                    self.begin(pod, stream, &headers).await?;
                    self.close(stream, is_last);
                }
                Event::Data { stream, bytes, is_last } => {
                    let input = self.open.get(&stream).and_then(|it| it.input.as_ref());
                    if let Some(input) = input.filter(|_| !bytes.is_empty()) {
                        // One that has ended takes nothing more.
                        let _ended = input.send(bytes).await;
                    }
                    self.close(stream, is_last);
                }
                Event::Reset { stream } => {
                    self.open.remove(&stream);
                    self.waiting.retain(|_, (error, _)| *error != stream);
                }
            }
        }
        Ok(())
    }

    /// Notes that the client sends no more on a stream, if it is so.
    fn close(&mut self, stream: u32, is_last: bool) {
        if let Some(open) = self.open.get_mut(&stream).filter(|_| is_last) {
            open.input = None;
        }
    }

    async fn begin(
        &mut self,
        pod: &str,
        stream: u32,
        headers: &[(String, String)],
    ) -> Result<(), SessionError> {
        let Some(Purpose { is_error, port, request }) = purpose(headers) else {
            return self.session.refuse(stream, ResetCode::ProtocolError).await;
        };
        if is_error {
            if self.waiting.contains_key(&request) {
                return self.session.refuse(stream, ResetCode::ProtocolError).await;
            }
            // kubectl ends with all its connections if it is told on the stream of errors.
            let held = Arc::clone(&self.room).try_acquire_owned().ok();
            let is_full = self.waiting.len() + self.open.len() >= CONNECTIONS_MAX;
            let Some(held) = held.filter(|_| !is_full) else {
                return self.session.refuse(stream, ResetCode::Refused).await;
            };
            self.session.accept(stream).await?;
            self.waiting.insert(request, (stream, held));
            return Ok(());
        }
        let Some((error, held)) = self.waiting.remove(&request) else {
            return self.session.refuse(stream, ResetCode::ProtocolError).await;
        };
        self.session.accept(stream).await?;
        let (input, received) = mpsc::channel(1);
        let (cut, is_cut) = oneshot::channel();
        self.open.insert(stream, Open { input: Some(input), _cut: cut });
        let (connect, outbox) = (Arc::clone(&self.connect), self.outbox.clone());
        let place = format!("port {port} of pod {pod}");
        self.carrying.spawn(async move {
            let mut answer = Answer { stream, outbox: outbox.clone(), is_over: false };
            let carried = carry(connect(port), &mut answer, received, is_cut).await;
            drop(held);
            let said = carried.map_err(|reason| format!("error forwarding {place}: {reason}"));
            let said = said.err().unwrap_or_default();
            // A client that is gone needs none.
            let _gone = outbox.send(FrameWriter::data(error, said.as_bytes(), true)).await;
            answer.end().await;
            stream
        });
        Ok(())
    }
}

fn purpose(headers: &[(String, String)]) -> Option<Purpose> {
    let is_error = match header(headers, "streamtype")? {
        "error" => true,
        "data" => false,
        _ => return None,
    };
    let port = header(headers, "port")?.parse().ok().filter(|port| *port != 0)?;
    let request = header(headers, "requestid").filter(|it| !it.is_empty())?.to_owned();
    Some(Purpose { is_error, port, request })
}

/// Carries a connection until both ways have ended, or the client wants no more of it.
async fn carry(
    connecting: BoxFuture<'static, Result<Connected, String>>,
    answer: &mut Answer,
    input: mpsc::Receiver<Bytes>,
    is_cut: oneshot::Receiver<()>,
) -> Result<(), String> {
    let carried = async {
        let Connected { socket, ended } = connecting.await?;
        let (from, to) = socket.into_split();
        tokio::select! {
            (ended, ()) = async { tokio::join!(ended, answer.copy(from)) } => ended,
            never = feed(input, to) => match never {},
        }
    };
    tokio::select! {
        // If both are over it is said why.
        biased;
        carried = carried => carried,
        _cut = is_cut => Ok(()),
    }
}

/// Passes on what the client sends, and then its end.
async fn feed(
    mut input: mpsc::Receiver<Bytes>,
    mut to: OwnedWriteHalf,
) -> std::convert::Infallible {
    while let Some(bytes) = input.recv().await {
        if to.write_all(&bytes).await.is_err() {
            break;
        }
    }
    // The program learns that there is no more.
    drop(to);
    // What it does not want is thrown away.
    while input.recv().await.is_some() {}
    std::future::pending().await
}

/// What the client is sent of a connection.
struct Answer {
    stream: u32,
    outbox: Outbox,
    /// It was told that there is no more.
    is_over: bool,
}

impl Answer {
    /// Passes on what the program sends, and then its end.
    async fn copy(&mut self, mut from: OwnedReadHalf) {
        let mut piece = vec![0; PIECE_SIZE_MAX_BYTES];
        loop {
            // One that is cut has ended.
            let length = from.read(&mut piece).await.unwrap_or(0);
            if length == 0 {
                return self.end().await;
            }
            let frame = FrameWriter::data(self.stream, &piece[..length], false);
            if self.outbox.send(frame).await.is_err() {
                return;
            }
        }
    }

    async fn end(&mut self) {
        if !self.is_over {
            self.is_over = true;
            // A client that is gone needs none.
            let _gone = self.outbox.send(FrameWriter::data(self.stream, &[], true)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::DuplexStream;

    use super::super::spdy::tests::{frame, open};
    use super::*;

    const ERROR: [(&str, &str); 3] = [("port", "80"), ("requestid", "0"), ("streamtype", "error")];
    const DATA: [(&str, &str); 3] = [("port", "80"), ("requestid", "0"), ("streamtype", "data")];

    /// Port 80 answers in capitals to each half that is closed, and nothing listens elsewhere.
    fn shouting() -> Connect {
        Arc::new(|port| {
            Box::pin(async move {
                let (socket, mut program) = UnixStream::pair().expect("a pair");
                if port != 80 {
                    drop(program);
                    let refused = async { Err("nothing accepts".to_owned()) };
                    return Ok(Connected { socket, ended: Box::pin(refused) });
                }
                let ended = async move {
                    let mut heard = String::new();
                    program.read_to_string(&mut heard).await.expect("text");
                    program.write_all(heard.to_uppercase().as_bytes()).await.expect("written");
                    Ok(())
                };
                Ok(Connected { socket, ended: Box::pin(ended) })
            })
        })
    }

    fn room(connections: usize) -> Arc<Semaphore> {
        Arc::new(Semaphore::new(connections))
    }

    async fn write(client: &mut DuplexStream, frames: &[Vec<u8>]) {
        client.write_all(&frames.concat()).await.expect("written");
    }

    async fn opened(client: &mut DuplexStream, stream: u32) {
        let (kind, _, payload) = frame(client).await;
        assert_eq!((kind, &payload[..4]), (0x8003_0002, &stream.to_be_bytes()[..]));
    }

    #[tokio::test]
    async fn one_half_ends_before_the_other() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let serving = serve(server, "web", shouting(), room(9));
        let asking = async move {
            write(&mut client, &[open(1, true, &ERROR), FrameWriter::data(1, &[], true)]).await;
            opened(&mut client, 1).await;
            let (hello, world) =
                (FrameWriter::data(3, b"hello ", false), FrameWriter::data(3, b"world", true));
            write(&mut client, &[open(3, false, &DATA), hello, world]).await;
            opened(&mut client, 3).await;
            let mut frames = Vec::new();
            while frames.len() < 3 {
                frames.push(frame(&mut client).await);
            }
            frames.sort();
            let expected =
                [(1, 1, Vec::new()), (3, 0, b"HELLO WORLD".to_vec()), (3, 1, Vec::new())];
            assert_eq!(frames, expected);
        };
        tokio::join!(serving, asking);
    }

    #[tokio::test]
    async fn an_error_is_said_and_the_rest_goes_on() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let serving = serve(server, "web", shouting(), room(9));
        let asking = async move {
            let other = |kind| [("port", "81"), ("requestid", "7"), ("streamtype", kind)];
            write(&mut client, &[open(1, true, &other("error"))]).await;
            opened(&mut client, 1).await;
            write(&mut client, &[open(3, false, &other("data"))]).await;
            opened(&mut client, 3).await;
            let said = loop {
                let (stream, flags, payload) = frame(&mut client).await;
                if stream == 1 {
                    assert_eq!(flags, 1);
                    break String::from_utf8(payload).expect("text");
                }
            };
            assert_eq!(said, "error forwarding port 81 of pod web: nothing accepts");
            // A stream of bytes without its error stream is refused, and one that says nothing.
            write(&mut client, &[open(5, false, &DATA), open(7, false, &[])]).await;
            for _ in 0..2 {
                loop {
                    let (kind, _, payload) = frame(&mut client).await;
                    if kind == 0x8003_0003 {
                        assert_eq!(payload[4..], [0, 0, 0, 1]);
                        break;
                    }
                }
            }
        };
        tokio::join!(serving, asking);
    }

    /// kubectl goes on with its other connections, and tries this one no more.
    #[tokio::test]
    async fn one_too_many_is_refused_and_the_rest_goes_on() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let serving = serve(server, "web", shouting(), room(1));
        let asking = async move {
            let second = [("port", "80"), ("requestid", "1"), ("streamtype", "error")];
            write(&mut client, &[open(1, true, &ERROR), open(3, false, &second)]).await;
            opened(&mut client, 1).await;
            let (kind, _, payload) = frame(&mut client).await;
            assert_eq!((kind, &payload[..]), (0x8003_0003, &[0, 0, 0, 3, 0, 0, 0, 3][..]));
            write(&mut client, &[open(5, false, &DATA), FrameWriter::data(5, b"hi", true)]).await;
            opened(&mut client, 5).await;
            let mut frames = Vec::new();
            while frames.len() < 3 {
                frames.push(frame(&mut client).await);
            }
            frames.sort();
            assert_eq!(frames, [(1, 1, vec![]), (5, 0, b"HI".to_vec()), (5, 1, vec![])]);
        };
        tokio::join!(serving, asking);
    }

    #[tokio::test]
    async fn a_connection_that_is_reset_ends() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let ended = Arc::new(AtomicUsize::new(0));
        struct Counted(Arc<AtomicUsize>, #[allow(dead_code)] UnixStream);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let counter = Arc::clone(&ended);
        let connect: Connect = Arc::new(move |_| {
            let counter = Arc::clone(&counter);
            Box::pin(async move {
                let (socket, mut program) = UnixStream::pair().expect("a pair");
                program.write_all(b"hi").await.expect("written");
                let counted = Counted(counter, program);
                let ended = async move {
                    let _held = counted;
                    std::future::pending().await
                };
                Ok(Connected { socket, ended: Box::pin(ended) })
            })
        });
        let serving = serve(server, "web", connect, room(9));
        let asking = async move {
            write(&mut client, &[open(1, true, &ERROR), open(3, false, &DATA)]).await;
            opened(&mut client, 1).await;
            opened(&mut client, 3).await;
            assert_eq!(frame(&mut client).await, (3, 0, b"hi".to_vec()));
            let reset = FrameWriter::reset(3, ResetCode::Refused);
            write(&mut client, &[FrameWriter::data(3, b"hello", false), reset]).await;
            // The client waits for the end of the error stream.
            assert_eq!(frame(&mut client).await, (1, 1, Vec::new()));
            assert_eq!(ended.load(Ordering::Relaxed), 1);
            // Those that are open end with the client.
            write(&mut client, &[open(5, false, &ERROR), open(7, false, &DATA)]).await;
            while frame(&mut client).await != (7, 0, b"hi".to_vec()) {}
            drop(client);
            ended
        };
        let ((), ended) = tokio::join!(serving, asking);
        assert_eq!(ended.load(Ordering::Relaxed), 2);
    }
}
