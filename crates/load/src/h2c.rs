//! HTTP/2 without TLS, with prior knowledge: several workers share a connection, each with one
//! stream at a time. Where the server ends the connection in good order, the next streams are on
//! another one; what was under way ends where it began.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use h2::Reason;
use h2::client::{Builder, SendRequest};
use http::{HeaderName, HeaderValue, Method, Uri};
use tokio::sync::Mutex;

use super::plan::{Plan, Protocol};
use super::transport::{Answer, Failure, Sockets, Transport};

/// Windows that no answer of ordinary size ever fills.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;

/// How often a request is sent that the server says each time it has not looked at.
pub(super) const ATTEMPTS_MAX: usize = 3;

/// A connection that some workers share.
#[derive(Debug)]
pub(super) struct Shared {
    sockets: Rc<Sockets>,
    /// The connection that is in use, and how many there were before it.
    current: RefCell<Option<(u64, SendRequest<Bytes>)>>,
    /// Held by the one worker that opens it.
    opening: Mutex<()>,
}

/// One stream after the other of a shared connection.
#[derive(Debug)]
pub(super) struct H2c {
    shared: Rc<Shared>,
    request: Rc<http::Request<()>>,
    body: Bytes,
}

impl Shared {
    pub(super) fn new(sockets: Rc<Sockets>) -> Self {
        Self { sockets, current: RefCell::new(None), opening: Mutex::new(()) }
    }

    /// A place for one more stream: of the connection, or of another where the server has ended it.
    pub(super) async fn sender(&self) -> Result<SendRequest<Bytes>, Failure> {
        loop {
            let current = self.current.borrow().clone();
            if let Some((number, sender)) = current {
                match sender.ready().await {
                    Ok(sender) => return Ok(sender),
                    Err(_) => self.lost(number),
                }
            }
            let _opening = self.opening.lock().await;
            if self.current.borrow().is_none() {
                let stream = self.sockets.connect().await?;
                let mut builder = Builder::new();
                builder.initial_window_size(STREAM_WINDOW_BYTES);
                builder.initial_connection_window_size(CONNECTION_WINDOW_BYTES);
                let (sender, connection) = builder.handshake(stream).await?;
                // Its end shows in the streams that it carries.
                tokio::task::spawn_local(async move { connection.await.is_ok() });
                self.current.replace(Some((self.sockets.opened.get(), sender)));
            }
        }
    }

    /// All workers of a connection hear that it has ended; the first of them counts.
    fn lost(&self, number: u64) {
        let mut current = self.current.borrow_mut();
        if current.as_ref().is_some_and(|(now, _)| *now == number) {
            *current = None;
            self.sockets.lost_idle.update(|count| count + 1);
        }
    }
}

impl H2c {
    pub(super) fn new(shared: Rc<Shared>, request: Rc<http::Request<()>>, body: Bytes) -> Self {
        Self { shared, request, body }
    }
}

/// The request, as it is sent each time. `None` if HTTP/2 cannot say it.
pub(super) fn request(plan: &Plan) -> Option<http::Request<()>> {
    let target = &plan.target;
    let uri: Uri = format!("http://{}{}", target.authority, target.path).parse().ok()?;
    let is_grpc = target.protocol == Protocol::GrpcStream;
    let method = if is_grpc { "POST" } else { &plan.request.method };
    let method = Method::from_bytes(method.as_bytes()).ok()?;
    let mut request = http::Request::builder().method(method).uri(uri).body(()).ok()?;
    if is_grpc {
        let kind = HeaderValue::from_static("application/grpc");
        request.headers_mut().insert(http::header::CONTENT_TYPE, kind);
        let trailers = HeaderValue::from_static("trailers");
        request.headers_mut().insert(http::header::TE, trailers);
    }
    let agent = HeaderValue::from_static(super::http1::USER_AGENT);
    request.headers_mut().insert(http::header::USER_AGENT, agent);
    for (name, value) in &plan.request.headers {
        let name: HeaderName = name.parse().ok()?;
        request.headers_mut().append(name, HeaderValue::from_str(value).ok()?);
    }
    Some(request)
}

