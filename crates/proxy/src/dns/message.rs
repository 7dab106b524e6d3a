//! DNS messages: reading queries, writing answers. No socket and no view.
//!
//! Input is arbitrary bytes from a pod. What is not a query is ignored or answered with an error;
//! nothing here panics on it. A query is read once from front to back, in steps that are counted.
//! No name is ever decompressed: one message can hold thousands of names, and each can cost
//! thousands of hops.

use std::net::IpAddr;

use ambit_dataplane::resolver::{HEADER_BYTES, Transport};

use super::resolve::Family;

/// Answers without EDNS end here (RFC 1035 section 4.2.1).
const PLAIN_UDP_BYTES: usize = 512;
/// Largest datagram that is sent, whatever the client takes.
const MAX_UDP_BYTES: usize = 4096;
/// Longest name, with the lengths of its labels (RFC 1035 section 2.3.4).
const MAX_NAME_BYTES: usize = 255;
/// Longest label; what is beyond is a pointer, or of no known kind (RFC 1035 section 4.1.4).
const MAX_LABEL_BYTES: u8 = 63;
/// The two highest bits of a pointer's first byte.
const POINTER_BITS: u8 = 0xc0;
/// Most labels and records of one query that are read. A name has at most 128 labels, and a query
/// little beside its question: an OPT record and a signature, or the SOA of a zone transfer.
const MAX_STEPS: usize = 512;
/// No resolver could be reached.
pub(super) const SERVER_FAILURE: u8 = 2;
/// The query is of no known kind.
const NOT_IMPLEMENTED: u8 = 4;
/// The query is malformed.
const FORMAT_ERROR: u8 = 1;
/// Too many queries are under way.
pub(super) const REFUSED: u8 = 5;
/// The class of the Internet.
const CLASS_IN: u16 = 1;
/// Types of records.
const TYPE_A: u16 = 1;
const TYPE_CNAME: u16 = 5;
const TYPE_AAAA: u16 = 28;
const TYPE_OPT: u16 = 41;

/// A query that can be looked up.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// The name, in lower case and without the last dot.
    pub(super) name: String,
    /// Which addresses, or nothing for another type of record.
    pub(super) family: Option<Family>,
    id: [u8; 2],
    recursion_desired: bool,
    /// The question as it came: some resolvers randomise its spelling and compare.
    question: Vec<u8>,
    payload: Option<usize>,
}

/// What is known about a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    /// The name itself, where a search domain was taken off the one that was asked for.
    pub(super) canonical: Option<&'a str>,
    /// Its addresses.
    pub(super) addresses: &'a [IpAddr],
    /// How long all of it may be remembered.
    pub(super) ttl: u32,
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
    read_within(bytes, &mut Walk::new(bytes))
}

fn read_within(bytes: &[u8], walk: &mut Walk<'_>) -> Result<Asked, Outcome> {
    // Answering an answer could loop for ever.
    let is_response = bytes.get(2).is_none_or(|flags| flags & 0x80 != 0);
    if bytes.len() < HEADER_BYTES || is_response {
        return Err(Outcome::Ignore);
    }
    if bytes[2] & 0x78 != 0 {
        return Err(Outcome::Answer(refusal(bytes, NOT_IMPLEMENTED)));
    }
    let malformed = || Outcome::Answer(refusal(bytes, FORMAT_ERROR));
    let question = Question::read(bytes, walk).ok_or_else(malformed)?;
    let payload = walk.payload().ok_or_else(malformed)?;
    let name = match question.name {
        Some(name) if question.class == CLASS_IN => name,
        _ => return Err(Outcome::Forward),
    };
    Ok(Asked {
        name,
        family: match question.kind {
            TYPE_A => Some(Family::Ipv4),
            TYPE_AAAA => Some(Family::Ipv6),
            _ => None,
        },
        id: [bytes[0], bytes[1]],
        recursion_desired: bytes[2] & 1 != 0,
        question: bytes[HEADER_BYTES..question.end].to_vec(),
        payload,
    })
}

/// The one question of a message.
struct Question {
    /// In lower case; nothing if no service can have it: bytes that would have to be escaped.
    name: Option<String>,
    kind: u16,
    class: u16,
    end: usize,
}

