//! Frames of SPDY as noise, with their compressed headers, and messages of a command's channels:
//! nothing may panic, and no frame becomes more than its bound.
#![no_main]

use ambit_kubeapi::spdy::{Frame, FrameReader};
use ambit_kubeapi::streams::channel_message;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _known = channel_message(data);
    let (mut reader, mut rest) = (FrameReader::default(), data);
    while let Some(head) = rest.first_chunk() {
        let Ok(length) = FrameReader::length(*head) else { return };
        let Some((frame, next)) = rest.split_at_checked(length) else { return };
        match reader.read(frame) {
            Ok(Frame::Open { headers, .. }) => {
                let bytes = headers.iter().map(|(name, value)| name.len() + value.len());
                let bytes = bytes.sum::<usize>();
                assert!(bytes <= 16 << 10, "{bytes}");
            }
            Ok(_) => {}
            // The connection ends.
            Err(_) => return,
        }
        rest = next;
    }
});
