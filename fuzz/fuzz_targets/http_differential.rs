//! Requests and responses beside hyper: what both read must be the same, and what the codec takes
//! hyper must take too.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/http/tests/differential/compare.rs"]
mod compare;
#[path = "../../crates/http/tests/differential/responses.rs"]
mod responses;

fuzz_target!(|bytes: &[u8]| {
    let requests = compare::compare(bytes).map(|_| ());
    let response = responses::compare(bytes).map(|_| ());
    if let Err(difference) = requests.and(response) {
        panic!("{difference}");
    }
});
