//! TLS as it looks from outside: record headers, and the client's hello, which is not encrypted.

use ambit_tls::client_hello::Reader;

use super::stream::Stream;

const HEADER_BYTES: usize = 5;
const HANDSHAKE: u8 = 22;
/// change_cipher_spec, alert, handshake, application_data.
const KINDS: std::ops::RangeInclusive<u8> = 20..=23;
/// 2^14 and the most that encryption may add (RFC 5246; RFC 8446 allows less).
const MAX_RECORD_BYTES: usize = (1 << 14) + 2048;
const CLIENT_HELLO: u8 = 1;
const ALPN: usize = 16;

/// What went over one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSummary {
    /// Streams (one per direction) that carried payload.
    pub streams: usize,
    /// TCP payload in total.
    pub payload_bytes: u64,
    /// Bytes of TLS records, headers included.
    pub tls_bytes: u64,
    /// Bytes that are not TLS, of complete streams.
    pub other_bytes: u64,
    /// Streams that were not captured from their start or have holes, so nothing is known about
    /// them. Evidence needs 0.
    pub partial_streams: usize,
    /// Application protocols that clients offered, each once.
    pub alpn: Vec<String>,
}

impl TlsSummary {
    pub(super) fn add(&mut self, stream: &Stream) {
        self.streams += 1;
        self.payload_bytes += stream.payload.len() as u64;
        if !stream.complete {
            self.partial_streams += 1;
            return;
        }
        let tls = tls_prefix(&stream.payload);
        self.tls_bytes += tls as u64;
        self.other_bytes += (stream.payload.len() - tls) as u64;
        for protocol in offered_protocols(&stream.payload[..tls]) {
            if !self.alpn.contains(&protocol) {
                self.alpn.push(protocol);
            }
        }
    }
}

/// How many bytes from the start are TLS records; the end of the capture may cut the last one.
fn tls_prefix(payload: &[u8]) -> usize {
    let mut at = 0;
    while at < payload.len() {
        let header = &payload[at..payload.len().min(at + HEADER_BYTES)];
        let first_is_handshake = at > 0 || header[0] == HANDSHAKE;
        let plausible = KINDS.contains(&header[0])
            && header.get(1).is_none_or(|major| *major == 3)
            && header.get(2).is_none_or(|minor| *minor <= 4);
        if !plausible || !first_is_handshake {
            break;
        }
        let length = header.get(3..5).map_or(0, |b| usize::from(u16::from_be_bytes([b[0], b[1]])));
        if length > MAX_RECORD_BYTES {
            break;
        }
        at += HEADER_BYTES + length;
    }
    at.min(payload.len())
}

/// The ALPN extension of a client hello in the first record; nothing for any other stream.
fn offered_protocols(payload: &[u8]) -> Vec<String> {
    client_hello_extension(payload, ALPN).map(protocol_names).unwrap_or_default()
}

fn protocol_names(extension: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    let mut reader = Reader(extension);
    let mut list = Reader(reader.sized(2).unwrap_or_default());
    while let Some(name) = list.sized(1) {
        names.push(String::from_utf8_lossy(name).into_owned());
    }
    names
}

fn client_hello_extension(payload: &[u8], wanted: usize) -> Option<&[u8]> {
    const VERSION_AND_RANDOM_BYTES: usize = 2 + 32;
    let mut record = Reader(payload);
    if record.number(1)? != usize::from(HANDSHAKE) {
        return None;
    }
    record.number(2)?;
    let mut handshake = Reader(record.sized(2)?);
    if handshake.number(1)? != usize::from(CLIENT_HELLO) {
        return None;
    }
    let mut hello = Reader(handshake.sized(3)?);
    hello.take(VERSION_AND_RANDOM_BYTES)?;
    hello.sized(1)?; // session
    hello.sized(2)?; // cipher suites
    hello.sized(1)?; // compression
    let mut extensions = Reader(hello.sized(2)?);
    loop {
        let kind = extensions.number(2)?;
        let content = extensions.sized(2)?;
        if kind == wanted {
            return Some(content);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut record = vec![kind, 3, 3];
        record.extend((body.len() as u16).to_be_bytes());
        record.extend(body);
        record
    }

    fn client_hello(alpn: &[&str]) -> Vec<u8> {
        let names: Vec<u8> =
            alpn.iter().flat_map(|n| [&[n.len() as u8], n.as_bytes()].concat()).collect();
        let sized = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
        let extensions =
            [vec![0, 43], sized(&[2, 3, 4]), vec![0, 16], sized(&sized(&names))].concat();
        let mut hello = vec![3, 3];
        hello.extend([7; 32]);
        hello.extend([1, 9, 0, 2, 0x13, 1, 1, 0]);
        hello.extend(sized(&extensions));
        let mut handshake = vec![CLIENT_HELLO, 0];
        handshake.extend(sized(&hello));
        record(HANDSHAKE, &handshake)
    }

    fn check(payload: &[u8], complete: bool, expected: (u64, u64, usize, &[&str])) {
        let address = "10.0.0.1:15008".parse().unwrap();
        let stream = Stream {
            source: address,
            destination: address,
            server_port: 15008,
            complete,
            payload: payload.to_vec(),
        };
        let mut summary = TlsSummary::default();
        summary.add(&stream);
        let alpn: Vec<&str> = summary.alpn.iter().map(String::as_str).collect();
        let found = (summary.tls_bytes, summary.other_bytes, summary.partial_streams, &alpn[..]);
        assert_eq!(found, expected);
        assert_eq!(summary.payload_bytes, payload.len() as u64);
    }

    #[test]
    fn records_are_told_from_anything_else() {
        let hello = client_hello(&["h2", "http/1.1"]);
        let size = hello.len() as u64;
        let more = [hello.clone(), record(23, &[1; 100])].concat();
        check(&more, true, (size + 105, 0, 0, &["h2", "http/1.1"]));
        // The capture ended inside of a record, or inside of its header.
        check(&more[..hello.len() + 50], true, (size + 50, 0, 0, &["h2", "http/1.1"]));
        check(&more[..hello.len() + 2], true, (size + 2, 0, 0, &["h2", "http/1.1"]));
        let plain_tail = [hello.clone(), b"GET / HTTP/1.1".to_vec()].concat();
        check(&plain_tail, true, (size, 14, 0, &["h2", "http/1.1"]));
        check(b"GET / HTTP/1.1", true, (0, 14, 0, &[]));
        check(&record(23, b"no handshake"), true, (0, 17, 0, &[]));
        check(&record(HANDSHAKE, &[2, 0, 0, 1, 0]), true, (10, 0, 0, &[]));
        check(&more, false, (0, 0, 1, &[]));
    }

    #[test]
    fn any_hello_cut_short_is_read_without_panic() {
        let hello = client_hello(&["h2"]);
        for end in 0..hello.len() {
            assert!(offered_protocols(&hello[..end]).is_empty());
        }
    }
}
