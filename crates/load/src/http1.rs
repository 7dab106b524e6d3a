//! HTTP/1.1 over its own socket: one write of prepared bytes, reads until the response is complete.
//!
//! Written by hand, because no library reports how many reads a response took, and because a
//! request must cost the generator as little as possible.

use std::fmt::Write;
use std::rc::Rc;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::plan::Plan;
use super::response::Reader;
use super::transport::{Answer, Failure, Sockets, Transport};

/// What HTTP requests say of themselves.
pub(super) const USER_AGENT: &str = concat!("ambit-load/", env!("CARGO_PKG_VERSION"));

/// One connection, or one after the other.
#[derive(Debug)]
pub(super) struct Http1 {
    sockets: Rc<Sockets>,
    request: Rc<[u8]>,
    /// A new connection for each request.
    close: bool,
    stream: Option<TcpStream>,
    reader: Reader,
}

impl Http1 {
    pub(super) fn new(plan: &Plan, sockets: Rc<Sockets>, request: Rc<[u8]>) -> Self {
        let reader = Reader::new(&plan.request.method);
        Self { sockets, request, close: plan.close, stream: None, reader }
    }
}

/// The request, as it is written each time.
pub(super) fn request_bytes(plan: &Plan) -> Vec<u8> {
    let (target, request) = (&plan.target, &plan.request);
    let has = |name: &str| request.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    let mut head = format!("{} {} HTTP/1.1\r\n", request.method, target.path);
    let mut field = |name: &str, value: &str| {
        write!(head, "{name}: {value}\r\n").expect("a text takes all that is written to it");
    };
    if !has("host") {
        field("Host", &target.authority);
    }
    if !has("user-agent") {
        field("User-Agent", USER_AGENT);
    }
    for (name, value) in &request.headers {
        field(name, value);
    }
    if !request.body.is_empty() && !has("content-length") {
        field("Content-Length", &request.body.len().to_string());
    }
    if plan.close && !has("connection") {
        field("Connection", "close");
    }
    head.push_str("\r\n");
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(&request.body);
    bytes
}

impl Transport for Http1 {
    async fn open(&mut self) -> Result<(), Failure> {
        self.stream = Some(self.sockets.connect().await?);
        Ok(())
    }

    async fn exchange(&mut self) -> Result<Answer, Failure> {
        let kept = self.stream.take().filter(|stream| self.sockets.is_open(stream));
        let mut stream = match kept {
            Some(stream) => stream,
            None => self.sockets.connect().await?,
        };
        stream.write_all(&self.request).await.map_err(Failure::Write)?;
        let mut reads = 0;
        let response = loop {
            let reader = &mut self.reader;
            let see = |bytes: &[u8]| {
                reads += u32::from(!bytes.is_empty());
                if bytes.is_empty() { reader.end().map(Some) } else { reader.take(bytes) }
            };
            if let Some(response) = self.sockets.read(&mut stream, see).await?? {
                break response;
            }
        };
        if !self.close && !response.is_last {
            self.stream = Some(stream);
        }
        Ok(Answer {
            status: Some(response.status),
            bytes_in: response.bytes,
            body_bytes_in: response.body_bytes,
            bytes_out: self.request.len() as u64,
            reads,
        })
    }

    fn abandon(&mut self) {
        self.stream = None;
        self.reader.reset();
    }

    async fn finish(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}
