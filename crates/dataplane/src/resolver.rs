//! Sends queries to a resolver, from inside a pod's namespace or from the proxy's own.
//!
//! A query is sent byte for byte, except for its ID, which is a new random number, and from its own
//! socket and port: an attacker has to guess both. Only an answer to that very question is
//! returned.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ambit_net::socket::{DialOptions, ListenOptions, tcp_dial, udp_bind, unspecified_like};
use ambit_words::names::RESOLV_CONF;
use ambit_words::ports;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::own::OwnWorkload;

/// Length of the header of a message (RFC 1035, section 4.1.1).
pub const HEADER_BYTES: usize = 12;
/// Longest label; what is beyond is a pointer, which no question has.
const MAX_LABEL_BYTES: u8 = 63;
/// Type and class behind the name of a question.
const KIND_AND_CLASS_BYTES: usize = 4;
/// How often a resolver that does not answer is asked.
const ATTEMPTS: usize = 2;
/// How long one attempt may take; stub resolvers give up after 5 s.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Resolvers that are tried.
const MAX_RESOLVERS: usize = 3;

/// How a query travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// As a datagram.
    Udp,
    /// On a connection.
    Tcp,
}

/// Who asks.
#[derive(Clone, Copy)]
pub struct Asker<'a> {
    /// The workload from whose namespace it is asked; `None` is the proxy's own.
    pub own: Option<&'a OwnWorkload>,
    /// The mark of its sockets.
    pub mark: Option<u32>,
}

