//! HPACK (RFC 7541): a decoder with bounds, and what we encode.
//!
//! | representation | how it is read |
//! |---|---|
//! | indexed, with or without our table | copied from the static table, or a second reference |
//! | literal, to be kept | copied into the table, which holds on to no block |
//! | literal, not to be kept, or never | a slice of the block |
//! | a new size of the table | at the beginning of a block alone, up to 4,096 |
//!
//! The decoder keeps the peer's table; a list of fields that is too large is an error before it is
//! kept. What we send needs no table: a proxy's fields differ with each tunnel.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};

mod huffman;

/// The size of the decoder's table, which every peer may use (RFC 9113 section 6.5.2).
pub(super) const TABLE_BYTES: usize = 4096;
/// What a field costs beside its bytes (RFC 7541 section 4.1).
const FIELD_COST_BYTES: usize = 32;

/// A field: name and value.
pub(super) type Field = (Bytes, Bytes);

/// Why a block of fields cannot be read. Each is an error of the connection, because the table is
/// lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HpackError {
    #[error("a block of fields ends within a field")]
    Short,
    #[error("a number in a block of fields is too large")]
    Number,
    #[error("a block of fields names entry {0}, which its table does not have")]
    Index(usize),
    #[error("a text in a block of fields is no Huffman code")]
    Huffman,
    #[error("a block of fields changes the table's size where that is not allowed")]
    Resize,
}

/// Changes of the table's size at the beginning of a block: the smallest since the last block, and
/// the last (RFC 7541 section 4.2).
const SIZES_OF_BLOCK: u8 = 2;

/// The receiving side's table.
#[derive(Debug)]
pub(super) struct Decoder {
    /// The newest first.
    entries: VecDeque<Field>,
    /// What they cost.
    bytes: usize,
    /// What they may cost, as the peer has said.
    most: usize,
}

/// What a block had.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) fields: Vec<Field>,
    /// Its fields are more than was allowed; those that were too many are not kept.
    pub(super) is_too_large: bool,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self { entries: VecDeque::new(), bytes: 0, most: TABLE_BYTES }
    }

    /// Reads a whole block. `most`: bytes of its fields with their cost.
    pub(super) fn decode(&mut self, block: Bytes, most: usize) -> Result<Block, HpackError> {
        let mut from = Reader(block);
        let (mut fields, mut bytes, mut sizes_left) = (Vec::new(), 0usize, SIZES_OF_BLOCK);
        while let Some(first) = from.0.first().copied() {
            let (index_bits, is_kept) = match first {
                0x80.. => (7, false),
                0x40.. => (6, true),
                0x20.. if sizes_left > 0 => {
                    sizes_left -= 1;
                    self.resize(from.number(5)?)?;
                    continue;
                }
                0x20.. => return Err(HpackError::Resize),
                _ => (4, false),
            };
            sizes_left = 0;
            let index = from.number(index_bits)?;
            if bytes > most && first >= 0x80 {
                // Nobody takes it; all that is left to find out is whether the block can be read.
                self.check(index)?;
                continue;
            }
            let field = if first >= 0x80 {
                self.entry(index)?
            } else {
                let name = if index == 0 { from.text()? } else { self.entry(index)?.0 };
                (name, from.text()?)
            };
            bytes += cost(&field.0, &field.1);
            if is_kept {
                let (name, value) = field.clone();
                // A name of a table is shared with it: two bytes must not cost a copy of thousands.
                self.keep(if index == 0 { Bytes::copy_from_slice(&name) } else { name }, &value);
            }
            if bytes <= most {
                fields.push(field);
            }
        }
        Ok(Block { fields, is_too_large: bytes > most })
    }

    /// Whether an index means anything.
    fn check(&self, index: usize) -> Result<(), HpackError> {
        let is_known = (1..=STATIC.len() + self.entries.len()).contains(&index);
        is_known.then_some(()).ok_or(HpackError::Index(index))
    }

    /// What an index means: the static table first, then ours, the newest entry first.
    fn entry(&self, index: usize) -> Result<Field, HpackError> {
        let own = match index.checked_sub(1) {
            None => return Err(HpackError::Index(0)),
            Some(place) => match STATIC.get(place) {
                Some((name, value)) => {
                    let [name, value] =
                        [name, value].map(|text| Bytes::from_static(text.as_bytes()));
                    return Ok((name, value));
                }
                None => place - STATIC.len(),
            },
        };
        self.entries.get(own).cloned().ok_or(HpackError::Index(index))
    }

    /// Adds an entry. One that is larger than the table clears it (RFC 7541 section 4.4). What is
    /// kept is of its own size: the table must not hold on to the peer's whole block.
    fn keep(&mut self, name: Bytes, value: &Bytes) {
        let needed = cost(&name, value);
        self.shrink(self.most.saturating_sub(needed));
        if needed <= self.most {
            self.bytes += needed;
            self.entries.push_front((name, Bytes::copy_from_slice(value)));
        }
    }

    /// The peer uses less of the table than it may.
    fn resize(&mut self, most: usize) -> Result<(), HpackError> {
        if most > TABLE_BYTES {
            return Err(HpackError::Resize);
        }
        self.most = most;
        self.shrink(most);
        Ok(())
    }

    /// Drops the oldest entries.
    fn shrink(&mut self, most: usize) {
        while self.bytes > most
            && let Some(last) = self.entries.pop_back()
        {
            self.bytes -= cost(&last.0, &last.1);
        }
    }
}

