//! A server that reads what it is sent and reports at the end how many bytes that was.
//!
//! Bulk transfer in one direction is measured against it: it returns eight bytes, so the way back
//! costs nothing.

use std::io;

use ambit_net::drain::Guard;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{raw_echo, server};

const BUFFER_SIZE_BYTES: usize = 256 << 10;

/// Serves until it is asked to end; then connections end at once.
pub(super) async fn serve(listener: TcpListener, guard: Guard) {
    let connections = guard.clone();
    server::serve(listener, guard, |mut stream, _| {
        let guard = connections.clone();
        async move { raw_echo::until_asked(guard, swallow(&mut stream)).await }
    })
    .await;
}

/// Reads to the end, and answers with the number of bytes, eight bytes long, big end first.
async fn swallow(stream: &mut TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_SIZE_BYTES];
    let mut total: u64 = 0;
    loop {
        match stream.read(&mut buffer).await? {
            0 => break,
            count => total += count as u64,
        }
    }
    stream.write_all(&total.to_be_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::LocalSet;

    use crate::sample::tests::start;

    #[tokio::test]
    async fn counts_what_it_is_sent() {
        let client = async {
            let (address, _drain) = start(&["sink"], &[]);
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.write_all(&[7; 300_000]).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, 300_000u64.to_be_bytes());
        };
        LocalSet::new().run_until(client).await;
    }
}
