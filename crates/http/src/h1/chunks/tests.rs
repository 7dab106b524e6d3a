//! What bodies are, however they are cut, and which are none.

use proptest::prelude::*;

use super::*;
use crate::fields::FieldLimits;

fn limits() -> Limits {
    let fields = FieldLimits { number: 3, bytes: 100 };
    Limits { line_bytes: 0, head_bytes: 100, fields }
}

/// The data, the trailers, and what is left behind the body; nothing if it does not end.
type Body = Option<(Vec<u8>, Fields, usize)>;

/// Decodes with the input growing to each of these lengths.
fn decode(input: &[u8], ends: impl IntoIterator<Item = usize>) -> Result<Body, Refused> {
    let mut decoder = Decoder::new(limits());
    let (mut data, mut at) = (Vec::new(), 0);
    for end in ends {
        loop {
            let (used, piece) = decoder.decode(&input[at..end])?;
            at += used;
            match piece {
                Piece::Data(piece) => data.extend_from_slice(piece),
                Piece::Partial => break,
                Piece::End(trailers) => return Ok(Some((data, trailers, input.len() - at))),
            }
        }
        assert_eq!(at, end, "a partial body uses all that there is");
    }
    Ok(None)
}

fn in_all_ways(input: &[u8]) -> Result<Body, Refused> {
    let whole = decode(input, [input.len()]);
    assert_eq!(decode(input, 0..=input.len()), whole, "{}", input.escape_ascii());
    for cut in 0..input.len() {
        assert_eq!(decode(input, [cut, input.len()]), whole, "{}", input.escape_ascii());
    }
    whole
}

fn check(input: &str, expected: Result<&str, Refused>) {
    let body = in_all_ways(input.as_bytes()).map(|body| match body {
        None => "partial".to_owned(),
        Some((data, trailers, left)) => {
            let trailers = trailers
                .iter()
                .map(|it| format!(" {}={}", it.name.escape_ascii(), it.value.escape_ascii()));
            format!("{}{} +{left}", data.escape_ascii(), trailers.collect::<String>())
        }
    });
    assert_eq!(body.as_deref().map_err(|it| *it), expected, "{input:?}");
}

#[test]
fn bodies() {
    check("0\r\n\r\n", Ok(" +0"));
    check("5\r\nhello\r\n0\r\n\r\nGET", Ok("hello +3"));
    check("5\r\nhello\r\n1\r\n!\r\n000\r\n\r\n", Ok("hello! +0"));
    check("A\r\n0123456789\r\n0\r\n\r\n", Ok("0123456789 +0"));
    check("000000000000000a\r\n0123456789\r\n0\r\n\r\n", Ok("0123456789 +0"));
    check("2\r\n\r\n\r\n0\r\n\r\n", Ok("\\r\\n +0"));
    check("5;a=b;c=\"d e\"\r\nhello\r\n0;x\r\n\r\n", Ok("hello +0"));
    check("", Ok("partial"));
    check("5\r\nhel", Ok("partial"));
    check("0\r\n", Ok("partial"));
    check("ffffffffffffffff\r\nx", Ok("partial"));
}

#[test]
fn bodies_that_are_none() {
    for size in
        ["", " 5", "5 ", "+5", "-5", "0x5", "x", "5_", "\u{665}", "10000000000000000", "\t5"]
    {
        check(&format!("{size}\r\nhello\r\n0\r\n\r\n"), Err(Refused::ChunkSize));
    }
    check(";a\r\n\r\n", Err(Refused::ChunkSize));
    check("5 ;a\r\nhello", Err(Refused::ChunkSize));
    check("\n", Err(Refused::BareLf));
    check("5\nhello\r\n0\r\n\r\n", Err(Refused::BareLf));
    check("5\r\nhello\n0\r\n\r\n", Err(Refused::BareLf));
    check("5;a\nhello\r\n0\r\n\r\n", Err(Refused::BareLf));
    check("5\r\nhello\r\n0\n\r\n", Err(Refused::BareLf));
    check("5\r\nhello\r\n0\r\n\n", Err(Refused::BareLf));
    check("5\rhello\r\n0\r\n\r\n", Err(Refused::BareCr));
    check("5;a\rb\r\nhello", Err(Refused::BareCr));
    check("5;a\0\r\nhello", Err(Refused::ChunkExtension));
    check("5\r\nhello!\r\n0\r\n\r\n", Err(Refused::ChunkEnd));
    check("5\r\nhello\r0\r\n\r\n", Err(Refused::ChunkEnd));
    check("5\r\nhello0\r\n\r\n", Err(Refused::ChunkEnd));
}