/// What an entry counts as.
fn cost(name: &Bytes, value: &Bytes) -> usize {
    name.len() + value.len() + FIELD_COST_BYTES
}

/// The rest of a block.
struct Reader(Bytes);

impl Reader {
    fn byte(&mut self) -> Result<u8, HpackError> {
        let first = *self.0.first().ok_or(HpackError::Short)?;
        let _read = self.0.split_to(1);
        Ok(first)
    }

    /// A number that begins in the low bits of a byte (RFC 7541 section 5.1).
    fn number(&mut self, bits: u32) -> Result<usize, HpackError> {
        let mask = (1u8 << bits) - 1;
        let mut number = usize::from(self.byte()? & mask);
        if number < usize::from(mask) {
            return Ok(number);
        }
        // Three more bytes are two million: more than any block has.
        for shift in [0, 7, 14] {
            let byte = self.byte()?;
            number += usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(HpackError::Number)
    }

    /// A text, as it is or in Huffman's code (RFC 7541 section 5.2).
    fn text(&mut self) -> Result<Bytes, HpackError> {
        let is_huffman = self.0.first().ok_or(HpackError::Short)? & 0x80 != 0;
        let length = self.number(7)?;
        if length > self.0.len() {
            return Err(HpackError::Short);
        }
        let text = self.0.split_to(length);
        if !is_huffman {
            return Ok(text);
        }
        // The shortest word has five bits.
        let mut plain = BytesMut::with_capacity(text.len() * 8 / 5);
        huffman::decode(&text, &mut plain).ok_or(HpackError::Huffman)?;
        Ok(plain.freeze())
    }
}

/// Appends a field that no table keeps. `name` is known by its place in the static table, or is
/// written out.
pub(super) fn encode(name: Name<'_>, value: &[u8], into: &mut BytesMut) {
    match name {
        Name::Known(place) => put_number(place, 4, 0, into),
        Name::Text(name) => {
            into.put_u8(0);
            put_text(name.as_bytes(), into);
        }
    }
    put_text(value, into);
}

/// Begins a block behind SETTINGS that make the table smaller (RFC 7541 section 4.2): ours has no
/// entries at all.
pub(super) fn encode_no_table(into: &mut BytesMut) {
    put_number(0, 5, 0x20, into);
}

/// Appends a field that the static table has whole.
pub(super) fn encode_known(place: usize, into: &mut BytesMut) {
    put_number(place, 7, 0x80, into);
}

/// A field's name, as it is encoded.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name<'a> {
    /// Its place in the static table.
    Known(usize),
    /// In small letters.
    Text(&'a str),
}

/// A text as it is.
fn put_text(text: &[u8], into: &mut BytesMut) {
    put_number(text.len(), 7, 0, into);
    into.put_slice(text);
}

/// A number behind the bits that say what it is (RFC 7541 section 5.1).
fn put_number(number: usize, bits: u32, first: u8, into: &mut BytesMut) {
    let mask = (1usize << bits) - 1;
    if number < mask {
        into.put_u8(first | number as u8);
        return;
    }
    into.put_u8(first | mask as u8);
    let mut rest = number - mask;
    while rest >= 0x80 {
        into.put_u8(rest as u8 | 0x80);
        rest >>= 7;
    }
    into.put_u8(rest as u8);
}

/// Places in the static table.
pub(super) mod place {
    /// `:authority`.
    pub(in super::super) const AUTHORITY: usize = 1;
    /// `:method`.
    pub(in super::super) const METHOD: usize = 2;
    /// `:status`.
    pub(in super::super) const STATUS: usize = 8;
    /// `:status` 200, with its value.
    pub(in super::super) const STATUS_200: usize = 8;
}

/// RFC 7541 appendix A.
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 64 * 1024;

