//! The classic pcap file format, Ethernet frames with microseconds.

use std::time::Duration;

/// Larger than any frame that segmentation offload lets through a virtual cable.
pub(super) const MAX_FRAME_BYTES: usize = 256 * 1024;

const MAGIC: u32 = 0xa1b2_c3d4;
const FILE_HEADER_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 16;
const ETHERNET: u32 = 1;

/// What a capture file begins with.
pub(super) fn file_header() -> [u8; FILE_HEADER_BYTES] {
    let mut header = [0; FILE_HEADER_BYTES];
    header[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    header[4..6].copy_from_slice(&2_u16.to_le_bytes());
    header[6..8].copy_from_slice(&4_u16.to_le_bytes());
    header[16..20].copy_from_slice(&(MAX_FRAME_BYTES as u32).to_le_bytes());
    header[20..24].copy_from_slice(&ETHERNET.to_le_bytes());
    header
}

/// The header before each frame.
pub(super) fn frame_header(
    time: Duration,
    captured: usize,
    original: usize,
) -> [u8; FRAME_HEADER_BYTES] {
    let words = [time.as_secs() as u32, time.subsec_micros(), captured as u32, original as u32];
    let mut header = [0; FRAME_HEADER_BYTES];
    for (bytes, word) in header.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    header
}

/// The frames of a file, or the problem with it. A frame cut short at the end of the file is left
/// out, as the writer may have been killed.
pub(super) fn frames(file: &[u8]) -> Result<Vec<&[u8]>, &'static str> {
    let (header, mut rest) =
        file.split_at_checked(FILE_HEADER_BYTES).ok_or("it is shorter than a pcap header")?;
    if word(header, 0) != MAGIC {
        return Err("it is not a little-endian pcap file with microseconds");
    }
    if word(header, 20) != ETHERNET {
        return Err("it does not hold Ethernet frames");
    }
    let mut frames = Vec::new();
    while let Some((header, after)) = rest.split_at_checked(FRAME_HEADER_BYTES) {
        let (captured, original) = (word(header, 8), word(header, 12));
        if captured != original {
            return Err("it holds frames that were cut");
        }
        let Some((frame, after)) = after.split_at_checked(captured as usize) else { break };
        frames.push(frame);
        rest = after;
    }
    Ok(frames)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
}
