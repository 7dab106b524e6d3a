//! Cluster DNS of one node: the names of services and pods under `cluster.local`, over UDP and TCP.
//!
//! A machine has no way out, so a name outside the cluster does not exist here, which is what lets
//! the search domains of a pod's resolver go on to the next quickly. It answers from a [`Zone`]
//! that is replaced whole.

mod zone;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use ambit_words::{names, ports};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, PTR, SOA, SRV};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

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

/// Serves the zone on the given addresses until the runtime ends.
pub(crate) async fn serve(addresses: &[IpAddr], zone: &SharedZone) -> io::Result<()> {
    for address in addresses {
        let address = SocketAddr::new(*address, ports::DNS);
        let udp = UdpSocket::bind(address).await?;
        let tcp = TcpListener::bind(address).await?;
        tokio::spawn(serve_udp(udp, Arc::clone(zone)));
        tokio::spawn(serve_tcp(tcp, Arc::clone(zone)));
    }
    Ok(())
}

async fn serve_udp(socket: UdpSocket, zone: SharedZone) {
    let mut query = [0; QUERY_SIZE_MAX_BYTES];
    loop {
        // Errors here are those of earlier answers (port unreachable): the next query is not to
        // blame.
        let Ok((length, client)) = socket.recv_from(&mut query).await else { continue };
        if let Some(reply) = answer(&query[..length], &current(&zone), Transport::Udp)
            && let Err(error) = socket.send_to(&reply, client).await
        {
            tracing::debug!(%client, %error, "cannot answer a DNS query");
        }
    }
}

async fn serve_tcp(listener: TcpListener, zone: SharedZone) {
    let places = Arc::new(Semaphore::new(TCP_CONNECTIONS_MAX));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("it is never closed");
        match listener.accept().await {
            Ok((stream, client)) => {
                let zone = Arc::clone(&zone);
                tokio::spawn(async move {
                    if let Err(error) = serve_stream(stream, &zone).await {
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

async fn serve_stream(mut stream: TcpStream, zone: &SharedZone) -> io::Result<()> {
    loop {
        let length = match timeout(TCP_IDLE_TIMEOUT, stream.read_u16()).await {
            Ok(length) => usize::from(length?),
            Err(_elapsed) => return Ok(()),
        };
        let mut query = vec![0; length];
        stream.read_exact(&mut query).await?;
        let Some(reply) = answer(&query, &current(zone), Transport::Tcp) else { return Ok(()) };
        let length = u16::try_from(reply.len()).map_err(io::Error::other)?;
        let framed = [&length.to_be_bytes()[..], &reply].concat();
        stream.write_all(&framed).await?;
    }
}

fn current(zone: &SharedZone) -> Arc<Zone> {
    Arc::clone(&zone.read().expect("nothing panics while it holds the lock"))
}

/// How a query came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
}

/// The reply to a query; none to what is no query at all.
fn answer(query: &[u8], zone: &Zone, transport: Transport) -> Option<Vec<u8>> {
    let query = Message::from_vec(query).ok()?;
    if query.metadata.message_type != MessageType::Query {
        return None;
    }
    let reply = reply(&query, zone);
    let mut bytes = reply.to_vec().ok()?;
    let limit = match transport {
        Transport::Udp => query.max_payload().min(UDP_SIZE_MAX_BYTES),
        Transport::Tcp => u16::MAX,
    };
    if bytes.len() > usize::from(limit) {
        bytes = reply.truncate().to_vec().ok()?;
    }
    Some(bytes)
}

fn reply(query: &Message, zone: &Zone) -> Message {
    let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
    reply.metadata.recursion_desired = query.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    if query.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_SIZE_MAX_BYTES);
        reply.set_edns(edns);
    }
    reply.add_queries(query.queries.iter().cloned());
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
        let reply = answer(&query.to_vec().unwrap(), &zone(), transport).unwrap();
        Message::from_vec(&reply).unwrap()
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
}