impl Asker<'_> {
    /// Makes a socket.
    fn make<T>(&self, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self.own {
            Some(own) => own.run(make)?,
            None => make(),
        }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ResolverError {
    /// No resolver is known.
    #[error("no resolver is known; name one with --dns-upstream")]
    NoResolver,
    /// The last resolver failed.
    #[error("ask the resolver {resolver}")]
    Resolver {
        /// Which.
        resolver: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Those that are configured, or else the node's own.
pub fn node_resolvers(configured: &[SocketAddr]) -> Vec<SocketAddr> {
    if !configured.is_empty() {
        return configured.to_vec();
    }
    match std::fs::read_to_string(RESOLV_CONF) {
        Ok(text) => resolvers_of(&text),
        Err(error) => {
            tracing::debug!(%error, "{RESOLV_CONF} names no resolvers");
            Vec::new()
        }
    }
}

fn resolvers_of(resolv_conf: &str) -> Vec<SocketAddr> {
    let lines = resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let addresses = lines.filter_map(|rest| rest.trim().parse().ok());
    addresses.map(|ip| SocketAddr::new(ip, ports::DNS)).take(MAX_RESOLVERS).collect()
}

/// Asks one resolver after the other.
pub async fn ask(
    asker: Asker<'_>,
    resolvers: &[SocketAddr],
    query: &[u8],
    transport: Transport,
) -> Result<Vec<u8>, ResolverError> {
    let mut failure = ResolverError::NoResolver;
    let attempts = std::iter::repeat_n(resolvers, ATTEMPTS).flatten();
    for resolver in attempts.take(ATTEMPTS * MAX_RESOLVERS) {
        let asking = async {
            match transport {
                Transport::Udp => ask_udp(asker, *resolver, query).await,
                Transport::Tcp => ask_tcp(asker, *resolver, query).await,
            }
        };
        let answer = timeout(ATTEMPT_TIMEOUT, asking).await;
        match answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(answer) => return Ok(answer),
            Err(source) => failure = ResolverError::Resolver { resolver: *resolver, source },
        }
    }
    Err(failure)
}

async fn ask_udp(asker: Asker<'_>, resolver: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let options = ListenOptions { mark: asker.mark, ..Default::default() };
    let any = SocketAddr::new(unspecified_like(resolver.ip()), 0);
    let socket = UdpSocket::from_std(asker.make(|| udp_bind(any, &options))?)?;
    socket.connect(resolver).await?;
    let renumbered = Renumbered::new(query)?;
    socket.send(&renumbered.query).await?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(answer) = renumbered.restore(&buffer[..length]) {
            return Ok(answer);
        }
    }
}

async fn ask_tcp(asker: Asker<'_>, resolver: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let options = DialOptions { mark: asker.mark, ..Default::default() };
    let mut stream = asker.make(|| tcp_dial(resolver, &options))?.connected().await?;
    let renumbered = Renumbered::new(query)?;
    let length = u16::try_from(query.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], &renumbered.query].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; length.into()];
    stream.read_exact(&mut answer).await?;
    renumbered.restore(&answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Where the one question of a message ends; nothing if there is not exactly one in plain form.
fn question_end(message: &[u8]) -> Option<usize> {
    if message.get(4..6)? != [0, 1] {
        return None;
    }
    let mut at = HEADER_BYTES;
    loop {
        match *message.get(at)? {
            0 => break,
            length @ 1..=MAX_LABEL_BYTES => at += usize::from(length) + 1,
            _ => return None,
        }
    }
    let end = at + 1 + KIND_AND_CLASS_BYTES;
    (end <= message.len()).then_some(end)
}

/// A query under a number of its own.
struct Renumbered {
    query: Vec<u8>,
    original: [u8; 2],
}

impl Renumbered {
    fn new(query: &[u8]) -> io::Result<Self> {
        let original = query.first_chunk::<2>().ok_or(io::ErrorKind::InvalidInput)?;
        let mut renumbered = query.to_vec();
        renumbered[..2].copy_from_slice(&rand::random::<[u8; 2]>());
        Ok(Self { query: renumbered, original: *original })
    }

    /// The answer under the client's number; nothing if it answers something else.
    fn restore(&self, answer: &[u8]) -> Option<Vec<u8>> {
        if answer.len() < HEADER_BYTES || answer[..2] != self.query[..2] || answer[2] & 0x80 == 0 {
            return None;
        }
        // An error may come without the question.
        let question = |message: &[u8]| {
            let end = question_end(message)?;
            Some(message[HEADER_BYTES..end].to_ascii_lowercase())
        };
        let asked = question(&self.query)?;
        let is_bare_error = answer[3] & 0x0f != 0 && answer[4..6] == [0, 0];
        if question(answer).is_none_or(|answered| answered != asked) && !is_bare_error {
            return None;
        }
        let mut restored = answer.to_vec();
        restored[..2].copy_from_slice(&self.original);
        Some(restored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: [u8; 2], flags: [u8; 2], name: &[u8]) -> Vec<u8> {
        let header = [number[0], number[1], flags[0], flags[1], 0, 1, 0, 0, 0, 0, 0, 0];
        let length = [u8::try_from(name.len()).expect("short")];
        [&header[..], &length, name, &[0, 0, 1, 0, 1]].concat()
    }

    #[test]
    fn only_the_answer_to_the_question_counts() {
        let asked = Renumbered::new(&message([1, 2], [1, 0], b"cart")).expect("a query");
        let number = [asked.query[0], asked.query[1]];
        let check = |answer: &[u8], expected: bool| {
            let restored = asked.restore(answer);
            assert_eq!(restored.is_some(), expected, "{answer:?}");
            assert!(restored.is_none_or(|it| it[..2] == [1, 2]));
        };
        check(&message(number, [0x81, 0], b"cart"), true);
        check(&message(number, [0x81, 0], b"CART"), true);
        check(&message(number, [0x81, 0], b"bank"), false);
        check(&message(number, [0x01, 0], b"cart"), false);
        check(&message([number[0], !number[1]], [0x81, 0], b"cart"), false);
        check(&[number[0], number[1], 0x81, 5, 0, 0, 0, 0, 0, 0, 0, 0], true);
        check(&[number[0], number[1], 0x81, 0, 0, 0, 0, 0, 0, 0, 0, 0], false);
        check(b"", false);
    }

    #[test]
    fn resolvers_are_read_from_resolv_conf() {
        let text =
            "# comment\nnameserver 10.96.0.10\n nameserver fd00::a \nsearch x\nnameserver ?\n";
        let expected: Vec<SocketAddr> =
            ["10.96.0.10:53", "[fd00::a]:53"].map(|it| it.parse().expect("an address")).into();
        assert_eq!(resolvers_of(text), expected);
    }
}
