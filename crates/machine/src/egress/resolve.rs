//! Asks the host's resolvers, as its own programs do: those of `/etc/resolv.conf`, in order, by UDP
//! and by TCP where an answer does not fit.
//!
//! A query keeps its content, and gets an id and a port of its own, so that nobody who knows the
//! pod's can forge an answer. What does not answer this very query is not looked at.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use ambit_net::socket::unspecified_like;
use ambit_words::ports;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::protocol::MESSAGE_SIZE_MAX_BYTES;

/// As much of it is read.
const RESOLV_CONF_SIZE_MAX_BYTES: u64 = 64 * 1024;
/// As many resolvers are asked, as glibc does.
const RESOLVERS_MAX: usize = 3;
/// How long one resolver may take.
const RESOLVER_TIMEOUT: Duration = Duration::from_millis(1500);
/// Bytes before the question of a DNS message.
const HEADER_BYTES: usize = 12;
/// Bytes of type and class, behind the name of a question.
const TYPE_AND_CLASS_BYTES: usize = 4;
/// In the third byte of a message: it is an answer, and it was cut.
const IS_ANSWER: u8 = 0x80;
const IS_CUT: u8 = 0x02;
/// Answers that another resolver may improve on: server failure, not implemented, refused.
const FAILURES: [u8; 3] = [2, 4, 5];

