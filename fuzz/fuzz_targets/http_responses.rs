//! Heads of responses: no bytes may panic, how they come does not matter, and what is read is
//! written and read again as the same.
#![no_main]

use ambit_http::h1::framing::{self, Asked, ResponseBody};
use ambit_http::h1::options::Protocol;
use ambit_http::h1::parse::{Limits, Parsed, Progress, response};
use ambit_http::h1::write::{self, Client};
use ambit_http::{Known, Version};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let limits = Limits::default();
    let whole = response(bytes, &limits, &mut Progress::default());
    let mut progress = Progress::default();
    let mut steps = (0..=bytes.len()).map(|end| response(&bytes[..end], &limits, &mut progress));
    let stepwise = steps.find(|step| *step != Ok(Parsed::Partial)).unwrap_or(Ok(Parsed::Partial));
    assert_eq!(stepwise, whole);
    let Ok(Parsed::Complete { mut head, .. }) = whole else { return };
    let upgrade = Asked::Upgrade(Protocol::WebSocket);
    let asked = [Asked::Connect, Asked::Head, upgrade, Asked::Other][usize::from(kind & 3)];
    let version = if kind & 4 == 0 { Version::Http11 } else { Version::Http10 };
    let Ok(framing) = framing::response(&mut head, asked) else { return };
    let client = Client { version, is_persistent: kind & 8 == 0 };
    let mut out = Vec::new();
    let written = write::response(&head, framing.body, framing.upgrade, client, &mut out);
    assert!(version == Version::Http11 || written.body != ResponseBody::Chunked);
    let again = response(&out, &limits, &mut Progress::default());
    let Ok(Parsed::Complete { head: mut again, used }) = again else {
        panic!("{} is refused: {again:?}", out.escape_ascii());
    };
    assert_eq!(used, out.len());
    assert_eq!((again.status, &again.reason), (head.status, &head.reason));
    let framed = framing::response(&mut again, asked).expect("a response that we wrote");
    assert_eq!(framed.body, written.body);
    assert_eq!(framed.upgrade, framing.upgrade);
    // The writer makes the length and Upgrade itself.
    for fields in [&mut head.fields, &mut again.fields] {
        fields.remove(Known::ContentLength);
        fields.remove(Known::Host);
        fields.remove(Known::Upgrade);
    }
    assert_eq!(again.fields, head.fields);
});
