//! The codec beside hyper: what both accept must be the same messages, and what we accept hyper
//! must accept too. `fuzz/fuzz_targets/http_differential.rs` asks the same of random bytes.

#[path = "differential/compare.rs"]
mod compare;
#[path = "differential/corpus.rs"]
mod corpus;

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

proptest! {
    #[test]
    fn the_corpus_damaged(
        entry in select(CORPUS.iter().map(|entry| entry.input).collect::<Vec<_>>()),
        changes in proptest::collection::vec(any_change(), 1..5),
    ) {
        let mut input = entry.to_vec();
        for (at, removed, piece) in changes {
            let start = at.index(input.len() + 1);
            let end = (start + removed).min(input.len());
            input.splice(start..end, piece.bytes());
        }
        if let Err(difference) = compare(&input) {
            return Err(TestCaseError::fail(format!("{}\n{difference}", input.escape_ascii())));
        }
    }
}
