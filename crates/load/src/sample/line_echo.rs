//! Istio's tcp-echo-server: sends each line back with a prefix, on several ports. Each line and its
//! answer are lines of the log too.

use std::rc::Rc;

use ambit_net::drain::Guard;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use super::raw_echo;
use super::server;

/// Longest line; a connection with a longer one ends.
const LINE_MAX_BYTES: u64 = 64 << 10;

/// Serves until it is asked to end; then connections end at once.
pub(super) async fn serve(listeners: Vec<TcpListener>, guard: Guard, prefix: &str) {
    let prefix: Rc<str> = format!("{prefix} ").into();
    let ports = listeners.into_iter().map(|listener| one(listener, guard.clone(), prefix.clone()));
    futures::future::join_all(ports).await;
}

async fn one(listener: TcpListener, guard: Guard, prefix: Rc<str>) {
    let connections = guard.clone();
    server::serve(listener, guard, |mut stream, _| {
        let prefix = prefix.clone();
        let connection = async move {
            stream.set_nodelay(true)?;
            let (read, mut write) = stream.split();
            let mut read = BufReader::new(read);
            loop {
                let mut line = prefix.as_bytes().to_vec();
                let came = (&mut read).take(LINE_MAX_BYTES).read_until(b'\n', &mut line).await?;
                // What the client has not ended gets no answer, as from the original.
                if came == 0 || line.last() != Some(&b'\n') {
                    return Ok(());
                }
                let text = String::from_utf8_lossy(&line[prefix.len()..]).into_owned();
                server::log(&format!("request: {text}response: {prefix}{text}"));
                write.write_all(&line).await?;
            }
        };
        raw_echo::until_asked(connections.clone(), connection)
    })
    .await;
}

#[cfg(test)]
mod tests {
    use ambit_net::drain::Drain;
    use tokio::net::TcpStream;
    use tokio::task::LocalSet;

    use super::*;

    #[tokio::test]
    async fn each_line_comes_back_with_the_prefix_on_every_port() {
        let client = async {
            let drain = Drain::new();
            let listeners: Vec<_> =
                (0..2).map(|_| server::listen("127.0.0.1:0").unwrap()).collect();
            let addresses: Vec<_> = listeners.iter().map(|it| it.local_addr().unwrap()).collect();
            let guard = drain.guard();
            tokio::task::spawn_local(async move { serve(listeners, guard, "hello").await });
            let too_long = "x".repeat(usize::try_from(LINE_MAX_BYTES).unwrap());
            for (sent, expected) in [
                ("a\nb\n", "hello a\nhello b\n"),
                ("a\nrest", "hello a\n"),
                (&*format!("{too_long}\nb\n"), ""),
            ] {
                for address in &addresses {
                    let mut stream = TcpStream::connect(address).await.unwrap();
                    stream.write_all(sent.as_bytes()).await.unwrap();
                    stream.shutdown().await.unwrap();
                    let mut came = Vec::new();
                    // With bytes that nobody has read, the end is a reset.
                    let ended = stream.read_to_end(&mut came).await;
                    assert!(ended.is_ok() || expected.is_empty(), "{ended:?}");
                    assert_eq!(String::from_utf8(came).unwrap(), expected);
                }
            }
        };
        LocalSet::new().run_until(client).await;
    }
}
