//! Heads of requests: no bytes may panic, how they come does not matter, and what is read is
//! written and read again as the same.
#![no_main]

use ambit_http::Scheme;
use ambit_http::h1::framing::{self, RequestBody};
use ambit_http::h1::parse::{Limits, Parsed, Progress, request};
use ambit_http::h1::write;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits::default();
    let read = |bytes, progress: &mut _| request(bytes, Scheme::Http, &limits, progress);
    let whole = read(bytes, &mut Progress::default());
    let mut progress = Progress::default();
    let mut steps = (0..=bytes.len()).map(|end| read(&bytes[..end], &mut progress));
    let stepwise = steps.find(|step| *step != Ok(Parsed::Partial)).unwrap_or(Ok(Parsed::Partial));
    assert_eq!(stepwise, whole);
    let Ok(Parsed::Complete { mut head, .. }) = whole else { return };
    let Ok(framing) = framing::request(&mut head) else { return };
    let mut out = Vec::new();
    write::request(&head, framing.body, framing.upgrade, false, &mut out);
    let again = read(&out, &mut Progress::default());
    let Ok(Parsed::Complete { head: mut again, used }) = again else {
        panic!("{} is refused: {again:?}", out.escape_ascii());
    };
    assert_eq!(used, out.len());
    let framed = framing::request(&mut again).expect("a request that we wrote");
    let is_same_body = framed.body == framing.body;
    assert!(is_same_body || framing.body == RequestBody::Absent, "{}", out.escape_ascii());
    assert_eq!(framed.upgrade, framing.upgrade);
    assert_eq!(again.method(), head.method());
    assert_eq!(again.target(), head.target());
    assert_eq!(again.authority(), head.authority());
});
