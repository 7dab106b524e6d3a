//! Cluster DNS of one node: the names of services and pods under `cluster.local`, over UDP and TCP.
//!
//! It answers from a [`Zone`] that is replaced as a whole. A name outside the cluster does not
//! exist here, so that a pod's resolver can go on to its next search domain quickly. Only in a
//! machine with a way out are the host's resolvers asked for it.

mod outside;
mod zone;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use ambit_net::socket::{ListenOptions, tcp_listener, udp_bind};
use ambit_words::{names, ports};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, PTR, SOA, SRV};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

pub(crate) use outside::Outside;
pub(crate) use zone::{Data, Found, Zone};

/// How long an answer may be kept.
const TTL_SECONDS: u32 = 5;
/// Largest UDP answer that is sent, whatever the client says it takes.
const UDP_SIZE_MAX_BYTES: u16 = 1232;
/// Largest query.
const QUERY_SIZE_MAX_BYTES: usize = 4096;
/// TCP clients at a time; more wait in the listener's queue.
const TCP_CONNECTIONS_MAX: usize = 64;
/// How long a TCP client may be silent.
const TCP_IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait after a failed accept, such as too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A zone that is replaced while it is being served.
pub(crate) type SharedZone = Arc<RwLock<Arc<Zone>>>;

/// What is served.
#[derive(Debug)]
pub(crate) struct Names {
    /// The names of the cluster.
    pub(crate) zone: SharedZone,
    /// Who knows the others; without, they do not exist.
    pub(crate) outside: Option<Outside>,
}

/// Serves names on the given addresses until the runtime ends, whose context this needs.
pub(crate) fn serve(addresses: &[IpAddr], names: Names) -> io::Result<()> {
    let names = Arc::new(names);
    for address in addresses {
        let address = SocketAddr::new(*address, ports::DNS);
        let options = ListenOptions::default();
        let udp = UdpSocket::from_std(udp_bind(address, &options)?)?;
        let tcp = TcpListener::from_std(tcp_listener(address, &options)?)?;
        tokio::spawn(serve_udp(Arc::new(udp), Arc::clone(&names)));
        tokio::spawn(serve_tcp(tcp, Arc::clone(&names)));
    }
    Ok(())
}

async fn serve_udp(socket: Arc<UdpSocket>, names: Arc<Names>) {
    let mut query = [0; QUERY_SIZE_MAX_BYTES];
    loop {
        // Errors here are those of earlier answers (port unreachable): the next query is not to
        // blame.
        let Ok((length, client)) = socket.recv_from(&mut query).await else { continue };
        match names.judge(&query[..length]) {
            Judgement::None => {}
            Judgement::Here(query) => {
                let reply = sized(reply(&query, &names.current()), &query, Transport::Udp);
                send(&socket, reply, client).await;
            }
            Judgement::Outside(asked) => {
                let (socket, names) = (Arc::clone(&socket), Arc::clone(&names));
                let query = query[..length].to_owned();
                // Who asks for others need not wait meanwhile. The way outside bounds how many.
                tokio::spawn(async move {
                    let reply = names.ask_outside(&query, &asked, Transport::Udp).await;
                    send(&socket, reply, client).await;
                });
            }
        }
    }
}

async fn send(socket: &UdpSocket, reply: Option<Vec<u8>>, client: SocketAddr) {
    if let Some(reply) = reply
        && let Err(error) = socket.send_to(&reply, client).await
    {
        tracing::debug!(%client, %error, "cannot answer a DNS query");
    }
}

