//! Connections to addresses of no part of the mesh, of a pod that may reach only what is declared.
//!
//! The first bytes of the client are looked at and stay where they are; the name in them is looked
//! up here, because the client's word for it proves nothing. Nothing here decides: see
//! [`ambit_model::fence`].

use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ambit_dataplane::mesh::Mesh;
use ambit_dataplane::names::LookupError;
use ambit_model::Text;
use ambit_model::fence::{Condition, Fenced, Said, Undeclared};
use ambit_model::plan::{Direct, Refusal};
use ambit_model::service::Service;
use ambit_tls::client_hello::{CLIENT_HELLO_BYTES_MAX, ClientHello, client_hello};
use futures::future::{Either, select};
use futures::stream::{self, StreamExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// How long a client has for its first message.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon is looked whether more of it has come, and how late where nothing comes.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
const LOOK_INTERVAL_MAX: Duration = Duration::from_millis(160);
/// How long the declared hosts may take that allow a connection whatever its client says.
const UNSEEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Declared hosts that are looked up for one connection that says no name. Beyond it they are not
/// asked for, and do not allow it.
const HOSTS_MAX: usize = 256;
/// How many of them at once.
const LOOKUPS_AT_ONCE: usize = 16;

/// Why a connection is not allowed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FenceError {
    /// What the client says first cannot be read.
    #[error("cannot read the client's first bytes")]
    FirstBytes(#[source] io::Error),
    /// The name that it says cannot be looked up.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// It is not declared.
    #[error("{0}")]
    Refused(Refusal),
}

/// The plan of a connection that only a declared name may allow.
pub(crate) async fn pass(
    mesh: &Mesh,
    network: &Text,
    client: &TcpStream,
    fenced: &Fenced,
) -> Result<Direct, FenceError> {
    let by_words = by_words(mesh, network, client, fenced);
    let Some(condition) = fenced.unseen() else { return by_words.await };
    // What others declare for the port must not hold up a client that says its name.
    let by_address = timeout(UNSEEN_TIMEOUT, look_up(mesh, network, fenced, condition));
    match select(pin!(by_address), pin!(by_words)).await {
        Either::Left((Ok(Ok(direct)), _)) | Either::Right((Ok(direct), _)) => Ok(direct),
        Either::Left((_, by_words)) => by_words.await,
        Either::Right((Err(why), by_address)) => match by_address.await {
            Ok(Ok(direct)) => Ok(direct),
            _ => Err(why),
        },
    }
}

/// The plan by what the client says first.
async fn by_words(
    mesh: &Mesh,
    network: &Text,
    client: &TcpStream,
    fenced: &Fenced,
) -> Result<Direct, FenceError> {
    let mut buffer = vec![0; CLIENT_HELLO_BYTES_MAX];
    let said = first_bytes(client, &mut buffer).await.map_err(FenceError::FirstBytes)?;
    let said = match &said {
        First::Hello(Some(name)) => Said::Name(name),
        First::Hello(None) => Said::NoName,
        First::Bytes => Said::Bytes,
        First::Nothing => Said::Nothing,
    };
    let condition = fenced.allowed_by(said).map_err(|it| FenceError::Refused(it.into()))?;
    look_up(mesh, network, fenced, condition).await
}

/// What the first bytes of a client are.
#[derive(Debug, PartialEq, Eq)]
enum First {
    Hello(Option<String>),
    Bytes,
    Nothing,
}

/// Reads the first bytes, and leaves them unread for whom the client wanted to say them to.
async fn first_bytes(client: &TcpStream, buffer: &mut [u8]) -> io::Result<First> {
    let until = Instant::now() + FIRST_BYTES_TIMEOUT;
    let (mut seen, mut pause) = (0, LOOK_INTERVAL);
    loop {
        let peeked = tokio::time::timeout_at(until, client.peek(buffer)).await;
        let length = match peeked {
            Ok(peeked) => peeked?,
            Err(_) => return Ok(First::Nothing),
        };
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        pause = (pause * 2).min(LOOK_INTERVAL_MAX);
        if length > seen {
            (seen, pause) = (length, LOOK_INTERVAL);
            match client_hello(&buffer[..length]) {
                ClientHello::More => {}
                ClientHello::Other => return Ok(First::Bytes),
                ClientHello::Whole(name) => return Ok(First::Hello(name)),
                ClientHello::Unreadable => return Ok(First::Hello(None)),
            }
        }
        // What is there stays there: to wait for the socket would return at once.
        if Instant::now() >= until {
            return Ok(First::Hello(None));
        }
        sleep(pause).await;
    }
}

/// Looks up what must lead to the address.
async fn look_up(
    mesh: &Mesh,
    network: &Text,
    fenced: &Fenced,
    condition: Condition,
) -> Result<Direct, FenceError> {
    let plan = |named: (&Text, &Arc<Service>), found: &[IpAddr]| {
        let planned = fenced.plan(&mesh.view.load(), network, named, found);
        planned.map_err(FenceError::Refused)
    };
    match condition {
        Condition::Name(name, service) => {
            let found = mesh.names.addresses(&name).await?;
            plan((&name, &service), &found)
        }
        Condition::AnyOf(services) => {
            let hosts = services.into_iter().take(HOSTS_MAX).map(|service| async move {
                let host = service.key.hostname.clone();
                let found = mesh.names.addresses(&host).await;
                (host, service, found)
            });
            let mut all = stream::iter(hosts).buffer_unordered(LOOKUPS_AT_ONCE);
            let mut refusal = Refusal::from(Undeclared::Address(fenced.destination));
            while let Some((host, service, found)) = all.next().await {
                match found.map(|found| plan((&host, &service), &found)) {
                    Ok(Ok(direct)) => return Ok(direct),
                    // That one leads elsewhere says nothing of the others.
                    Ok(Err(FenceError::Refused(why))) if !is_elsewhere(&why) => refusal = why,
                    Ok(Err(_)) | Err(_) => {}
                }
            }
            Err(FenceError::Refused(refusal))
        }
    }
}

fn is_elsewhere(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Undeclared(Undeclared::Elsewhere(..)))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// A hello without extensions.
    fn hello() -> Vec<u8> {
        let mut hello = vec![22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3];
        hello.extend([7; 32]);
        hello.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
        hello
    }

    async fn check(pieces: &[&[u8]], expected: First) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listening");
        let address = listener.local_addr().expect("an address");
        let mut client = TcpStream::connect(address).await.expect("a connection");
        let (server, _) = listener.accept().await.expect("a client");
        let saying = async {
            for piece in pieces {
                client.write_all(piece).await.expect("written");
                sleep(3 * LOOK_INTERVAL).await;
            }
        };
        let mut buffer = vec![0; CLIENT_HELLO_BYTES_MAX];
        let ((), said) = futures::join!(saying, first_bytes(&server, &mut buffer));
        assert_eq!(said.expect("read"), expected);
        let all: Vec<u8> = pieces.concat();
        let length = server.try_read(&mut buffer).unwrap_or_default();
        assert_eq!(&buffer[..length], all, "what was looked at is still there");
    }

    #[tokio::test]
    async fn first_bytes_are_looked_at_and_stay() {
        let hello = hello();
        check(&[&hello], First::Hello(None)).await;
        check(&[&hello[..20], &hello[20..]], First::Hello(None)).await;
        check(&[b"GET / HTTP/1.1\r\n"], First::Bytes).await;
    }
}
