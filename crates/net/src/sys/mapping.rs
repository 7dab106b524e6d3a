//! Memory that goes back to the system as soon as it is dropped.

use std::fs::File;
use std::io::{self, Read as _};
use std::ptr::NonNull;

/// How much is read at least, of files that do not say how long they are.
const MIN_BYTES: usize = 64 * 1024;

/// The content of a file, copied. An allocator would keep the room for a long time.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    filled: usize,
}

impl Mapping {
    /// Reads a file to its end; one that is longer than it says is cut off.
    pub(crate) fn of_content(mut file: File) -> io::Result<Self> {
        let said = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let mut mapping = Self::new(said.max(MIN_BYTES))?;
        while mapping.filled < mapping.bytes {
            // SAFETY: the memory is this mapping's, readable and writable, zero at first, and
            // nobody else refers to it.
            let room = unsafe {
                let rest = mapping.start.add(mapping.filled);
                std::slice::from_raw_parts_mut(rest.as_ptr(), mapping.bytes - mapping.filled)
            };
            match file.read(room) {
                Ok(0) => break,
                Ok(bytes) => mapping.filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(mapping)
    }

    fn new(bytes: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping of no file, at a place of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        match NonNull::new(start) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED => {
                Ok(Self { start: start.cast(), bytes, filled: 0 })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: so much of the mapping is filled, and nobody writes to it any more.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.filled) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it outlives it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, Write as _};

    use super::*;

    #[test]
    fn a_file_is_read_to_its_end() {
        for length in [0, 1, MIN_BYTES, 3 * MIN_BYTES + 1] {
            let content: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut file = tempfile::tempfile().expect("a file");
            file.write_all(&content).expect("written");
            file.rewind().expect("rewound");
            let mapping = Mapping::of_content(file).expect("read");
            assert!(mapping.as_ref() == content, "{length} bytes");
        }
    }
}
