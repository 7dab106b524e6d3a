//! The codec beside hyper, requests and responses: what both accept must be the same messages, and
//! what we accept hyper must accept too. `fuzz/fuzz_targets/http_differential.rs` asks the same of
//! random bytes.

#[path = "differential/compare.rs"]
mod compare;
#[path = "differential/corpus.rs"]
mod corpus;
#[path = "differential/responses.rs"]
mod responses;

use compare::{Verdict, compare};
use corpus::{CORPUS, Entry};
use proptest::prelude::*;
use proptest::sample::{Index, select};

#[test]
fn the_corpus() {
    assert!(CORPUS.len() >= 60);
    let mut wrong = Vec::new();
    for Entry { name, input, ours, hyper } in CORPUS {
        let expected = Verdict { ours: (*ours).to_owned(), hyper: *hyper };
        match compare(input) {
            Ok(verdict) if verdict == expected => {}
            Ok(verdict) => wrong.push(format!("{name}: {verdict:?}, expected {expected:?}")),
            Err(difference) => wrong.push(format!("{name}: {difference}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const RESPONSES: [(&str, &str, bool); 40] = [
    ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "whole", true),
    ("HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\n\r\nuntil the end", "whole", true),
    (
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\na: b\r\n\r\n",
        "whole",
        true,
    ),
    ("HTTP/1.0 200 OK\r\n\r\nold", "whole", true),
    ("HTTP/1.1 204 No Content\r\n\r\n", "whole", true),
    ("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", "whole", true),
    ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", "whole", true),
    ("HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n", "whole", true),
    ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "whole", true),
    ("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 \r\n\r\n", "whole", true),
    (
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        "Upgrade",
        true,
    ),
    ("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "whole", true),
    ("HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", "whole", true),
    ("HTTP/1.1 200 caf\u{e9}\r\nContent-Length: 0\r\n\r\n", "whole", true),
    ("HTTP/1.1 799 Odd\r\nContent-Length: 0\r\n\r\n", "whole", true),
    ("HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n", "StatusLine", false),
    ("HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n", "StatusLine", false),
    ("HTTP/1.1 200 O\0K\r\nContent-Length: 0\r\n\r\n", "StatusLine", false),
    ("HTTP/1.1  200 OK\r\nContent-Length: 0\r\n\r\n", "StatusLine", false),
    ("HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n", "Version", false),
    ("\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "StatusLine", true),
    ("HTTP/1.1 200 OK\nContent-Length: 0\n\n", "BareLf", true),
    ("HTTP/1.1 200 OK\r\nContent-Length: 0\n\r\n", "BareLf", true),
    ("HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n", "BareCr", false),
    ("HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", "ObsFold", false),
    ("HTTP/1.1 200 OK\r\nX : a\r\n\r\n", "SpaceBeforeColon", false),
    ("HTTP/1.1 200 OK\r\nX\r\n\r\n", "FieldName", false),
    (
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        "ContentLength",
        true,
    ),
    (
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "ContentLength",
        false,
    ),
    ("HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello", "ContentLength", true),
    ("HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello", "ContentLength", false),
    ("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", "partial", false),
    (
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "LengthAndCoding",
        true,
    ),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nx", "TransferCoding", true),
    (
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "TransferCoding",
        true,
    ),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\nx", "ChunkedNotLast", true),
    ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "CodingInHttp10", false),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n", "BareLf", false),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "partial", false),
    ("ICY 200 OK\r\n\r\n", "StatusLine", false),
];

/// What we read of a response, and whether hyper reads it.
#[test]
fn responses_beside_hyper() {
    let mut wrong = Vec::new();
    for (input, ours, hyper) in RESPONSES {
        match responses::compare(input.as_bytes()) {
            Ok(verdict) if verdict == (ours.to_owned(), hyper) => {}
            other => wrong.push(format!("{input:?}: {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Pieces on which parsers differ.
const PIECES: [&str; 40] = [
    "\r\n",
    "\n",
    "\r",
    "\0",
    " ",
    "\t",
    ":",
    ",",
    ";",
    "\x0b",
    "\u{e9}",
    "0",
    "5",
    "f",
    "-",
    "+",
    "/",
    "\\",
    "?",
    "#",
    "%2f",
    "@",
    "*",
    "http://h",
    "HTTP/1.0",
    "HTTP/1.1",
    "GET",
    "OPTIONS",
    "CONNECT",
    "Host: h",
    "Host: i",
    "Content-Length: 5",
    "Content-Length: ",
    "chunked",
    "Transfer-Encoding: chunked",
    "Connection: ",
    "close",
    "keep-alive",
    "0\r\n\r\n",
    "5\r\nhello",
];

/// A change to an input: from one place to another, a piece takes the place of what was there.
fn any_change() -> impl Strategy<Value = (Index, usize, &'static str)> {
    (any::<Index>(), 0..4_usize, prop_oneof![Just(""), select(&PIECES[..])])
}

fn damaged(input: &[u8], changes: Vec<(Index, usize, &str)>) -> Vec<u8> {
    let mut input = input.to_vec();
    for (at, removed, piece) in changes {
        let start = at.index(input.len() + 1);
        let end = (start + removed).min(input.len());
        input.splice(start..end, piece.bytes());
    }
    input
}

proptest! {
    #[test]
    fn the_corpus_damaged(
        entry in select(CORPUS.iter().map(|entry| entry.input).collect::<Vec<_>>()),
        changes in proptest::collection::vec(any_change(), 1..5),
    ) {
        let input = damaged(entry, changes);
        if let Err(difference) = compare(&input) {
            return Err(TestCaseError::fail(format!("{}\n{difference}", input.escape_ascii())));
        }
    }

    #[test]
    fn responses_damaged(
        response in select(RESPONSES.map(|(input, ..)| input.as_bytes()).to_vec()),
        changes in proptest::collection::vec(any_change(), 1..5),
    ) {
        let input = damaged(response, changes);
        if let Err(difference) = responses::compare(&input) {
            return Err(TestCaseError::fail(format!("{}\n{difference}", input.escape_ascii())));
        }
    }
}