    fn hex(text: &str) -> Bytes {
        let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).expect("ASCII"));
        pairs.map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal")).collect()
    }

    fn check(decoder: &mut Decoder, block: &str, fields: &[(&str, &str)], table_bytes: usize) {
        let read = decoder.decode(hex(block), MOST).expect("a block of the RFC");
        let read: Vec<_> =
            read.fields.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        let expected: Vec<_> =
            fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        assert_eq!((read, decoder.bytes), (expected, table_bytes));
    }

    /// RFC 7541 appendices C.3 and C.4: three requests on one connection, without and with
    /// Huffman's code.
    #[test]
    fn the_requests_of_the_rfc_are_read() {
        let first = [
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "www.example.com"),
        ];
        let second = [&first[..], &[("cache-control", "no-cache")]].concat();
        let third = [
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/index.html"),
            (":authority", "www.example.com"),
            ("custom-key", "custom-value"),
        ];
        let mut plain = Decoder::new();
        check(&mut plain, "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", &first, 57);
        check(&mut plain, "8286 84be 5808 6e6f 2d63 6163 6865", &second, 110);
        check(
            &mut plain,
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
            &third,
            164,
        );
        let mut short = Decoder::new();
        check(&mut short, "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", &first, 57);
        check(&mut short, "8286 84be 5886 a8eb 1064 9cbf", &second, 110);
        check(
            &mut short,
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
            &third,
            164,
        );
    }

    #[test]
    fn what_is_wrong_is_refused() {
        let cases = [
            ("80", HpackError::Index(0)),
            ("be", HpackError::Index(62)),
            ("40", HpackError::Short),
            ("4003 6162", HpackError::Short),
            ("ffff ffff ff", HpackError::Number),
            ("0081 00", HpackError::Huffman),
            ("823f 01", HpackError::Resize),
            ("3fe2 1f", HpackError::Resize),
            ("20 21 22 82", HpackError::Resize),
        ];
        for (block, error) in cases {
            assert_eq!(Decoder::new().decode(hex(block), MOST), Err(error), "{block}");
        }
    }

    #[test]
    fn a_table_stays_within_its_size_and_a_list_within_its_bound() {
        let mut decoder = Decoder::new();
        let mut block = BytesMut::new();
        for number in 0..200u8 {
            block.put_u8(0x40);
            put_text(&[b'a' + number % 26; 30], &mut block);
            put_text(&[number; 40], &mut block);
        }
        let read = decoder.decode(block.freeze(), 1000).expect("a block");
        assert!(read.is_too_large && read.fields.len() == 9);
        assert!(decoder.bytes <= TABLE_BYTES && decoder.entries.len() == TABLE_BYTES / 102);
        // Smaller: nothing is left, and a larger entry than the table clears it.
        decoder.decode(hex("20"), MOST).expect("a new size");
        assert_eq!((decoder.bytes, decoder.entries.len()), (0, 0));
        decoder.decode(hex("3fe1 1f"), MOST).expect("the size of before");
        assert_eq!(decoder.most, TABLE_BYTES);
    }

    /// Two bytes that name a long entry must not cost a copy of it.
    #[test]
    fn a_name_of_the_table_is_not_copied() {
        let mut decoder = Decoder::new();
        let mut block = BytesMut::new();
        block.put_u8(0x40);
        put_text(&[b'n'; 4000], &mut block);
        put_text(b"", &mut block);
        decoder.decode(block.freeze(), MOST).expect("a block");
        let first = decoder.entries[0].0.as_ptr();
        // The newest entry's name, and no value.
        decoder.decode(hex("7e00 7e00"), MOST).expect("a block");
        assert_eq!((decoder.entries[0].0.as_ptr(), decoder.entries.len()), (first, 1));
    }

    /// A list that is too large is decoded to its end all the same: the table must stay the peer's.
    #[test]
    fn what_nobody_takes_is_still_looked_at() {
        let mut block = vec![0x82; 100];
        assert!(Decoder::new().decode(block.clone().into(), 100).expect("a block").is_too_large);
        block.push(0xbe);
        assert_eq!(Decoder::new().decode(block.into(), 100), Err(HpackError::Index(62)));
    }

    #[test]
    fn what_we_send_is_read_again() {
        let mut block = BytesMut::new();
        let long = "x".repeat(5000);
        encode(Name::Known(place::METHOD), b"CONNECT", &mut block);
        encode(Name::Known(place::AUTHORITY), b"10.0.0.1:80", &mut block);
        encode(Name::Text("baggage"), long.as_bytes(), &mut block);
        encode_known(place::STATUS_200, &mut block);
        encode(Name::Known(place::STATUS), b"503", &mut block);
        let read = Decoder::new().decode(block.freeze(), MOST).expect("our own");
        let expected = [
            (":method", "CONNECT"),
            (":authority", "10.0.0.1:80"),
            ("baggage", &long),
            (":status", "200"),
            (":status", "503"),
        ];
        let expected = expected.map(|(name, value)| {
            (Bytes::copy_from_slice(name.as_bytes()), Bytes::copy_from_slice(value.as_bytes()))
        });
        assert_eq!(read.fields, expected);
    }
}
