//! HBONE headers from a peer: no text may panic, and what parses must print and parse again.
#![no_main]

use ambit_wire::hbone::{Authority, Baggage, TraceParent};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Baggage::parse([bytes]);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(authority) = text.parse::<Authority>() {
        let again = authority.to_string().parse::<Authority>();
        assert_eq!(again.as_ref(), Ok(&authority));
    }
    let _ = text.parse::<ambit_wire::hbone::Forwarded>();
    let _ = TraceParent::continued(Some(text), [7; 24]);
    let _ = ambit_wire::hbone::parse_network(text);
});
