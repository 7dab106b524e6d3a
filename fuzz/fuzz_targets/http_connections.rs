//! The beginning of a connection, and the frames of HTTP/2: nothing may panic, and where bytes are
//! cut changes nothing.
#![no_main]

use ambit_http::engine::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::detection(bytes);
    fuzzing::frames(bytes);
});
