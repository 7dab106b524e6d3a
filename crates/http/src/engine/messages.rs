//! Messages of gRPC, counted as their bytes pass: each has five bytes before it, a flag and its
//! length. Nothing is kept but these five.

/// Bytes before a message.
const PREFIX: usize = 5;

/// What has passed of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Messages {
    prefix: [u8; PREFIX],
    /// Bytes of the prefix that are there.
    known: usize,
    /// Bytes of the message that are to come.
    left: usize,
    begun: u64,
}

impl Messages {
    /// Some bytes pass.
    pub(crate) fn pass(&mut self, mut bytes: &[u8]) {
        loop {
            let of_message = self.left.min(bytes.len());
            self.left -= of_message;
            bytes = &bytes[of_message..];
            if bytes.is_empty() {
                return;
            }
            let of_prefix = (PREFIX - self.known).min(bytes.len());
            self.prefix[self.known..self.known + of_prefix].copy_from_slice(&bytes[..of_prefix]);
            self.known += of_prefix;
            bytes = &bytes[of_prefix..];
            if self.known == PREFIX {
                let [_, length @ ..] = self.prefix;
                self.left = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
                self.known = 0;
                self.begun += 1;
            }
        }
    }

    /// Messages of which at least the prefix has passed.
    pub(crate) fn begun(self) -> u64 {
        self.begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_however_their_bytes_come() {
        let stream =
            [&[0, 0, 0, 0, 2, 7, 7][..], &[0, 0, 0, 0, 0], &[1, 0, 0, 1, 0], &[9; 256]].concat();
        for step in [1, 2, 3, 5, 7, 100, stream.len()] {
            let mut messages = Messages::default();
            stream.chunks(step).for_each(|part| messages.pass(part));
            assert_eq!((messages.begun(), messages.left, messages.known), (3, 0, 0), "{step}");
        }
        let mut cut = Messages::default();
        cut.pass(&[0, 0, 0, 0]);
        assert_eq!(cut.begun(), 0);
        cut.pass(&[9]);
        assert_eq!((cut.begun(), cut.left), (1, 9));
    }
}
