//! A server that sends first, as databases and mail servers do.

use std::rc::Rc;

use ambit_net::drain::Guard;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::raw_echo::{self, Buffers};
use super::server;

/// Serves until it is asked to end: a line at once, then an echo.
pub(super) async fn serve(listener: TcpListener, guard: Guard, line: &str) {
    let line: Rc<str> = format!("{line}\r\n").into();
    let buffers = Buffers::default();
    let connections = guard.clone();
    server::serve(listener, guard, |mut stream, _| {
        let (line, buffers, guard) = (Rc::clone(&line), buffers.clone(), connections.clone());
        let connection = async move {
            stream.write_all(line.as_bytes()).await?;
            raw_echo::echo(&mut stream, &buffers).await
        };
        raw_echo::until_asked(guard, connection)
    })
    .await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::LocalSet;

    use crate::sample::tests::start;

    #[tokio::test]
    async fn speaks_before_it_is_spoken_to() {
        let client = async {
            let (address, _drain) = start(&["banner", "--line", "220 hello"], &[]);
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let mut line = [0; 11];
            stream.read_exact(&mut line).await.unwrap();
            assert_eq!(&line, b"220 hello\r\n");
            stream.write_all(b"QUIT").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut rest = String::new();
            stream.read_to_string(&mut rest).await.unwrap();
            assert_eq!(rest, "QUIT");
        };
        LocalSet::new().run_until(client).await;
    }
}
