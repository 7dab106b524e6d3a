//! Huffman's code of HPACK (RFC 7541 appendix B), read only: we send no text in it.
//!
//! The code is canonical, so the lengths of its words are all that is kept of it.

use bytes::{BufMut, BytesMut};

/// Bits of the code word of each byte, and of the end that must not be sent.
const BITS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];
const LONGEST: usize = 30;
const SHORTEST: usize = 5;
/// The symbol that ends a text; it is padding, and an error as a word.
const END: usize = 256;

/// The words of each length, in the order of the code.
struct Code {
    /// The first word that is longer, with its bits at the left of 32.
    above: [u32; LONGEST + 1],
    /// The first word of this length, at the left of 32.
    first: [u32; LONGEST + 1],
    /// Where its symbols begin.
    start: [u16; LONGEST + 1],
    symbols: [u16; 257],
}

static CODE: Code = Code::new();

impl Code {
    const fn new() -> Self {
        let mut code = Self { above: [0; 31], first: [0; 31], start: [0; 31], symbols: [0; 257] };
        let (mut next, mut place, mut bits) = (0u64, 0u16, 1);
        while bits <= LONGEST {
            code.first[bits] = (next << (32 - bits)) as u32;
            code.start[bits] = place;
            let mut symbol = 0;
            while symbol < BITS.len() {
                if BITS[symbol] as usize == bits {
                    code.symbols[place as usize] = symbol as u16;
                    place += 1;
                    next += 1;
                }
                symbol += 1;
            }
            // The last word of all is 30 ones, so that this fits but for the longest.
            let above = next << (32 - bits);
            code.above[bits] = if above > u32::MAX as u64 { u32::MAX } else { above as u32 };
            next <<= 1;
            bits += 1;
        }
        code
    }
}

/// Appends the text that these bytes encode. `None` if they are no code, or the padding is wrong
/// (RFC 7541 section 5.2).
pub(super) fn decode(mut from: &[u8], into: &mut BytesMut) -> Option<()> {
    let (mut window, mut held) = (0u64, 0usize);
    loop {
        while held <= 56
            && let Some((byte, rest)) = from.split_first()
        {
            window |= u64::from(*byte) << (56 - held);
            held += 8;
            from = rest;
        }
        let word = (window >> 32) as u32;
        // Behind the last byte all bits read as ones: padding is a word that is too long.
        let padded = if held < 32 { word | (u32::MAX >> held) } else { word };
        let bits = (SHORTEST..=LONGEST).find(|bits| padded < CODE.above[*bits]);
        let bits = bits.unwrap_or(LONGEST);
        if bits > held {
            let is_padding = held < 8 && (held == 0 || word >> (32 - held) == (1 << held) - 1);
            return is_padding.then_some(());
        }
        let offset = (padded - CODE.first[bits]) >> (32 - bits);
        let symbol = usize::from(CODE.symbols[usize::from(CODE.start[bits]) + offset as usize]);
        if symbol == END {
            return None;
        }
        into.put_u8(symbol as u8);
        window <<= bits;
        held -= bits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code word of each symbol, and its bits, from the lengths alone.
    fn words() -> Vec<(u32, u8)> {
        let mut order: Vec<usize> = (0..BITS.len()).collect();
        order.sort_by_key(|symbol| (BITS[*symbol], *symbol));
        let (mut words, mut next, mut before) = (vec![(0, 0); BITS.len()], 0u32, 0);
        for symbol in order {
            next <<= BITS[symbol] - before;
            before = BITS[symbol];
            words[symbol] = (next, before);
            next = next.wrapping_add(1);
        }
        words
    }

    fn encode(text: &[u8]) -> Vec<u8> {
        let words = words();
        let mut bits: Vec<bool> = Vec::new();
        for byte in text {
            let (word, count) = words[usize::from(*byte)];
            bits.extend((0..count).rev().map(|bit| word >> bit & 1 == 1));
        }
        while !bits.len().is_multiple_of(8) {
            bits.push(true);
        }
        bits.chunks(8)
            .map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit)))
            .collect()
    }

    fn decoded(bytes: &[u8]) -> Option<Vec<u8>> {
        let mut text = BytesMut::new();
        decode(bytes, &mut text).map(|()| text.to_vec())
    }

    #[test]
    fn the_examples_of_the_rfc_are_read() {
        let words = words();
        assert_eq!(words[usize::from(b'0')], (0, 5));
        assert_eq!(words[usize::from(b'a')], (3, 5));
        assert_eq!(words[END], (0x3fff_ffff, 30));
        let cases: [(&[u8], &str); 4] = [
            (
                &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff],
                "www.example.com",
            ),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
            (&[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f], "custom-key"),
            (&[0x64, 0x02], "302"),
        ];
        for (bytes, text) in cases {
            assert_eq!(decoded(bytes).as_deref(), Some(text.as_bytes()));
        }
    }

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
        assert_eq!(decoded(&encode(&all)), Some(all));
        for byte in 0..=255u8 {
            for count in 1..6 {
                let text = vec![byte; count];
                assert_eq!(decoded(&encode(&text)), Some(text));
            }
        }
        assert_eq!(decoded(&[]), Some(vec![]));
    }

    #[test]
    fn wrong_padding_and_an_end_are_refused() {
        // Eight bits of padding, zeros as padding, the end, and a word that is cut.
        for bytes in [
            &[0xff][..],
            &[0b0001_1000],
            &[0xff, 0xff, 0xff, 0xff],
            &[0x64, 0x02, 0xff],
            &[0b1111_1110],
        ] {
            assert_eq!(decoded(bytes), None, "{bytes:x?}");
        }
        assert_eq!(decoded(&[0b0001_1111]), Some(b"a".to_vec()));
    }
}
