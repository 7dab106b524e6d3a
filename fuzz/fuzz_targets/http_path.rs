//! Paths: nothing may panic, to normalise twice is to normalise once, and what is normal has
//! nothing left that a server would read as another path.
#![no_main]

use ambit_http::{Normalisation, Path};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(received) = Path::parse(bytes) else { return };
    for how in [
        Normalisation::None,
        Normalisation::Base,
        Normalisation::MergeSlashes,
        Normalisation::DecodeAndMergeSlashes,
    ] {
        let mut path = received.clone();
        if path.normalise(how).is_err() {
            continue;
        }
        assert_eq!(path.query(), received.query());
        assert_eq!(Path::parse(path.as_str().as_bytes()).as_ref(), Ok(&path));
        let mut again = path.clone();
        again.normalise(how).expect("a normal path");
        assert_eq!(again, path);
        if how == Normalisation::None {
            assert_eq!(path, received);
            continue;
        }
        let text = path.path();
        assert!(text.split('/').all(|segment| segment != "." && segment != ".."), "{text}");
        assert!(!text.contains('\\') && !text.contains("%2e") && !text.contains("%2E"), "{text}");
        assert!(how == Normalisation::Base || !text.contains("//"), "{text}");
        let decodes = how == Normalisation::DecodeAndMergeSlashes;
        assert!(!decodes || !(text.contains("%2F") || text.contains("%5C")), "{text}");
    }
});
