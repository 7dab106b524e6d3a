//! DNS messages: reading queries, writing answers. No socket and no view.
//!
//! Input is arbitrary bytes of a pod; what is no query is ignored or answered with an error, and
//! nothing here panics on it.

use std::net::IpAddr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};

use super::forward::Transport;
use super::resolve::Family;

/// Answers without EDNS end here (RFC 1035 section 4.2.1).
const PLAIN_UDP_BYTES: usize = 512;
/// Largest datagram that is sent, whatever the client takes.
const MAX_UDP_BYTES: usize = 4096;
/// Size of a header (RFC 1035 section 4.1.1).
pub(super) const HEADER_BYTES: usize = 12;
/// Nobody could be asked.
pub(super) const SERVER_FAILURE: u8 = 2;
/// The query is of no known kind.
const NOT_IMPLEMENTED: u8 = 4;
/// The query is malformed.
const FORMAT_ERROR: u8 = 1;
/// Too many queries are under way.
pub(super) const REFUSED: u8 = 5;

/// A query that can be looked up.
pub(super) struct Asked {
    /// The name, in lower case and without the last dot.
    pub(super) name: String,
    /// Which addresses, or nothing for another type of record.
    pub(super) family: Option<Family>,
    id: u16,
    recursion_desired: bool,
    query: Query,
    payload: Option<usize>,
}

/// What to do with a query.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing: it is no query at all.
    Ignore,
    /// Send this.
    Answer(Vec<u8>),
    /// Ask another resolver.
    Forward,
}

/// Reads a query, or says what else to do.
pub(super) fn read(bytes: &[u8]) -> Result<Asked, Outcome> {
    // Answering an answer could go on for ever.
    let is_response = bytes.get(2).is_none_or(|flags| flags & 0x80 != 0);
    if bytes.len() < HEADER_BYTES || is_response {
        return Err(Outcome::Ignore);
    }
    let Ok(message) = Message::from_vec(bytes) else {
        return Err(Outcome::Answer(refusal(bytes, FORMAT_ERROR)));
    };
    if message.metadata.op_code != OpCode::Query {
        return Err(Outcome::Answer(refusal(bytes, NOT_IMPLEMENTED)));
    }
    let [query] = &message.queries[..] else {
        return Err(Outcome::Answer(refusal(bytes, FORMAT_ERROR)));
    };
    if query.query_class() != DNSClass::IN {
        return Err(Outcome::Forward);
    }
    let family = match query.query_type() {
        RecordType::A => Some(Family::Ipv4),
        RecordType::AAAA => Some(Family::Ipv6),
        _ => None,
    };
    let name = query.name().to_ascii().to_ascii_lowercase();
    Ok(Asked {
        name: name.strip_suffix('.').unwrap_or(&name).to_owned(),
        family,
        id: message.metadata.id,
        recursion_desired: message.metadata.recursion_desired,
        query: query.clone(),
        payload: message.edns.as_ref().map(|edns| edns.max_payload().into()),
    })
}

/// Writes the answer; one that does not fit a datagram is marked as cut, so that the client asks
/// again over TCP.
pub(super) fn answer(
    asked: &Asked,
    addresses: &[IpAddr],
    ttl: u32,
    transport: Transport,
) -> Vec<u8> {
    let mut message = Message::new(asked.id, MessageType::Response, OpCode::Query);
    message.metadata.recursion_desired = asked.recursion_desired;
    message.metadata.recursion_available = true;
    message.metadata.authoritative = true;
    message.metadata.response_code = ResponseCode::NoError;
    message.add_query(asked.query.clone());
    for ip in addresses {
        let data = match ip {
            IpAddr::V4(ip) => RData::A(A(*ip)),
            IpAddr::V6(ip) => RData::AAAA(AAAA(*ip)),
        };
        message.add_answer(Record::from_rdata(asked.query.name().clone(), ttl, data));
    }
    if asked.payload.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_UDP_BYTES as u16);
        message.set_edns(edns);
    }
    let limit = match transport {
        Transport::Tcp => usize::from(u16::MAX),
        Transport::Udp => {
            asked.payload.unwrap_or(PLAIN_UDP_BYTES).clamp(PLAIN_UDP_BYTES, MAX_UDP_BYTES)
        }
    };
    let whole = message.to_vec().expect("a name that was read can be written");
    if whole.len() <= limit {
        return whole;
    }
    message.answers.clear();
    message.metadata.truncation = true;
    message.to_vec().expect("a name that was read can be written")
}

/// An answer without content: the query's header and question with this code. Works on any bytes
/// that have a header.
pub(super) fn refusal(query: &[u8], code: u8) -> Vec<u8> {
    let question = question_end(query);
    let mut answer = query[..question.unwrap_or(HEADER_BYTES)].to_vec();
    // QR set, opcode and RD as asked; RA set, the code.
    answer[2] = 0x80 | (query[2] & 0x79);
    answer[3] = 0x80 | (code & 0x0f);
    let questions = u16::from(question.is_some());
    answer[4..6].copy_from_slice(&questions.to_be_bytes());
    answer[6..HEADER_BYTES].fill(0);
    answer
}

