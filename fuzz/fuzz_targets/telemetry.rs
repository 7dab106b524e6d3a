//! What operators and clients write of logs and traces: no text may panic; a format that is read is
//! read again as the same from what it keeps; and a context that is read is passed on whole.
#![no_main]

use ambit_model::http::access_log::{Format, Written};
use ambit_model::trace::{B3, TraceParent};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|texts: (&str, &str, &str)| {
    let (one, two, three) = texts;
    if let Ok(format) = Format::text(one) {
        let Written::Text(written) = format.written() else { panic!("a text became JSON") };
        assert_eq!(Format::text(written).as_ref(), Ok(&format));
    }
    let _ = Format::json([(one, two), (two, three)]);
    let _ = ambit_wire::access_log::json_format(one);
    if let Ok(parent) = one.parse::<TraceParent>() {
        assert_eq!(parent.to_string().parse(), Ok(parent));
    }
    let b3 = [B3::single(one), B3::several(Some(one), Some(two), Some(three), Some(three))];
    for parent in b3.into_iter().flatten().filter_map(|it| it.parent) {
        assert_eq!(parent.to_string().parse(), Ok(parent));
    }
});
