//! The first bytes of a connection as noise: nothing may panic, a name is one that a host can have,
//! and what was whole stays so, whatever follows.
#![no_main]

use ambit_tls::client_hello::{CLIENT_HELLO_BYTES_MAX, ClientHello, client_hello};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let verdict = client_hello(data);
    if let ClientHello::Whole(Some(name)) = &verdict {
        assert!(name.is_ascii() && !name.contains(char::is_uppercase), "{name:?}");
    }
    if data.len() > CLIENT_HELLO_BYTES_MAX {
        assert_ne!(verdict, ClientHello::More, "at the bound it is decided");
    }
    // As the bytes come in: once decided, more bytes change nothing.
    for cut in 0..data.len().min(256) {
        let early = client_hello(&data[..cut]);
        assert!(early == ClientHello::More || early == verdict, "{cut}: {early:?} {verdict:?}");
    }
});
