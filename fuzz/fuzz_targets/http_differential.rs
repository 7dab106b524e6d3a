//! Requests beside hyper: what both read must be the same, and what the codec takes hyper must
//! take too.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/http/tests/differential/compare.rs"]
mod compare;

fuzz_target!(|bytes: &[u8]| {
    if let Err(difference) = compare::compare(bytes) {
        panic!("{difference}");
    }
});