#[test]
fn extensions_are_bounded_over_the_whole_body() {
    let body = |chunks: usize| format!("{}0\r\n\r\n", "1;234567\r\nx\r\n".repeat(chunks));
    let fits = EXTENSION_BYTES as usize / ";234567".len();
    let decoded = |chunks| decode(body(chunks).as_bytes(), [body(chunks).len()]);
    assert!(matches!(decoded(fits), Ok(Some(_))));
    assert_eq!(decoded(fits + 1), Err(Refused::ChunkExtension));
}

#[test]
fn trailers() {
    check("0\r\nGrpc-Status: 0\r\nx: \r\n\r\nrest", Ok(" Grpc-Status=0 x= +4"));
    check("1\r\na\r\n0\r\nAuthorization: x\r\nb: 1\r\nCookie: y\r\n\r\n", Ok("a b=1 +0"));
    for name in [
        "X-Forwarded-For",
        "x-forwarded-client-cert",
        "x_forwarded_client_cert",
        "Content_Type",
        "X-Envoy-Original-Path",
        "x-ambit-a",
        "x-b3-traceid",
        "b3",
        "baggage",
        "Traceparent",
        "tracestate",
        "x-request-id",
        "x-real-ip",
    ] {
        check(&format!("0\r\na: 1\r\n{name}: x\r\n\r\n"), Ok(" a=1 +0"));
    }
    check("0\r\na: b\r\n", Ok("partial"));
    check("0\r\na: b\r\n c\r\n\r\n", Err(Refused::ObsFold));
    check("0\r\n a: b\r\n\r\n", Err(Refused::ObsFold));
    check("0\r\na: b\n\r\n", Err(Refused::BareLf));
    check("0\r\na : b\r\n\r\n", Err(Refused::SpaceBeforeColon));
    check("0\r\nGET / HTTP/1.1\r\n\r\n", Err(Refused::FieldName));
    check("0\r\na: b\0\r\n\r\n", Err(Refused::FieldValue));
    check("0\r\na: b\rc\r\n\r\n", Err(Refused::BareCr));
    for name in ["content-length: 5", "Transfer-Encoding: chunked", "HOST: h"] {
        check(&format!("0\r\n{name}\r\n\r\n"), Err(Refused::Trailer));
    }
    check("0\r\na: 1\r\na: 2\r\na: 3\r\na: 4\r\n\r\n", Err(Refused::TooManyFields));
    check(&format!("0\r\na: {}\r\n\r\n", "x".repeat(100)), Err(Refused::HeadTooLarge));
    check(&format!("0\r\n{}", "x".repeat(101)), Err(Refused::HeadTooLarge));
}

#[test]
fn what_is_written() {
    let mut out = Vec::new();
    encode(b"", &mut out);
    encode(&[b'x'; 0x1a], &mut out);
    encode_end(None, &mut out);
    assert_eq!(out, [b"1a\r\n", &[b'x'; 0x1a][..], b"\r\n0\r\n\r\n"].concat());
    let mut trailers = Fields::new(FieldLimits::default());
    for name in ["grpc-status", "content-length", "X-Forwarded-For", "traceparent", "host", "X-Sum"]
    {
        trailers.append(name, b"0").expect("a field");
    }
    out.clear();
    encode_end(Some(&trailers), &mut out);
    assert_eq!(out, b"0\r\ngrpc-status: 0\r\nX-Sum: 0\r\n\r\n");
}

proptest! {
    #[test]
    fn how_it_is_cut_does_not_matter(
        input in "([0-3a]{1,2}(;[a-c \r\n]{0,3})?\r\n|\r\n|\n|[x-z]{1,3}\r\n|0\r\n|a: b\r\n){0,24}",
        mut cuts in proptest::collection::vec(0_usize..400, 0..12),
    ) {
        let input = input.as_bytes();
        cuts.retain(|cut| *cut < input.len());
        cuts.sort_unstable();
        cuts.push(input.len());
        prop_assert_eq!(decode(input, cuts), decode(input, [input.len()]));
    }

    #[test]
    fn what_is_encoded_is_decoded(
        chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..8),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..12),
    ) {
        let mut wire = Vec::new();
        for chunk in &chunks {
            encode(chunk, &mut wire);
        }
        encode_end(None, &mut wire);
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(wire.len())).collect();
        ends.sort_unstable();
        ends.push(wire.len());
        let (data, trailers, left) = decode(&wire, ends).expect("a body").expect("its end");
        prop_assert_eq!(data, chunks.concat());
        prop_assert!(trailers.len() == 0 && left == 0);
    }
}
