//! A tar stream (POSIX ustar) of plain files and directories, in the order they are given.

use anyhow::{Result, ensure};

const BLOCK: usize = 512;
/// Longest name that fits the header's one field.
const MAX_NAME: usize = 100;

/// A tar stream that grows in memory; every member has the same time and belongs to root.
pub(super) struct Tar {
    bytes: Vec<u8>,
    time: u64,
}

impl Tar {
    /// An empty stream whose members were changed at `time`.
    pub(super) fn new(time: u64) -> Self {
        Self { bytes: Vec::new(), time }
    }

    /// Appends a directory.
    pub(super) fn directory(&mut self, path: &str, mode: u32) -> Result<()> {
        self.header(&format!("{path}/"), mode, 0, b'5')
    }

    /// Appends a file.
    pub(super) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.header(path, mode, content.len(), b'0')?;
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
        Ok(())
    }

    /// The whole stream.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 2 * BLOCK, 0);
        self.bytes
    }

    fn header(&mut self, name: &str, mode: u32, size: usize, kind: u8) -> Result<()> {
        ensure!(name.len() <= MAX_NAME, "{name}: longer than {MAX_NAME} bytes");
        let mut header = [0_u8; BLOCK];
        let mut put = |at: usize, text: &str| {
            header[at..at + text.len()].copy_from_slice(text.as_bytes());
        };
        put(0, name);
        put(100, &format!("{mode:07o}"));
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{size:011o}"));
        put(136, &format!("{:011o}", self.time));
        // The sum is made with blanks in its own place.
        put(148, "        ");
        put(257, "ustar\x0000root");
        put(297, "root");
        header[156] = kind;
        let sum: u32 = header.iter().copied().map(u32::from).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.bytes.extend_from_slice(&header);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_padded_to_blocks_and_the_sum_is_right() {
        let mut tar = Tar::new(7);
        tar.directory("etc", 0o755).unwrap();
        tar.file("etc/motd", 0o644, b"hello").unwrap();
        let bytes = tar.finish();
        assert_eq!(bytes.len(), 5 * BLOCK);
        let header = &bytes[BLOCK..2 * BLOCK];
        let field = |at: usize, size: usize| std::str::from_utf8(&header[at..at + size]).unwrap();
        assert_eq!((field(0, 8), field(124, 11), field(136, 11)), expected());
        let sum = u32::from_str_radix(field(148, 6), 8).unwrap();
        let others = header.iter().enumerate().filter(|(at, _)| !(148..156).contains(at));
        assert_eq!(sum, others.map(|(_, byte)| u32::from(*byte)).sum::<u32>() + 8 * 32);
        assert!(Tar::new(0).file(&"x".repeat(101), 0, b"").is_err());
    }

    fn expected() -> (&'static str, &'static str, &'static str) {
        ("etc/motd", "00000000005", "00000000007")
    }
}
