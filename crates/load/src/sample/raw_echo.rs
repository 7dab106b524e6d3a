//! TCP echo that keeps the two directions apart: the end of its input is not the end of its output.
//!
//! A buffer is lent only while bytes are in flight, so thousands of idle connections cost little.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use ambit_net::drain::Guard;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use super::server;

const BUFFER_SIZE_BYTES: usize = 256 << 10;
/// Buffers that are kept while nobody needs them.
const IDLE_BUFFERS_MAX: usize = 16;

/// Buffers that are lent.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffers(Rc<RefCell<Vec<Vec<u8>>>>);

impl Buffers {
    fn lend(&self) -> Vec<u8> {
        self.0.borrow_mut().pop().unwrap_or_else(|| vec![0; BUFFER_SIZE_BYTES])
    }

    fn give_back(&self, buffer: Vec<u8>) {
        let mut idle = self.0.borrow_mut();
        if idle.len() < IDLE_BUFFERS_MAX {
            idle.push(buffer);
        }
    }
}

/// Serves until it is asked to end; then connections end at once.
pub(super) async fn serve(listener: TcpListener, guard: Guard) {
    let buffers = Buffers::default();
    let connections = guard.clone();
    server::serve(listener, guard, |mut stream, _| {
        let (buffers, guard) = (buffers.clone(), connections.clone());
        async move { until_asked(guard, echo(&mut stream, &buffers)).await }
    })
    .await;
}

/// Runs one connection, which its client or the end of the sample ends.
pub(super) async fn until_asked(
    mut guard: Guard,
    connection: impl Future<Output = io::Result<()>>,
) {
    tokio::select! {
        // An error is a client that went away, which is its right.
        _client_gone = connection => {}
        _ = guard.draining() => {}
    }
}

/// Sends back what it reads; at the end of the input, when everything is sent, it ends its output.
pub(super) async fn echo(stream: &mut TcpStream, buffers: &Buffers) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        stream.readable().await?;
        let mut buffer = buffers.lend();
        let read = match stream.try_read(&mut buffer) {
            Ok(count) => stream.write_all(&buffer[..count]).await.map(|()| Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        };
        buffers.give_back(buffer);
        if read? == Some(0) {
            return stream.shutdown().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::task::LocalSet;

    use crate::sample::tests::start;

    #[tokio::test]
    async fn echoes_and_ends_after_its_input() {
        let client = async {
            let (address, drain) = start(&["tcp-echo"], &[]);
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
            let (mut from, mut to) = stream.split();
            let mut received = Vec::new();
            let sending = async {
                tokio::io::AsyncWriteExt::write_all(&mut to, &sent).await.unwrap();
                tokio::io::AsyncWriteExt::shutdown(&mut to).await.unwrap();
            };
            let (_, count) = tokio::join!(sending, from.read_to_end(&mut received));
            assert_eq!(count.unwrap(), sent.len());
            assert!(received == sent);
            drop(stream);
            let idle = tokio::net::TcpStream::connect(address).await.unwrap();
            drain.start(None);
            drain.finished().await;
            drop(idle);
        };
        LocalSet::new().run_until(client).await;
    }
}