impl Question {
    /// Nothing if there is not exactly one in plain form.
    fn read(message: &[u8], walk: &mut Walk<'_>) -> Option<Self> {
        if message.get(4..6)? != [0, 1] {
            return None;
        }
        let (mut name, mut is_plain) = (String::new(), true);
        while let Part::Label(label) = walk.part()? {
            if !name.is_empty() {
                name.push('.');
            }
            let is_written = |it: &u8| it.is_ascii_graphic() && !matches!(it, b'.' | b'\\');
            is_plain &= label.iter().all(is_written);
            name.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
            // With the root.
            if walk.at + 1 - HEADER_BYTES > MAX_NAME_BYTES {
                return None;
            }
        }
        // A pointer could only lead into the header.
        if walk.ended_with_pointer {
            return None;
        }
        let (kind, class) = (walk.number()?, walk.number()?);
        Some(Self { name: is_plain.then_some(name), kind, class, end: walk.at })
    }
}

/// A message that is read from front to back.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Labels and records read so far.
    steps: usize,
    ended_with_pointer: bool,
}

/// A part of a name.
enum Part<'a> {
    Label(&'a [u8]),
    /// The root, or a pointer, which is not followed.
    End,
}

impl<'a> Walk<'a> {
    /// Begins behind the header.
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: HEADER_BYTES, steps: 0, ended_with_pointer: false }
    }

    fn step(&mut self) -> Option<()> {
        self.steps += 1;
        (self.steps <= MAX_STEPS).then_some(())
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..)?.get(..count)?;
        self.at += count;
        Some(taken)
    }

    fn number(&mut self) -> Option<u16> {
        self.take(2).map(|it| u16::from_be_bytes([it[0], it[1]]))
    }

    /// The next part of a name; nothing if there is none, or there were too many.
    fn part(&mut self) -> Option<Part<'a>> {
        self.step()?;
        match self.take(1)?[0] {
            0 => {
                self.ended_with_pointer = false;
                Some(Part::End)
            }
            length @ 1..=MAX_LABEL_BYTES => self.take(length.into()).map(Part::Label),
            first if first & POINTER_BITS == POINTER_BITS => {
                self.take(1)?;
                self.ended_with_pointer = true;
                Some(Part::End)
            }
            _ => None,
        }
    }

    /// The client's payload size in the OPT record behind the question, if there is one; nothing if
    /// the records are malformed or too many. There is one at most, and it is among the additional
    /// records (RFC 6891 section 6.1.1).
    fn payload(&mut self) -> Option<Option<usize>> {
        let count = |at: usize| {
            let count = self.bytes.get(at..at + 2)?;
            Some(usize::from(u16::from_be_bytes([count[0], count[1]])))
        };
        let (before, additional) = (count(6)? + count(8)?, count(10)?);
        let mut payload = None;
        for index in 0..before + additional {
            self.step()?;
            while let Part::Label(_) = self.part()? {}
            let (kind, class) = (self.number()?, self.number()?);
            // The time to live, or the rest of what EDNS says.
            self.take(4)?;
            let length = self.number()?;
            self.take(length.into())?;
            if kind == TYPE_OPT && index >= before && payload.replace(class.into()).is_some() {
                return None;
            }
        }
        Some(payload)
    }
}

/// Writes the answer; one that does not fit a datagram is marked as cut, so that the client asks
/// again over TCP.
pub(super) fn answer(asked: &Asked, known: Known<'_>, transport: Transport) -> Vec<u8> {
    let limit = match transport {
        Transport::Tcp => usize::from(u16::MAX),
        Transport::Udp => {
            asked.payload.unwrap_or(PLAIN_UDP_BYTES).clamp(PLAIN_UDP_BYTES, MAX_UDP_BYTES)
        }
    };
    let whole = written(asked, known, false);
    if whole.len() <= limit {
        whole
    } else {
        written(asked, Known { canonical: None, addresses: &[], ..known }, true)
    }
}

fn written(asked: &Asked, known: Known<'_>, is_cut: bool) -> Vec<u8> {
    let Known { canonical, addresses, ttl } = known;
    let count = addresses.len() + usize::from(canonical.is_some());
    let count = u16::try_from(count).expect("an answer has few records");
    let has_opt = u16::from(asked.payload.is_some());
    let mut message = asked.id.to_vec();
    // QR and AA set, TC, RD as asked; RA set, no error.
    let flags = 0x84 | (u8::from(is_cut) << 1) | u8::from(asked.recursion_desired);
    message.extend([flags, 0x80]);
    for number in [1, count, 0, has_opt] {
        message.extend(u16::to_be_bytes(number));
    }
    message.extend(&asked.question);
    // The name of the question, which follows the header.
    let mut owner = HEADER_BYTES as u16;
    if let Some(canonical) = canonical {
        let start = record(&mut message, owner, TYPE_CNAME, ttl, &in_labels(canonical));
        owner = u16::try_from(start).expect("one record fits into a pointer's reach");
    }
    for ip in addresses {
        let (kind, data) = match ip {
            IpAddr::V4(ip) => (TYPE_A, ip.octets().to_vec()),
            IpAddr::V6(ip) => (TYPE_AAAA, ip.octets().to_vec()),
        };
        record(&mut message, owner, kind, ttl, &data);
    }
    if asked.payload.is_some() {
        // The root, the type, the payload that is taken; no extended code, version or option.
        message.push(0);
        message.extend([TYPE_OPT, MAX_UDP_BYTES as u16].map(u16::to_be_bytes).concat());
        message.extend([0; 6]);
    }
    message
}

