//! The details service of bookinfo, of which it matters how it writes.
//!
//! Its old release writes header and body one after the other and leaves Nagle's algorithm on, so
//! that a client reads twice per answer; its new one writes once. The sizes are the original's: 180
//! bytes of header, 178 of body. HTTP is done by hand, since no library would write like that.

use std::io;

use ambit_net::drain::Guard;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::raw_echo::until_asked;
use super::server;

/// Largest head of a request.
const HEAD_SIZE_MAX_BYTES: usize = 16 << 10;
/// As long as the original's name.
const SERVER: &str = "details.bookinfo.example/1.22 (ambit)";
const BODY: &str = concat!(
    r#"{"id":0,"author":"William Shakespeare","year":1595,"type":"paperback","pages":200,"#,
    r#""publisher":"PublisherA","language":"English","ISBN-10":"1234567890","#,
    r#""ISBN-13":"123-1234567890"}"#,
);

/// Serves until it is asked to end.
pub(super) async fn serve(listener: TcpListener, guard: Guard, two_writes: bool) {
    let connections = guard.clone();
    server::serve(listener, guard, |stream, _| {
        until_asked(connections.clone(), connection(stream, two_writes))
    })
    .await;
}

async fn connection(mut stream: TcpStream, two_writes: bool) -> io::Result<()> {
    stream.set_nodelay(!two_writes)?;
    let mut read = Vec::new();
    loop {
        let Some(end) = head_end(&read) else {
            if read.len() > HEAD_SIZE_MAX_BYTES || stream.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
            continue;
        };
        let (head, body) = response(&read[..end]);
        if two_writes {
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(body.as_bytes()).await?;
        } else {
            stream.write_all((head + body).as_bytes()).await?;
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

fn response(request: &[u8]) -> (String, &'static str) {
    let (status, body) = if request.starts_with(b"GET /details/") {
        ("200 OK", BODY)
    } else {
        ("404 Not Found", "{\"error\":\"only GET /details/0 is known\"}")
    };
    let connection = if wants_close(request) { "close" } else { "Keep-Alive" };
    let date = jiff::Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT");
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nServer: {SERVER}\r\n\
         Date: {date}\r\nContent-Length: {}\r\nConnection: {connection}\r\n\r\n",
        body.len()
    );
    (head, body)
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
}
