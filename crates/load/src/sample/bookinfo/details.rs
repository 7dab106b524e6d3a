//! The details service of bookinfo. What matters is how it writes.
//!
//! The original writes header and body one after the other. Its release in Istio 1.22 also leaves
//! Nagle's algorithm on, so that the body may wait until the client has acknowledged the header;
//! the one in 1.23 turns it off. Ours can do both, and can also send the two in one write, which a
//! client reads at once. The sizes are the original's: 180 bytes of header, 178 of body. HTTP is
//! done by hand, since no library writes like that.

use std::io;

use ambit_net::drain::Guard;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::sample::raw_echo::until_asked;
use crate::sample::server;

/// Largest head of a request.
const HEAD_SIZE_MAX_BYTES: usize = 16 << 10;
/// As long as the original's name.
const SERVER: &str = "details.bookinfo.example/1.22 (ambit)";
/// The rest of the body, after the book's number.
const BOOK: &str = concat!(
    r#""author":"William Shakespeare","year":1595,"type":"paperback","pages":200,"#,
    r#""publisher":"PublisherA","language":"English","ISBN-10":"1234567890","#,
    r#""ISBN-13":"123-1234567890"}"#,
);

/// How an answer is written.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Writing {
    /// Write header and body one after the other and without TCP_NODELAY, as the release of Istio
    /// 1.22; without this flag, write both at once.
    #[arg(long)]
    two_writes: bool,
    /// With --two-writes: set TCP_NODELAY, as the original of Istio 1.23.
    #[arg(long, requires = "two_writes")]
    nodelay: bool,
}

/// Serves until it is asked to end.
pub(in crate::sample) async fn serve(listener: TcpListener, guard: Guard, writing: Writing) {
    let connections = guard.clone();
    server::serve(listener, guard, |stream, _| {
        until_asked(connections.clone(), connection(stream, writing))
    })
    .await;
}

async fn connection(mut stream: TcpStream, writing: Writing) -> io::Result<()> {
    stream.set_nodelay(!writing.two_writes || writing.nodelay)?;
    let mut read = Vec::new();
    loop {
        let Some(end) = head_end(&read) else {
            if read.len() > HEAD_SIZE_MAX_BYTES || stream.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
            continue;
        };
        let (head, body) = response(&read[..end]);
        if writing.two_writes {
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(body.as_bytes()).await?;
        } else {
            stream.write_all((head + &body).as_bytes()).await?;
        }
        if wants_close(&read[..end]) {
            return stream.shutdown().await;
        }
        read.drain(..end);
    }
}

fn head_end(read: &[u8]) -> Option<usize> {
    read.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

fn wants_close(head: &[u8]) -> bool {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    head.lines().any(|line| line.strip_prefix("connection:").is_some_and(|v| v.trim() == "close"))
}

fn response(request: &[u8]) -> (String, String) {
    let (status, body) = answer(request);
    let connection = if wants_close(request) { "close" } else { "Keep-Alive" };
    let date = jiff::Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT");
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nServer: {SERVER}\r\n\
         Date: {date}\r\nContent-Length: {}\r\nConnection: {connection}\r\n\r\n",
        body.len()
    );
    (head, body)
}

fn answer(request: &[u8]) -> (&'static str, String) {
    let path = request.strip_prefix(b"GET ").and_then(|rest| rest.split(|it| *it == b' ').next());
    let path = path.and_then(|path| std::str::from_utf8(path).ok()).unwrap_or_default();
    let id = path.strip_prefix("/details/").map(str::parse::<u32>);
    match id {
        Some(Ok(id)) => ("200 OK", format!("{{\"id\":{id},{BOOK}")),
        Some(Err(_)) => {
            ("400 Bad Request", "{\"error\":\"please provide numeric product id\"}".to_owned())
        }
        None if path == "/health" => ("200 OK", "{\"status\":\"Details is healthy\"}".to_owned()),
        None => ("404 Not Found", "{\"error\":\"only GET /details/ID is known\"}".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_sizes_of_the_original() {
        let (head, body) = response(b"GET /details/0 HTTP/1.1\r\n\r\n");
        assert_eq!((head.len(), body.len()), (180, 178), "{head}{body}");
        let (head, _) = response(b"GET /reviews/0 HTTP/1.1\r\nConnection: close\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 404 ") && head.contains("\r\nConnection: close\r\n"));
    }

    #[test]
    fn books_have_numbers() {
        for (path, status, part) in [
            ("/details/7", "200 OK", "{\"id\":7,\"author\":"),
            ("/details/x", "400 Bad Request", "numeric"),
            ("/health", "200 OK", "healthy"),
            ("/", "404 Not Found", "/details/ID"),
        ] {
            let (said, body) = answer(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes());
            assert_eq!(said, status, "{path}");
            assert!(body.contains(part), "{body}");
        }
    }
}