impl Transport for H2c {
    async fn open(&mut self) -> Result<(), Failure> {
        self.shared.sender().await.map(drop)
    }

    async fn exchange(&mut self) -> Result<Answer, Failure> {
        for _ in 1..ATTEMPTS_MAX {
            match self.attempt().await {
                Err(Failure::H2(error)) if is_unseen(&error) => {}
                result => return result,
            }
        }
        self.attempt().await
    }

    fn abandon(&mut self) {}

    async fn finish(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

/// Whether the server ends the connection in good order and has not looked at the request: it was
/// on its way when the server counted for the last time. A client sends it again (RFC 9113,
/// section 6.8).
pub(super) fn is_unseen(error: &h2::Error) -> bool {
    let is_refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    let is_left = error.is_go_away() && error.reason() == Some(Reason::NO_ERROR);
    error.is_remote() && (is_refused || is_left)
}

impl H2c {
    async fn attempt(&self) -> Result<Answer, Failure> {
        let mut sender = self.shared.sender().await?;
        let request = http::Request::clone(&self.request);
        let (response, mut stream) = sender.send_request(request, self.body.is_empty())?;
        if !self.body.is_empty() {
            stream.send_data(self.body.clone(), true)?;
        }
        let response = response.await?;
        let status = response.status().as_u16();
        let mut body = response.into_body();
        let mut body_bytes_in = 0;
        while let Some(piece) = body.data().await {
            let piece = piece?;
            body_bytes_in += piece.len() as u64;
            body.flow_control().release_capacity(piece.len())?;
        }
        Ok(Answer {
            status: Some(status),
            bytes_in: body_bytes_in,
            body_bytes_in,
            bytes_out: self.body.len() as u64,
            reads: 0,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use h2::server::Connection;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Runs an exchange whose first connection is ended in good order before the server looks at
    /// anything on it, and whose second one is served. What serving returns stays for as long.
    pub(crate) async fn with_a_server_that_leaves<T>(
        exchange: impl AsyncFnOnce(Rc<Sockets>, Rc<Shared>),
        serve: impl AsyncFnOnce(&mut Connection<TcpStream, Bytes>) -> T,
    ) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut left = h2::server::handshake(stream).await.unwrap();
            left.abrupt_shutdown(Reason::NO_ERROR);
            let leaving = async { while let Some(Ok(_)) = left.accept().await {} };
            let serving = async {
                let (stream, _) = listener.accept().await.unwrap();
                let mut connection = h2::server::handshake(stream).await.unwrap();
                let _kept = serve(&mut connection).await;
                while let Some(Ok(_)) = connection.accept().await {}
            };
            tokio::join!(leaving, serving);
        };
        let sockets = Rc::new(Sockets::new(address));
        let shared = Rc::new(Shared::new(sockets.clone()));
        let exchange = async {
            exchange(sockets.clone(), shared).await;
            assert_eq!(sockets.opened.get(), 2);
        };
        let both = async {
            tokio::select! {
                () = serving => panic!("the client leaves first"),
                () = exchange => {}
            }
        };
        let local = tokio::task::LocalSet::new();
        tokio::time::timeout(Duration::from_secs(10), local.run_until(both)).await.unwrap();
    }

    /// A request that was on its way when the server ended the connection is sent on another one.
    #[tokio::test]
    async fn what_a_server_that_leaves_has_not_seen_is_sent_again() {
        let exchange = async |_, shared| {
            let request = http::Request::get("http://web/").body(()).unwrap();
            let mut transport = H2c::new(shared, Rc::new(request), Bytes::new());
            let answer = transport.exchange().await.unwrap();
            assert_eq!(answer.status, Some(200));
        };
        with_a_server_that_leaves(exchange, async |connection| {
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            respond.send_response(http::Response::new(()), true).unwrap();
        })
        .await;
    }
}