/// Where the one question of a message ends; nothing if there is not exactly one in plain form.
pub(super) fn question_end(message: &[u8]) -> Option<usize> {
    if message.get(4..6)? != [0, 1] {
        return None;
    }
    let mut at = HEADER_BYTES;
    loop {
        match *message.get(at)? {
            0 => break,
            label @ 1..=63 => at += usize::from(label) + 1,
            _ => return None,
        }
    }
    // The root label, type and class.
    let end = at + 5;
    (end <= message.len()).then_some(end)
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::Name;

    use super::*;

    fn query(name: &str, kind: RecordType, payload: Option<u16>) -> Vec<u8> {
        let mut message = Message::query();
        message.metadata.id = 7;
        message.metadata.recursion_desired = true;
        let name = Name::from_ascii(name).expect("a name");
        message.add_query(Query::query(name, kind));
        if let Some(payload) = payload {
            let mut edns = Edns::new();
            edns.set_max_payload(payload);
            message.set_edns(edns);
        }
        message.to_vec().expect("encoded")
    }

    fn addresses(number: u8) -> Vec<IpAddr> {
        (0..number).map(|last| IpAddr::from([10, 0, 0, last])).collect()
    }

    #[test]
    fn queries_are_read_and_answered() {
        let Ok(asked) = read(&query("Cart.Shop.svc.", RecordType::A, None)) else { panic!() };
        assert_eq!((&*asked.name, asked.family), ("cart.shop.svc", Some(Family::Ipv4)));
        let bytes = answer(&asked, &addresses(2), 30, Transport::Udp);
        let message = Message::from_vec(&bytes).expect("an answer");
        assert_eq!(message.metadata.id, 7);
        assert_eq!(message.metadata.response_code, ResponseCode::NoError);
        assert!(message.metadata.recursion_desired && message.metadata.recursion_available);
        // The client's spelling comes back: some resolvers randomise it and compare.
        assert_eq!(message.queries[0].name().to_string(), "Cart.Shop.svc.");
        assert_eq!(message.answers.len(), 2);
        assert_eq!(message.answers[0].ttl, 30);
    }

    #[test]
    fn no_address_is_an_empty_answer_and_not_an_error() {
        let Ok(asked) = read(&query("cart.", RecordType::AAAA, None)) else { panic!() };
        let bytes = answer(&asked, &[], 30, Transport::Udp);
        let message = Message::from_vec(&bytes).expect("an answer");
        assert_eq!(message.metadata.response_code, ResponseCode::NoError);
        assert!(message.answers.is_empty());
    }

    #[test]
    fn answers_fit_what_the_client_takes() {
        let check = |payload, number, transport, expected: usize| {
            let Ok(asked) = read(&query("cart.", RecordType::A, payload)) else { panic!() };
            let bytes = answer(&asked, &addresses(number), 30, transport);
            let message = Message::from_vec(&bytes).expect("an answer");
            assert_eq!(message.answers.len(), expected, "{payload:?} {number}");
            assert_eq!(message.metadata.truncation, expected == 0);
            assert_eq!(message.edns.is_some(), payload.is_some());
        };
        check(None, 20, Transport::Udp, 20);
        check(None, 60, Transport::Udp, 0);
        check(None, 60, Transport::Tcp, 60);
        check(Some(1232), 60, Transport::Udp, 60);
        check(Some(100), 60, Transport::Udp, 0);
        check(Some(100), 20, Transport::Udp, 20);
    }

    #[test]
    fn what_is_no_query_is_refused_or_ignored() {
        let check = |bytes: &[u8], expected: Option<u8>| {
            let code = match read(bytes) {
                Err(Outcome::Answer(answer)) => Some(answer[3] & 0x0f),
                Err(Outcome::Ignore) => None,
                _ => panic!("{bytes:?}"),
            };
            assert_eq!(code, expected, "{bytes:?}");
        };
        check(b"", None);
        check(&[0; 11], None);
        check(&[0; 12], Some(FORMAT_ERROR));
        let mut response = query("cart.", RecordType::A, None);
        response[2] |= 0x80;
        check(&response, None);
        let mut update = query("cart.", RecordType::A, None);
        update[2] |= 5 << 3;
        check(&update, Some(NOT_IMPLEMENTED));
        let cut = query("cart.", RecordType::A, None);
        check(&cut[..cut.len() - 1], Some(FORMAT_ERROR));
    }

    #[test]
    fn other_types_and_classes_are_for_others() {
        let Ok(asked) = read(&query("_x._tcp.cart.", RecordType::SRV, None)) else { panic!() };
        assert_eq!(asked.family, None);
        let mut chaos = query("cart.", RecordType::A, None);
        let end = chaos.len();
        chaos[end - 1] = 3;
        assert!(matches!(read(&chaos), Err(Outcome::Forward)));
    }

    #[test]
    fn a_refusal_repeats_the_question() {
        let asked = query("cart.", RecordType::A, Some(1232));
        let message = Message::from_vec(&refusal(&asked, REFUSED)).expect("a message");
        assert_eq!(message.metadata.response_code, ResponseCode::Refused);
        assert_eq!((message.metadata.id, message.queries.len()), (7, 1));
        assert!(message.edns.is_none());
    }
}
