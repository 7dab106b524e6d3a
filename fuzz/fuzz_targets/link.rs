//! What one end of a machine's link sends: no bytes may panic, no packet of another node passes,
//! and no name leads out of the state directory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| ambit_machine::fuzz_link(bytes));
