//! The first bytes of a connection from a load balancer as noise: nothing may panic, a header lies
//! within what came, and what was decided stays so, whatever follows.
#![no_main]

use ambit_wire::hbone::proxy_protocol::{Decoded, HEADER_BYTES_MAX, decode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let verdict = decode(data);
    if let Decoded::Header { bytes, .. } = verdict {
        assert!(bytes <= data.len() && bytes <= HEADER_BYTES_MAX, "{bytes}");
    }
    if data.len() > HEADER_BYTES_MAX {
        assert_ne!(verdict, Decoded::More, "at the bound it is decided");
    }
    for cut in 0..data.len().min(256) {
        let early = decode(&data[..cut]);
        assert!(early == Decoded::More || early == verdict, "{cut}: {early:?} {verdict:?}");
    }
});