/// Appends a record whose owner's name is elsewhere in the message; says where its data begin.
fn record(message: &mut Vec<u8>, owner: u16, kind: u16, ttl: u32, data: &[u8]) -> usize {
    let pointer = u16::from(POINTER_BITS) << 8 | owner;
    message.extend([pointer, kind, CLASS_IN].map(u16::to_be_bytes).concat());
    message.extend(ttl.to_be_bytes());
    message.extend((data.len() as u16).to_be_bytes());
    let start = message.len();
    message.extend(data);
    start
}

/// A name whose labels were read from a query or are the cluster domain's, so that each has its 63
/// bytes at most.
fn in_labels(name: &str) -> Vec<u8> {
    let label = |label: &str| [&[label.len() as u8], label.as_bytes()].concat();
    name.split('.').flat_map(label).chain([0]).collect()
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
fn question_end(message: &[u8]) -> Option<usize> {
    Question::read(message, &mut Walk::new(message)).map(|question| question.end)
}

#[cfg(test)]
pub(super) mod tests {
    use hickory_proto::op::{Edns, Message, Query, ResponseCode};
    use hickory_proto::rr::{Name, RecordType};

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

    /// No pointer leads further.
    pub(in crate::dns) const LAST_POINTER: usize = 0x3fff;

    fn addresses(number: u8) -> Vec<IpAddr> {
        (0..number).map(|last| IpAddr::from([10, 0, 0, last])).collect()
    }

    #[test]
    fn queries_are_read_and_answered() {
        let Ok(asked) = read(&query("Cart.Shop.svc.", RecordType::A, None)) else { panic!() };
        assert_eq!((&*asked.name, asked.family), ("cart.shop.svc", Some(Family::Ipv4)));
        let bytes = answer(&asked, known(&addresses(2)), Transport::Udp);
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
        let bytes = answer(&asked, known(&[]), Transport::Udp);
        let message = Message::from_vec(&bytes).expect("an answer");
        assert_eq!(message.metadata.response_code, ResponseCode::NoError);
        assert!(message.answers.is_empty());
    }

    fn known(addresses: &[IpAddr]) -> Known<'_> {
        Known { canonical: None, addresses, ttl: 30 }
    }

    #[test]
    fn a_name_without_its_search_domain_is_the_canonical_one() {
        let name = "web.shop.svc.cluster.local.shop.svc.cluster.local.";
        let Ok(asked) = read(&query(name, RecordType::A, Some(1232))) else { panic!() };
        let addresses = addresses(2);
        let canonical = Some("web.shop.svc.cluster.local");
        let bytes = answer(&asked, Known { canonical, ..known(&addresses) }, Transport::Udp);
        let message = Message::from_vec(&bytes).expect("an answer");
        let lines: Vec<String> = message.answers.iter().map(ToString::to_string).collect();
        assert_eq!(lines[0], format!("{name} 30 IN CNAME web.shop.svc.cluster.local."));
        assert_eq!(lines.len(), 3);
        for line in &lines[1..] {
            assert!(line.starts_with("web.shop.svc.cluster.local. 30 IN A "), "{line}");
        }
    }

    #[test]
    fn answers_fit_what_the_client_takes() {
        let check = |payload, number, transport, expected: usize| {
            let Ok(asked) = read(&query("cart.", RecordType::A, payload)) else { panic!() };
            let bytes = answer(&asked, known(&addresses(number)), transport);
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

    /// Queries of this size, full of records whose names are chains of pointers, each to the one
    /// before: as answers, of an authority, and as additional ones. The chain ends before `end`.
    pub(in crate::dns) fn chains_of_pointers(end: usize, size: usize) -> Vec<Vec<u8>> {
        let record = |name: &[u8], data: &[u8]| {
            let length = (data.len() as u16).to_be_bytes();
            [name, &[0, 10, 0, 1, 0, 0, 0, 0], &length, data].concat()
        };
        let question = [0, 0, 1, 0, 1];
        let start = HEADER_BYTES + question.len() + record(&[0], &[]).len();
        let mut chain = Vec::new();
        let mut last = HEADER_BYTES;
        while start + chain.len() < end {
            let here = start + chain.len();
            chain.extend((0xc000 | last as u16).to_be_bytes());
            last = here;
        }
        let mut records = record(&[0], &chain);
        let entry = (0xc000 | last as u16).to_be_bytes();
        let mut count = 1_u16;
        while HEADER_BYTES + question.len() + records.len() + 13 <= size {
            records.extend(record(&entry, b"x"));
            count += 1;
        }
        let sections = (0..3).map(|section| {
            let mut header = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            header[6 + 2 * section..8 + 2 * section].copy_from_slice(&count.to_be_bytes());
            [&header[..], &question, &records].concat()
        });
        sections.collect()
    }

    #[test]
    fn names_that_are_chains_of_pointers_cost_nothing() {
        for bytes in chains_of_pointers(LAST_POINTER, usize::from(u16::MAX)) {
            let mut walk = Walk::new(&bytes);
            let Err(Outcome::Answer(answer)) = read_within(&bytes, &mut walk) else { panic!() };
            assert_eq!((answer[3] & 0x0f, answer.len()), (FORMAT_ERROR, HEADER_BYTES + 5));
            assert!(walk.steps <= MAX_STEPS + 1, "{}", walk.steps);
        }
    }

    #[test]
    fn a_question_has_no_pointers_and_is_the_only_one() {
        let whole = query("cart.", RecordType::A, None);
        let check = |name: &[u8], questions: u8, is_read: bool| {
            let mut bytes = whole[..HEADER_BYTES].to_vec();
            bytes[5] = questions;
            for _ in 0..questions {
                bytes.extend([name, &[0, 1, 0, 1]].concat());
            }
            match read(&bytes) {
                Ok(asked) => assert!(is_read, "{}", asked.name),
                Err(outcome) => {
                    let refused = Outcome::Answer(refusal(&bytes, FORMAT_ERROR));
                    assert_eq!((outcome, is_read), (refused, false), "{name:?}");
                }
            }
        };
        let of_length = |last: u8| {
            let labels = [&[63; 64][..], &[63; 64], &[63; 64], &vec![last; usize::from(last) + 1]];
            [&labels.concat()[..], &[0]].concat()
        };
        check(b"\x04cart\0", 1, true);
        check(b"\x04cart\0", 2, false);
        check(b"\x04cart\0", 0, false);
        check(b"\x04cart\xc0\x04", 1, false);
        check(b"\xc0\x0c", 1, false);
        check(b"\x40art\0", 1, false);
        check(b"\x04car", 1, false);
        check(&of_length(61), 1, true);
        check(&of_length(62), 1, false);
        check(&[&[1, b'a'].repeat(127)[..], &[0]].concat(), 1, true);
    }

    #[test]
    fn what_is_no_name_of_a_service_is_for_others() {
        for name in [&b"\x06ca.rt1\0"[..], b"\x02a\\\0", b"\x02a \0", b"\x02\xc3\xa4\0"] {
            let whole = query("cart.", RecordType::A, None);
            let bytes = [&whole[..HEADER_BYTES], name, &[0, 1, 0, 1]].concat();
            assert_eq!(read(&bytes), Err(Outcome::Forward), "{name:?}");
        }
    }

    #[test]
    fn options_are_found_among_few_further_records() {
        let with = |counts: [u8; 3], records: &[&[u8]]| {
            let mut bytes = query("cart.", RecordType::A, None);
            for (index, count) in counts.into_iter().enumerate() {
                bytes[7 + 2 * index] = count;
            }
            bytes.extend(records.concat());
            read(&bytes).ok().map(|asked| asked.payload)
        };
        let options: &[u8] = &[0, 0, 41, 4, 210, 0, 0, 0, 0, 0, 0];
        let signature: &[u8] = b"\x03key\xc0\x0c\x00\xfa\x00\xff\x00\x00\x00\x00\x00\x02ab";
        let cut = &signature[..signature.len() - 1];
        assert_eq!(with([0, 0, 1], &[options]), Some(Some(1234)));
        assert_eq!(with([0, 0, 2], &[options, signature]), Some(Some(1234)));
        assert_eq!(with([0, 1, 1], &[signature, options]), Some(Some(1234)));
        assert_eq!(with([0, 1, 0], &[options]), Some(None), "it is of the authority");
        assert_eq!(with([0, 0, 2], &[options, options]), None);
        assert_eq!(with([0, 0, 2], &[options, cut]), None);
        assert_eq!(with([0, 0, 2], &[options]), None);
        assert_eq!(with([0, 0, 200], &vec![signature; 200]), None, "too many");
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