/// The answer to a query, with the query's id; `None` if there is none, or it is no query.
pub(super) async fn resolve(query: &[u8], resolv_conf: &Path) -> Option<Vec<u8>> {
    // Read each time: it changes as the host joins other networks.
    let resolvers = resolvers(&read(resolv_conf).unwrap_or_default());
    ask(query, &resolvers).await
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(RESOLV_CONF_SIZE_MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// The resolvers that a `resolv.conf` names; without any, glibc asks this host.
fn resolvers(text: &str) -> Vec<SocketAddr> {
    let address = |line: &str| -> Option<SocketAddr> {
        let mut words = line.split_whitespace();
        let is_one = words.next() == Some("nameserver");
        let ip: IpAddr = words.next().filter(|_| is_one)?.parse().ok()?;
        Some((ip, ports::DNS).into())
    };
    let mut found: Vec<SocketAddr> = text.lines().filter_map(address).take(RESOLVERS_MAX).collect();
    if found.is_empty() {
        found.push((Ipv4Addr::LOCALHOST, ports::DNS).into());
    }
    found
}

async fn ask(query: &[u8], resolvers: &[SocketAddr]) -> Option<Vec<u8>> {
    let question_end = question_end(query)?;
    let mut failure = None;
    for resolver in resolvers {
        let mut asked = query.to_owned();
        asked[..2].copy_from_slice(&random_id());
        let asked = Asked { query: &asked, question_end };
        let mut answer = match timeout(RESOLVER_TIMEOUT, asked.of(*resolver)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => continue,
        };
        answer[..2].copy_from_slice(&query[..2]);
        if !FAILURES.contains(&(answer[3] & 0xf)) {
            return Some(answer);
        }
        failure.get_or_insert(answer);
    }
    failure
}

/// Nobody can guess it: the hash has keys of the system's randomness.
fn random_id() -> [u8; 2] {
    (RandomState::new().hash_one(()) as u16).to_be_bytes()
}

/// Where the one question of a query ends; `None` if it is no query with one question.
fn question_end(query: &[u8]) -> Option<usize> {
    let is_query = query.get(2)? & IS_ANSWER == 0;
    let has_one = query.get(4..6)? == [0, 1];
    let mut at = HEADER_BYTES;
    loop {
        match usize::from(*query.get(at)?) {
            0 => break,
            // Longer ones are pointers, for which there is nothing to point to.
            length @ 1..64 => at += 1 + length,
            _ => return None,
        }
    }
    let end = at + 1 + TYPE_AND_CLASS_BYTES;
    (is_query && has_one && end <= query.len()).then_some(end)
}

/// A query as it is sent.
struct Asked<'a> {
    query: &'a [u8],
    question_end: usize,
}

impl Asked<'_> {
    /// The answer of one resolver.
    async fn of(&self, resolver: SocketAddr) -> io::Result<Vec<u8>> {
        let answer = self.by_udp(resolver).await?;
        if answer[2] & IS_CUT == 0 { Ok(answer) } else { self.by_tcp(resolver).await }
    }

    async fn by_udp(&self, resolver: SocketAddr) -> io::Result<Vec<u8>> {
        let socket = UdpSocket::bind((unspecified_like(resolver.ip()), 0)).await?;
        // Then nobody else's packets come, and an error that says that nobody listens does.
        socket.connect(resolver).await?;
        socket.send(self.query).await?;
        let mut answer = vec![0; MESSAGE_SIZE_MAX_BYTES];
        loop {
            // The runtime's own `recv` does not wake when nobody listens there.
            let received = || Ok(rustix::io::read(&socket, &mut answer)?);
            let length = socket.async_io(Interest::READABLE | Interest::ERROR, received).await?;
            if self.is_answered_by(&answer[..length]) {
                answer.truncate(length);
                return Ok(answer);
            }
        }
    }

    async fn by_tcp(&self, resolver: SocketAddr) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(resolver).await?;
        let length = u16::try_from(self.query.len()).map_err(io::Error::other)?;
        stream.write_all(&[&length.to_be_bytes()[..], self.query].concat()).await?;
        let length = stream.read_u16().await?;
        let mut answer = vec![0; usize::from(length)];
        stream.read_exact(&mut answer).await?;
        let is_it = self.is_answered_by(&answer);
        is_it.then_some(answer).ok_or_else(|| io::Error::other("it answers another query"))
    }

    /// Whether it has the id and the question of the query; the case of a name does not matter.
    fn is_answered_by(&self, answer: &[u8]) -> bool {
        let Some(question) = answer.get(HEADER_BYTES..self.question_end) else { return false };
        let wanted = &self.query[HEADER_BYTES..self.question_end];
        let name_bytes = wanted.len() - TYPE_AND_CLASS_BYTES;
        answer[..2] == self.query[..2]
            && answer[2] & IS_ANSWER != 0
            && question[..name_bytes].eq_ignore_ascii_case(&wanted[..name_bytes])
            && question[name_bytes..] == wanted[name_bytes..]
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// `a.example`, type A.
    fn query() -> Vec<u8> {
        let header = [7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        [&header[..], b"\x01a\x07example\x00", &[0, 1, 0, 1]].concat()
    }

    /// An answer to it with these third and fourth bytes.
    fn answer(query: &[u8], flags: [u8; 2]) -> Vec<u8> {
        let mut answer = query.to_owned();
        answer[2..4].copy_from_slice(&flags);
        answer
    }

    /// A resolver that answers each query with what this makes of it.
    async fn resolver(answers: fn(&[u8]) -> Vec<Vec<u8>>) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut query = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut query).await {
                for answer in answers(&query[..length]) {
                    socket.send_to(&answer, from).await.unwrap();
                }
            }
        });
        address
    }

    #[test]
    fn resolvers_are_those_of_the_file() {
        let check = |text: &str, expected: &[&str]| {
            let found: Vec<String> = resolvers(text).iter().map(|it| it.ip().to_string()).collect();
            assert_eq!(found, expected, "{text:?}");
        };
        check("", &["127.0.0.1"]);
        check("search example\noptions ndots:1\n", &["127.0.0.1"]);
        check("# nameserver 192.0.2.9\nnameserver 192.0.2.1\n", &["192.0.2.1"]);
        check("nameserver\t2001:db8::1 # one\nnameserver x\n", &["2001:db8::1"]);
        let four: String = (1..5).map(|it| format!("nameserver 192.0.2.{it}\n")).collect();
        check(&four, &["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
    }

    #[test]
    fn what_is_no_query_with_one_question_is_not_asked() {
        let whole = query();
        assert_eq!(question_end(&whole), Some(whole.len()));
        for length in 0..whole.len() {
            assert_eq!(question_end(&whole[..length]), None, "{length}");
        }
        let with = |at: usize, byte: u8| {
            let mut changed = query();
            changed[at] = byte;
            question_end(&changed)
        };
        assert_eq!([with(2, 0x81), with(5, 2), with(12, 0xc0)], [None; 3]);
    }

    #[tokio::test]
    async fn an_answer_has_the_id_of_the_query_and_forged_ones_are_passed_over() {
        let resolver = resolver(|query| {
            assert_ne!(query[12..], [0; 4]);
            let forge = |at: usize| {
                let mut forged = answer(query, [0x81, 0x80]);
                forged[at] ^= 1;
                forged.push(1);
                forged
            };
            // Another id, another name, another type, a query, a short packet.
            let no_answer = answer(query, [1, 0]);
            let all = [forge(0), forge(13), forge(query.len() - 3), no_answer, vec![0; 3]];
            all.into_iter().chain([answer(query, [0x81, 0x83])]).collect()
        })
        .await;
        let answered = ask(&query(), &[resolver]).await;
        assert_eq!(answered, Some(answer(&query(), [0x81, 0x83])));
    }

    #[tokio::test]
    async fn the_next_resolver_is_asked_when_one_fails() {
        let fails = resolver(|query| vec![answer(query, [0x81, 0x82])]).await;
        let works = resolver(|query| vec![answer(query, [0x81, 0x80])]).await;
        let nobody = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let start = std::time::Instant::now();
        let good = Some(answer(&query(), [0x81, 0x80]));
        assert_eq!(ask(&query(), &[nobody, fails, works]).await, good);
        let failure = Some(answer(&query(), [0x81, 0x82]));
        assert_eq!(ask(&query(), &[fails, nobody]).await, failure);
        assert_eq!(ask(&query(), &[nobody]).await, None);
        assert!(start.elapsed() < RESOLVER_TIMEOUT, "the host says that nobody listens");
    }

    #[tokio::test]
    async fn what_is_cut_is_asked_again_by_tcp() {
        let resolver = resolver(|query| vec![answer(query, [0x83, 0x80])]).await;
        let listener = TcpListener::bind(resolver).await.unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let length = stream.read_u16().await.unwrap();
            let mut query = vec![0; usize::from(length)];
            stream.read_exact(&mut query).await.unwrap();
            let long = [answer(&query, [0x81, 0x80]), vec![7; 5000]].concat();
            stream.write_u16(u16::try_from(long.len()).unwrap()).await.unwrap();
            stream.write_all(&long).await.unwrap();
        });
        let answered = ask(&query(), &[resolver]).await.unwrap();
        assert_eq!(answered, [answer(&query(), [0x81, 0x80]), vec![7; 5000]].concat());
    }
}
