//! Chunked bodies: no bytes may panic, how they come does not matter, and what is decoded is
//! encoded and decoded again as the same.
#![no_main]

use ambit_http::h1::chunks::{Decoder, Piece, encode, encode_end};
use ambit_http::h1::parse::Limits;
use ambit_http::{Fields, Refused};
use libfuzzer_sys::fuzz_target;

/// The data, and the trailers once the body ends.
type Body = (Vec<u8>, Option<Fields>);

/// Decodes in pieces of this size.
fn decode(bytes: &[u8], size: usize) -> Result<Body, Refused> {
    let mut decoder = Decoder::new(Limits::default());
    let mut data = Vec::new();
    for mut piece in bytes.chunks(size.max(1)) {
        loop {
            let (used, decoded) = decoder.decode(piece)?;
            piece = &piece[used..];
            match decoded {
                Piece::Data(decoded) => data.extend_from_slice(decoded),
                Piece::Partial => break,
                Piece::End(trailers) => return Ok((data, Some(trailers))),
            }
        }
        assert!(piece.is_empty(), "a partial body uses all that there is");
    }
    Ok((data, None))
}

fuzz_target!(|bytes: &[u8]| {
    let Some((size, bytes)) = bytes.split_first() else { return };
    let whole = decode(bytes, bytes.len());
    assert_eq!(decode(bytes, usize::from(*size)), whole);
    assert_eq!(decode(bytes, 1), whole);
    let Ok((data, Some(trailers))) = whole else { return };
    let mut out = Vec::new();
    for piece in data.chunks(usize::from(*size).max(1)) {
        encode(piece, &mut out);
    }
    encode_end(Some(&trailers), &mut out);
    assert_eq!(decode(&out, out.len()), Ok((data, Some(trailers))));
});
