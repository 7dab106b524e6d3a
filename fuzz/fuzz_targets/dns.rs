//! DNS queries from a pod: no bytes may panic, and every answer is a message.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| ambit_proxy::fuzz_dns(bytes));
