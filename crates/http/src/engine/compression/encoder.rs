//! Bytes into compressed ones, piece by piece.
//!
//! The levels are moderate: a proxy compresses while the client waits. An encoder takes memory for
//! as long as its response lasts, so that all of a pod share a [`Room`].

use std::io::{self, Write as _};
use std::sync::Arc;

use ambit_model::http::compression::Coding;
use brotli::enc::StandardAlloc;
use brotli::enc::encode::{
    BrotliEncoderOperation as Operation, BrotliEncoderParameter, BrotliEncoderStateStruct,
};
use flate2::Compression as Level;
use flate2::write::GzEncoder;

use super::room::{Room, Taken};

/// The level of gzip, of 9.
const GZIP_LEVEL: u32 = 5;
/// What an encoder of gzip takes: its window of 32 KiB, the tables for it, and its buffers.
const GZIP_BYTES: usize = 384 * 1024;
/// The level of Brotli, of 11.
const BROTLI_LEVEL: u32 = 4;
/// The bits of the window of Brotli: 128 KiB.
const BROTLI_WINDOW_BITS: u32 = 17;
/// How much is expected to come. Brotli takes larger tables for what it is told is large.
const BROTLI_EXPECTED_BYTES: u32 = 64 * 1024;
/// What an encoder of Brotli takes: its window, the tables for it, and its buffers.
const BROTLI_BYTES: usize = 2 * 1024 * 1024;
/// How much of Brotli's output is fetched at once.
const BROTLI_OUT_BYTES: usize = 4 * 1024;

/// What compresses one body.
pub(crate) struct Encoder {
    work: Work,
    _taken: Taken,
}

enum Work {
    Brotli(Box<BrotliEncoderStateStruct<StandardAlloc>>),
    Gzip(GzEncoder<Vec<u8>>),
}

impl Encoder {
    /// `None` if there is no room for one.
    pub(super) fn new(coding: Coding, room: &Arc<Room>) -> Option<Self> {
        let bytes = match coding {
            Coding::Brotli => BROTLI_BYTES,
            Coding::Gzip => GZIP_BYTES,
        };
        let taken = room.take(bytes)?;
        let work = match coding {
            Coding::Gzip => Work::Gzip(GzEncoder::new(Vec::new(), Level::new(GZIP_LEVEL))),
            Coding::Brotli => {
                let mut state = BrotliEncoderStateStruct::new(StandardAlloc::default());
                for (parameter, value) in [
                    (BrotliEncoderParameter::BROTLI_PARAM_QUALITY, BROTLI_LEVEL),
                    (BrotliEncoderParameter::BROTLI_PARAM_LGWIN, BROTLI_WINDOW_BITS),
                    (BrotliEncoderParameter::BROTLI_PARAM_SIZE_HINT, BROTLI_EXPECTED_BYTES),
                ] {
                    state.set_parameter(parameter, value);
                }
                Work::Brotli(Box::new(state))
            }
        };
        Some(Self { work, _taken: taken })
    }

    pub(super) fn coding(&self) -> Coding {
        match &self.work {
            Work::Brotli(_) => Coding::Brotli,
            Work::Gzip(_) => Coding::Gzip,
        }
    }

    /// Compresses some bytes; answers with what is ready, which may be nothing.
    pub(super) fn write(&mut self, data: &[u8]) -> io::Result<Vec<u8>> {
        match &mut self.work {
            Work::Brotli(state) => brotli(state, Operation::BROTLI_OPERATION_PROCESS, data),
            Work::Gzip(encoder) => encoder.write_all(data).map(|()| ready(encoder)),
        }
    }

    /// All of what was written, so that a reader can read it.
    pub(super) fn flush(&mut self) -> io::Result<Vec<u8>> {
        match &mut self.work {
            Work::Brotli(state) => brotli(state, Operation::BROTLI_OPERATION_FLUSH, &[]),
            Work::Gzip(encoder) => encoder.flush().map(|()| ready(encoder)),
        }
    }

