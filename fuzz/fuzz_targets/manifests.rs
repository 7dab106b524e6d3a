//! Manifests from a user: no text may panic, and every complaint names its place.
#![no_main]

use ambit_manifest::{Input, load};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let input = Input::Text { name: "fuzz.yaml".into(), text: text.into() };
    match load(&[input]) {
        Ok(manifests) => drop(manifests.check(&[])),
        Err(errors) => assert!(!errors.0.is_empty()),
    }
});