async fn serve_tcp(listener: TcpListener, names: Arc<Names>) {
    let places = Arc::new(Semaphore::new(TCP_CONNECTIONS_MAX));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("it is never closed");
        match listener.accept().await {
            Ok((stream, client)) => {
                let names = Arc::clone(&names);
                tokio::spawn(async move {
                    if let Err(error) = serve_stream(stream, &names).await {
                        tracing::debug!(%client, %error, "a DNS client over TCP went away");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a DNS client");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn serve_stream(mut stream: TcpStream, names: &Names) -> io::Result<()> {
    loop {
        let length = match timeout(TCP_IDLE_TIMEOUT, stream.read_u16()).await {
            Ok(length) => usize::from(length?),
            Err(_elapsed) => return Ok(()),
        };
        let mut query = vec![0; length];
        stream.read_exact(&mut query).await?;
        let Some(reply) = names.answer(&query, Transport::Tcp).await else { return Ok(()) };
        let length = u16::try_from(reply.len()).map_err(io::Error::other)?;
        let framed = [&length.to_be_bytes()[..], &reply].concat();
        stream.write_all(&framed).await?;
    }
}

/// How a query came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
}

/// Who answers a query.
enum Judgement {
    /// Nobody: it is no query at all.
    None,
    /// The cluster's zone.
    Here(Message),
    /// The host's resolvers.
    Outside(Message),
}

impl Names {
    fn current(&self) -> Arc<Zone> {
        Arc::clone(&self.zone.read().expect("nothing panics while it holds the lock"))
    }

    fn judge(&self, query: &[u8]) -> Judgement {
        let Ok(message) = Message::from_vec(query) else { return Judgement::None };
        if message.metadata.message_type != MessageType::Query {
            return Judgement::None;
        }
        let is_plain = message.metadata.op_code == OpCode::Query;
        let question = match message.queries.as_slice() {
            [question] if is_plain && question.query_class() == DNSClass::IN => question,
            _ => return Judgement::Here(message),
        };
        let name = question.name().to_lowercase().to_ascii();
        let may_be_outside = self.outside.as_ref().is_some_and(|it| it.may_have(&name))
            && query.len() <= QUERY_SIZE_MAX_BYTES
            && self.current().find(&name, question.query_type()) == Found::Nothing;
        if may_be_outside { Judgement::Outside(message) } else { Judgement::Here(message) }
    }

    /// The reply to a query; none to what is no query at all.
    async fn answer(&self, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
        match self.judge(query) {
            Judgement::None => None,
            Judgement::Here(query) => sized(reply(&query, &self.current()), &query, transport),
            Judgement::Outside(asked) => self.ask_outside(query, &asked, transport).await,
        }
    }

    /// What the host's resolvers answer: as it came if it fits, or else that it does not.
    async fn ask_outside(
        &self,
        query: &[u8],
        asked: &Message,
        transport: Transport,
    ) -> Option<Vec<u8>> {
        let answer = match &self.outside {
            Some(outside) => outside.ask(query).await,
            None => None,
        };
        let mut reply = start_reply(asked);
        match answer {
            Some(answer) if answer.len() <= limit_bytes(asked, transport) => return Some(answer),
            Some(_) => reply.metadata.truncation = true,
            None => reply.metadata.response_code = ResponseCode::ServFail,
        }
        reply.to_vec().ok()
    }
}

/// How long the reply to a query may be.
fn limit_bytes(query: &Message, transport: Transport) -> usize {
    usize::from(match transport {
        Transport::Udp => query.max_payload().min(UDP_SIZE_MAX_BYTES),
        Transport::Tcp => u16::MAX,
    })
}

/// A reply as it is sent.
fn sized(reply: Message, query: &Message, transport: Transport) -> Option<Vec<u8>> {
    let bytes = reply.to_vec().ok()?;
    if bytes.len() > limit_bytes(query, transport) {
        return reply.truncate().to_vec().ok();
    }
    Some(bytes)
}

/// A reply to a query without any record.
fn start_reply(query: &Message) -> Message {
    let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
    reply.metadata.recursion_desired = query.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    if query.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_SIZE_MAX_BYTES);
        reply.set_edns(edns);
    }
    reply.add_queries(query.queries.iter().cloned());
    reply
}

fn reply(query: &Message, zone: &Zone) -> Message {
    let reply = start_reply(query);
    let refuse = |mut reply: Message, code| {
        reply.metadata.response_code = code;
        reply
    };
    if query.metadata.op_code != OpCode::Query {
        return refuse(reply, ResponseCode::NotImp);
    }
    let [question] = query.queries.as_slice() else { return refuse(reply, ResponseCode::FormErr) };
    if question.query_class() != DNSClass::IN {
        return refuse(reply, ResponseCode::NXDomain);
    }
    let mut reply = reply;
    reply.metadata.authoritative = true;
    match zone.find(&question.name().to_lowercase().to_ascii(), question.query_type()) {
        Found::Nothing => reply.metadata.response_code = ResponseCode::NXDomain,
        Found::Data(data) => {
            for data in data {
                reply.answers.extend(record(question.name(), &data));
            }
        }
    }
    if reply.answers.is_empty() {
        reply.authorities.extend(start_of_authority());
    } else if question.query_type() == RecordType::SRV {
        add_targets(&mut reply, zone);
    }
    reply
}

/// Adds the addresses of the hosts that an SRV answer names.
fn add_targets(reply: &mut Message, zone: &Zone) {
    let targets: Vec<Name> = reply
        .answers
        .iter()
        .filter_map(|answer| match &answer.data {
            RData::SRV(service) => Some(service.target.clone()),
            _ => None,
        })
        .collect();
    for target in targets {
        for kind in [RecordType::A, RecordType::AAAA] {
            if let Found::Data(data) = zone.find(&target.to_ascii(), kind) {
                reply.additionals.extend(data.iter().filter_map(|data| record(&target, data)));
            }
        }
    }
}

/// A record of a reply; none if the data holds a name that DNS cannot carry.
fn record(owner: &Name, data: &Data) -> Option<Record> {
    let data = match data {
        Data::Address(IpAddr::V4(ip)) => RData::A(A(*ip)),
        Data::Address(IpAddr::V6(ip)) => RData::AAAA(AAAA(*ip)),
        Data::Service { port, target } => RData::SRV(SRV::new(0, 100, *port, name(target)?)),
        Data::Pointer(target) => RData::PTR(PTR(name(target)?)),
    };
    Some(Record::from_rdata(owner.clone(), TTL_SECONDS, data))
}

fn name(text: &str) -> Option<Name> {
    Name::from_ascii(format!("{text}.")).ok()
}

/// Says for how long the absence of something may be kept.
fn start_of_authority() -> Option<Record> {
    let (server, contact) = (name("ns.dns.cluster.local")?, name("hostmaster.cluster.local")?);
    let soa = SOA::new(server, contact, 1, 7200, 1800, 86400, TTL_SECONDS);
    Some(Record::from_rdata(name(names::DEFAULT_CLUSTER_DOMAIN)?, TTL_SECONDS, RData::SOA(soa)))
}

#[cfg(test)]
mod tests {
    use ambit_net::seqpacket::Listener;
    use ambit_words::names::DEFAULT_CLUSTER_DOMAIN;
    use futures::FutureExt as _;
    use hickory_proto::op::Query;

    use super::*;
    use crate::node::dns::zone::tests::zone;

    fn ask(name: &str, kind: RecordType, transport: Transport, edns: bool) -> Message {
        let mut query = Message::query();
        query.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        if edns {
            let mut edns = Edns::new();
            edns.set_max_payload(4096);
            query.set_edns(edns);
        }
        let zone = Arc::new(RwLock::new(Arc::new(zone())));
        let names = Names { zone, outside: None };
        let query = query.to_vec().unwrap();
        let reply = names.answer(&query, transport).now_or_never().expect("nothing to wait for");
        Message::from_vec(&reply.unwrap()).unwrap()
    }

    fn check(name: &str, kind: RecordType, code: ResponseCode, answers: &[&str]) {
        let reply = ask(name, kind, Transport::Tcp, false);
        let mut texts: Vec<String> =
            reply.answers.iter().map(|record| record.data.to_string()).collect();
        texts.sort();
        assert_eq!(
            (reply.metadata.response_code, texts),
            (code, answers.iter().map(|s| s.to_string()).collect()),
            "{name} {kind}"
        );
        assert_eq!(reply.answers.is_empty(), !reply.authorities.is_empty(), "{name} {kind}");
    }

    #[test]
    fn names_have_the_records_that_kubernetes_gives_them() {
        use RecordType::{A, AAAA, PTR, SRV};
        use ResponseCode::{NXDomain, NoError};
        check("web.shop.svc.cluster.local.", A, NoError, &["10.96.1.0"]);
        check("WEB.shop.svc.cluster.local.", AAAA, NoError, &["fd00:10:96::100"]);
        check("web.shop.svc.cluster.local.", SRV, NoError, &[]);
        check("shop.svc.cluster.local.", A, NoError, &[]);
        check("web.shop.", A, NXDomain, &[]);
        check("nothing.shop.svc.cluster.local.", A, NXDomain, &[]);
        check("web.shop.svc.cluster.local.shop.svc.cluster.local.", A, NXDomain, &[]);
        check("example.com.", A, NXDomain, &[]);
        let srv = ["0 100 80 web.shop.svc.cluster.local."];
        check("_http._tcp.web.shop.svc.cluster.local.", SRV, NoError, &srv);
        check("0.1.96.10.in-addr.arpa.", PTR, NoError, &["web.shop.svc.cluster.local."]);
        check("db.shop.svc.cluster.local.", A, NoError, &["10.244.1.2", "10.244.1.3"]);
        check("first.db.shop.svc.cluster.local.", A, NoError, &["10.244.1.2"]);
        let srv = [
            "0 100 5432 10-244-1-3.db.shop.svc.cluster.local.",
            "0 100 5432 first.db.shop.svc.cluster.local.",
        ];
        check("_sql._tcp.db.shop.svc.cluster.local.", SRV, NoError, &srv);
        check("2.1.244.10.in-addr.arpa.", PTR, NoError, &["first.db.shop.svc.cluster.local."]);
        check("10-244-1-3.shop.pod.cluster.local.", A, NoError, &["10.244.1.3"]);
    }

    #[test]
    fn large_answers_are_truncated_over_udp_only() {
        let name = "many.shop.svc.cluster.local.";
        let reply = ask(name, RecordType::A, Transport::Udp, false);
        assert!(reply.metadata.truncation && reply.answers.is_empty());
        let reply = ask(name, RecordType::A, Transport::Udp, true);
        assert_eq!((reply.metadata.truncation, reply.answers.len()), (false, 60));
        let reply = ask(name, RecordType::A, Transport::Tcp, false);
        assert_eq!((reply.metadata.truncation, reply.answers.len()), (false, 60));
    }

    #[test]
    fn srv_answers_bring_their_addresses() {
        let reply =
            ask("_http._tcp.web.shop.svc.cluster.local.", RecordType::SRV, Transport::Tcp, false);
        assert_eq!(reply.additionals.len(), 2);
    }

    /// Who listens at the socket of a machine with a way out: answers with as many bytes more than
    /// asked, but not to names below `lost`.
    async fn names_with_outside(path: &std::path::Path, more: usize) -> Names {
        let listener = Listener::bind(path).unwrap();
        tokio::spawn(async move {
            while let Ok(caller) = listener.accept().await {
                let mut query = vec![0; QUERY_SIZE_MAX_BYTES];
                let length = caller.receive(&mut query).await.unwrap().length;
                if !query.windows(4).any(|it| it == b"lost") {
                    query.truncate(length);
                    query[2] |= 0x80;
                    query.resize(length + more, 7);
                    caller.send(&query, &[]).await.unwrap();
                }
            }
        });
        let zone = Arc::new(RwLock::new(Arc::new(zone())));
        Names { zone, outside: Some(Outside::new(path.to_owned(), DEFAULT_CLUSTER_DOMAIN)) }
    }

    #[tokio::test]
    async fn names_outside_are_asked_for_outside_and_no_others() {
        let directory = tempfile::tempdir().unwrap();
        let names = names_with_outside(&directory.path().join("sock"), 1000).await;
        let check = async |name: &str, transport, code: ResponseCode, (length, cut)| {
            let mut query = Message::query();
            query.metadata.id = 77;
            query.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
            let query = query.to_vec().unwrap();
            let reply = names.answer(&query, transport).await.unwrap();
            assert_eq!((&reply[..2], reply[3] & 0xf), (&[0, 77][..], code.low()));
            assert_eq!(reply.len() - query.len(), length, "{name}");
            assert_eq!(reply[2] & 2 != 0, cut, "{name}");
        };
        use ResponseCode::{NoError, ServFail};
        check("example.com.", Transport::Tcp, NoError, (1000, false)).await;
        check("example.com.", Transport::Udp, NoError, (0, true)).await;
        check("lost.example.com.", Transport::Udp, ServFail, (0, false)).await;
        // The cluster's own names are answered at once.
        for name in ["example.com.shop.svc.cluster.local.", "web.shop.svc.cluster.local."] {
            let mut query = Message::query();
            query.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
            let query = query.to_vec().unwrap();
            assert!(names.answer(&query, Transport::Udp).now_or_never().is_some(), "{name}");
        }
    }
}