    /// The end; nothing is written behind it.
    pub(super) fn finish(&mut self) -> io::Result<Vec<u8>> {
        match &mut self.work {
            Work::Brotli(state) => brotli(state, Operation::BROTLI_OPERATION_FINISH, &[]),
            Work::Gzip(encoder) => encoder.try_finish().map(|()| ready(encoder)),
        }
    }
}

fn ready(encoder: &mut GzEncoder<Vec<u8>>) -> Vec<u8> {
    std::mem::take(encoder.get_mut())
}

/// The library's own writer does not say that it could not finish.
fn brotli(
    state: &mut BrotliEncoderStateStruct<StandardAlloc>,
    operation: Operation,
    data: &[u8],
) -> io::Result<Vec<u8>> {
    let (mut left, mut read) = (data.len(), 0);
    let (mut coded, mut written) = (Vec::new(), 0);
    loop {
        coded.resize(written + BROTLI_OUT_BYTES, 0);
        let mut room = BROTLI_OUT_BYTES;
        let is_well = state.compress_stream(
            operation,
            &mut left,
            data,
            &mut read,
            &mut room,
            &mut coded,
            &mut written,
            &mut None,
            &mut |_, _, _, _| (),
        );
        if !is_well {
            return Err(io::Error::other("the encoder of Brotli has failed"));
        }
        let has_all = match operation {
            Operation::BROTLI_OPERATION_FINISH => state.is_finished(),
            _ => left == 0 && !state.has_more_output(),
        };
        if has_all {
            coded.truncate(written);
            return Ok(coded);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// What a reader makes of it.
    fn decoded(coding: Coding, mut coded: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        match coding {
            Coding::Brotli => _ = brotli::BrotliDecompress(&mut coded, &mut plain),
            Coding::Gzip => {
                // What has come so far is read even where the end is missing.
                let _end = flate2::read::GzDecoder::new(coded).read_to_end(&mut plain);
            }
        }
        plain
    }

    fn text(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|it| b"event: nothing new\n"[(it * it / 7) % 19]).collect()
    }

    #[test]
    fn what_is_compressed_in_pieces_is_read_as_it_was() {
        let room = Arc::default();
        for coding in Coding::ALL {
            for (bytes, piece) in [(0, 1), (1, 1), (1_000, 7), (300_000, 300_000), (70_000, 999)] {
                let plain = text(bytes);
                let mut encoder = Encoder::new(coding, &room).expect("there is room");
                assert_eq!(encoder.coding(), coding);
                let mut coded = Vec::new();
                for (index, piece) in plain.chunks(piece).enumerate() {
                    coded.extend(encoder.write(piece).expect("it is compressed"));
                    if index % 3 == 0 {
                        coded.extend(encoder.flush().expect("it is written out"));
                    }
                }
                coded.extend(encoder.finish().expect("it ends"));
                assert!(decoded(coding, &coded) == plain, "{coding:?} {bytes} {piece}");
            }
        }
    }

    #[test]
    fn what_is_flushed_can_be_read_before_the_end() {
        let room = Arc::default();
        for coding in Coding::ALL {
            let mut encoder = Encoder::new(coding, &room).expect("there is room");
            let (mut coded, mut plain) = (Vec::new(), Vec::new());
            for event in ["data: one\n\n", "data: two\n\n"] {
                plain.extend_from_slice(event.as_bytes());
                coded.extend(encoder.write(event.as_bytes()).expect("it is compressed"));
                coded.extend(encoder.flush().expect("it is written out"));
                assert_eq!(decoded(coding, &coded), plain, "{coding:?}");
            }
        }
    }

    #[test]
    fn without_room_there_is_no_encoder() {
        let room = Arc::new(Room::new(Some(BROTLI_BYTES + GZIP_BYTES)));
        let first = Encoder::new(Coding::Brotli, &room);
        assert!(first.is_some() && Encoder::new(Coding::Brotli, &room).is_none());
        assert!(Encoder::new(Coding::Gzip, &room).is_some());
        drop(first);
        assert!(Encoder::new(Coding::Brotli, &room).is_some());
    }
}
