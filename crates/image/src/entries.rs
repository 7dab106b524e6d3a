//! The entries of a tar stream, as a stranger wrote it.
//!
//! The formats are those of POSIX (ustar, PAX) and GNU. The single headers are decoded by the `tar`
//! crate; what a header may make the reader remember is bounded here. Sparse files are refused: no
//! program that makes images writes them, and a small one unpacks to any size.

use std::io::{self, Read};

use tar::{EntryType, Header};

use crate::content::{Input, exceeded};
use crate::limits::{Exceeded, Limits, within};

const BLOCK_SIZE_BYTES: u64 = 512;
/// What an empty field of a header consists of.
const BLANK: [u8; 2] = [0, b' '];

/// What cannot be read as tar.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// The data ends early or cannot be decompressed.
    #[error("cannot read the archive")]
    Read(#[source] io::Error),
    /// A header is none.
    #[error("the header after {after:?} is not one of a tar archive: {reason}")]
    Header {
        /// The path of the entry before; empty at the start.
        after: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Headers that no archive needs.
    #[error("the headers after {after:?}")]
    Bound {
        /// The path of the entry before; empty at the start.
        after: String,
        /// The bound.
        source: Exceeded,
    },
    /// The data as a whole is too large.
    #[error("the archive is too large")]
    Total(#[source] Exceeded),
}

impl From<io::Error> for TarError {
    fn from(error: io::Error) -> Self {
        exceeded(&error).map_or(Self::Read(error), Self::Total)
    }
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// Another name of the file at this path.
    HardLink(Vec<u8>),
    /// A device or a FIFO.
    Special,
    Sparse,
    /// Something that neither POSIX nor GNU names, or that means nothing in an image.
    Unknown(u8),
}

impl Kind {
    /// Where a link leads.
    pub(crate) fn target(&self) -> Option<&Vec<u8>> {
        match self {
            Self::Symlink(target) | Self::HardLink(target) => Some(target),
            _ => None,
        }
    }
}

/// One entry; its data is read from the [`Entries`] that gave it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// As written.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    /// Seconds since 1970 and nanoseconds.
    pub(crate) modified: (i64, u32),
    /// Bytes of its data.
    pub(crate) size: u64,
    /// How many extended attributes it has.
    pub(crate) attributes: u64,
}

/// Reads a tar stream.
pub(crate) struct Entries<'l, R> {
    input: R,
    limits: &'l Limits,
    /// What is left of the current entry's data, and what fills its last block.
    data_left: u64,
    padding: u64,
    /// The path of the last entry.
    last: Vec<u8>,
}

/// What extended headers say of the entry after them.
#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    modified: Option<(i64, u32)>,
    is_sparse: bool,
    attributes: u64,
}

impl<'l, R: Input> Entries<'l, R> {
    pub(crate) fn new(input: R, limits: &'l Limits) -> Self {
        Self { input, limits, data_left: 0, padding: 0, last: Vec::new() }
    }

    pub(crate) fn input(&mut self) -> &mut R {
        &mut self.input
    }

    /// The next entry; whatever is left of the last one's data is passed over.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, TarError> {
        let mut extensions = Extensions::default();
        let mut number = 0;
        loop {
            self.input.skip(self.data_left)?;
            self.input.skip(self.padding)?;
            (self.data_left, self.padding) = (0, 0);
            let Some(header) = self.header()? else {
                if number > 0 {
                    return Err(self.wrong("the archive ends after an extended header"));
                }
                return Ok(None);
            };
            let size = self.number(header.entry_size(), size_field(&header), "size")?;
            let kind = header.entry_type();
            if !is_extension(kind) {
                return self.entry(&header, size, extensions).map(Some);
            }
            number += 1;
            self.bound(number, self.limits.extensions, "extended headers in a row")?;
            self.bound(size, self.limits.extension_bytes, "bytes of an extended header")?;
            self.set_data(size)?;
            let mut data = Vec::new();
            Read::take(&mut self.input, size).read_to_end(&mut data)?;
            self.data_left = size - data.len() as u64;
            match kind {
                EntryType::GNULongName => extensions.path = Some(until_nul(data)),
                EntryType::GNULongLink => extensions.link = Some(until_nul(data)),
                EntryType::XHeader => self.read_pax(&data, &mut extensions)?,
                // A global header says nothing of an image's files; Go's reader does the same.
                _ => {}
            }
        }
    }

    /// The next header; `None` at the end. One empty block is an end as good as two.
    fn header(&mut self) -> Result<Option<Header>, TarError> {
        let mut header = Header::new_old();
        let block = header.as_mut_bytes();
        let mut filled = 0;
        while filled < block.len() {
            match self.input.read(&mut block[filled..])? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(TarError::Read(io::ErrorKind::UnexpectedEof.into())),
                count => filled += count,
            }
        }
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        // The sum counts its own field as blanks.
        let sum = |range: std::ops::Range<usize>| -> u32 {
            block[range].iter().map(|byte| u32::from(*byte)).sum()
        };
        let expected = sum(0..148) + 8 * u32::from(b' ') + sum(156..512);
        if header.cksum().ok() != Some(expected) {
            return Err(self.wrong("its sum is wrong"));
        }
        Ok(Some(header))
    }

    fn entry(
        &mut self,
        header: &Header,
        size: u64,
        extensions: Extensions,
    ) -> Result<Entry, TarError> {
        let old = header.as_old();
        let path = extensions.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = extensions
            .link
            .or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned))
            .unwrap_or_default();
        let size = extensions.size.unwrap_or(size);
        let entry_type = header.entry_type();
        // GNU writes a size at links and directories too, and no data. The data of old archives'
        // directories is there. Go's reader does the same.
        let size = if has_data(entry_type) { size } else { 0 };
        let is_old = old.linkflag == [0];
        let kind = match entry_type {
            _ if extensions.is_sparse => Kind::Sparse,
            EntryType::Regular if is_old && path.ends_with(b"/") => Kind::Directory,
            EntryType::Regular | EntryType::Continuous => Kind::File,
            EntryType::Directory => Kind::Directory,
            EntryType::Symlink => Kind::Symlink(link),
            EntryType::Link => Kind::HardLink(link),
            EntryType::Char | EntryType::Block | EntryType::Fifo => Kind::Special,
            EntryType::GNUSparse => Kind::Sparse,
            other => Kind::Unknown(other.as_byte()),
        };
        self.set_data(size)?;
        let modified = self.number(header.mtime(), &old.mtime, "time")?;
        let entry = Entry {
            kind,
            mode: u32::try_from(self.number(header.mode().map(u64::from), &old.mode, "mode")?)
                .unwrap_or_default(),
            uid: set_or(extensions.uid, || self.number(header.uid(), &old.uid, "owner"))?,
            gid: set_or(extensions.gid, || self.number(header.gid(), &old.gid, "group"))?,
            modified: extensions
                .modified
                .unwrap_or((i64::try_from(modified).unwrap_or_default(), 0)),
            size,
            attributes: extensions.attributes,
            path,
        };
        self.last.clone_from(&entry.path);
        Ok(entry)
    }

    fn set_data(&mut self, size: u64) -> Result<(), TarError> {
        if size > i64::MAX as u64 {
            return Err(self.wrong("its size is larger than any file"));
        }
        (self.data_left, self.padding) = (size, size.next_multiple_of(BLOCK_SIZE_BYTES) - size);
        Ok(())
    }

    /// A header's number; an empty field is 0, as programs write that do not know.
    fn number(
        &self,
        decoded: io::Result<u64>,
        field: &[u8],
        what: &'static str,
    ) -> Result<u64, TarError> {
        match decoded {
            Ok(number) => Ok(number),
            Err(_) if field.iter().all(|byte| BLANK.contains(byte)) => Ok(0),
            Err(_) => Err(self.wrong(format!("its {what} is not a number"))),
        }
    }

    /// Records of the form `LENGTH KEY=VALUE\n`, where the length counts itself.
    fn read_pax(&self, data: &[u8], extensions: &mut Extensions) -> Result<(), TarError> {
        let mut rest = data;
        // Some programs fill up with zeros.
        while rest.first().is_some_and(|first| *first != 0) {
            let (key, value, after) =
                pax_record(rest).ok_or_else(|| self.wrong("a record of PAX has not its length"))?;
            rest = after;
            self.read_record(key, value, extensions)?;
        }
        Ok(())
    }

    fn read_record(
        &self,
        key: &[u8],
        value: &[u8],
        extensions: &mut Extensions,
    ) -> Result<(), TarError> {
        // An empty value takes back what was said before.
        let text = (!value.is_empty()).then(|| value.to_vec());
        let number = || match std::str::from_utf8(value) {
            Ok("") => Ok(None),
            Ok(text) if text.bytes().all(|digit| digit.is_ascii_digit()) => text
                .parse()
                .map(Some)
                .map_err(|_| self.wrong("a number of PAX is larger than any file")),
            _ => Err(self.wrong("a number of PAX is none")),
        };
        match key {
            b"path" => extensions.path = text,
            b"linkpath" => extensions.link = text,
            b"size" => extensions.size = number()?,
            b"uid" => extensions.uid = number()?,
            b"gid" => extensions.gid = number()?,
            b"mtime" => extensions.modified = pax_time(value),
            _ if key.starts_with(b"GNU.sparse.") => extensions.is_sparse = true,
            _ if key.starts_with(b"SCHILY.xattr.") || key.starts_with(b"LIBARCHIVE.xattr.") => {
                extensions.attributes += 1;
            }
            _ => {}
        }
        Ok(())
    }

    fn wrong(&self, reason: impl Into<String>) -> TarError {
        TarError::Header { after: shown(&self.last), reason: reason.into() }
    }

    fn bound(&self, number: u64, limit: u64, what: &'static str) -> Result<(), TarError> {
        within(number, limit, what)
            .map_err(|source| TarError::Bound { after: shown(&self.last), source })
    }
}

/// The current entry's data.
impl<R: Input> Read for Entries<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.data_left).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let count = self.input.read(&mut buffer[..wanted])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.data_left -= count as u64;
        Ok(count)
    }
}

fn is_extension(kind: EntryType) -> bool {
    matches!(
        kind,
        EntryType::GNULongName
            | EntryType::GNULongLink
            | EntryType::XHeader
            | EntryType::XGlobalHeader
    )
}

fn has_data(kind: EntryType) -> bool {
    !matches!(
        kind,
        EntryType::Directory
            | EntryType::Symlink
            | EntryType::Link
            | EntryType::Char
            | EntryType::Block
            | EntryType::Fifo
    )
}

fn size_field(header: &Header) -> &[u8] {
    &header.as_old().size
}

fn set_or<T, E>(set: Option<T>, other: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    set.map_or_else(other, Ok)
}

fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    bytes
}

/// Key and value of the first record, and what comes after it.
fn pax_record(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let blank = data.iter().take(20).position(|byte| *byte == b' ')?;
    let digits = std::str::from_utf8(&data[..blank]).ok()?;
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
    let length: usize = digits.parse().ok().filter(|_| is_number)?;
    let record = data.get(blank + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..equals], &record[equals + 1..], &data[length..]))
}

/// Seconds with a fraction; `None` if it is no number: no image depends on a time.
fn pax_time(value: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = digits.parse().ok()?;
    match (whole.starts_with('-'), nanoseconds) {
        (true, 1..) => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanoseconds)),
        _ => Some((seconds, nanoseconds)),
    }
}

/// A path as a person reads it.
pub(crate) fn shown(path: &[u8]) -> String {
    const SHOWN_MAX_CHARACTERS: usize = 300;
    let text = String::from_utf8_lossy(path);
    match text.char_indices().nth(SHOWN_MAX_CHARACTERS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Input for &[u8] {
        fn skip(&mut self, count: u64) -> io::Result<()> {
            let count = usize::try_from(count).unwrap();
            *self = self.get(count..).ok_or(io::ErrorKind::UnexpectedEof)?;
            Ok(())
        }
    }

    fn block(path: &str, kind: EntryType, data: &[u8]) -> Vec<u8> {
        let mut header = Header::new_ustar();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(kind);
        header.set_size(data.len() as u64);
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    fn record(key: &str, value: &str) -> Vec<u8> {
        let body = format!(" {key}={value}\n");
        let length = (1..).find(|length| length.to_string().len() + body.len() == *length);
        format!("{}{body}", length.unwrap()).into_bytes()
    }

    fn check(archive: &[u8], expected: Result<&[&str], &str>) {
        let limits = Limits { extensions: 2, extension_bytes: 1000, ..Limits::default() };
        let mut entries = Entries::new(archive, &limits);
        let mut found = Vec::new();
        let error = loop {
            match entries.next() {
                Ok(Some(entry)) => found.push(shown(&entry.path)),
                Ok(None) => break None,
                Err(error) => {
                    let source = std::error::Error::source(&error).map(ToString::to_string);
                    break Some(format!("{error} {}", source.unwrap_or_default()));
                }
            }
        };
        match (error, expected) {
            (None, Ok(expected)) => assert_eq!(found, expected),
            (Some(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (error, expected) => panic!("{error:?}, not {expected:?}"),
        }
    }

    #[test]
    fn extended_headers_name_the_entry_after_them() {
        let pax = |records: &[Vec<u8>]| block("p", EntryType::XHeader, &records.concat());
        let file = block("a", EntryType::Regular, b"1");
        check(&[&pax(&[record("path", "x\ny")])[..], &file, &file].concat(), Ok(&["x\ny", "a"]));
        check(&[&pax(&[record("path", "x"), record("path", "")])[..], &file].concat(), Ok(&["a"]));
        check(&[&block("L", EntryType::GNULongName, b"long\0")[..], &file].concat(), Ok(&["long"]));
        check(&[&block("g", EntryType::XGlobalHeader, b"x")[..], &file].concat(), Ok(&["a"]));
        // The size of PAX is the one that counts.
        let larger = block("b", EntryType::Regular, &[b'z'; 600]);
        let mut lies = larger.clone();
        let header = Header::from_byte_slice(&lies[..512]);
        let mut header = header.clone();
        header.set_size(0);
        header.set_cksum();
        lies[..512].copy_from_slice(header.as_bytes());
        check(&[&pax(&[record("size", "600")])[..], &lies, &file].concat(), Ok(&["b", "a"]));
    }

    #[test]
    fn broken_headers_are_errors() {
        let pax = |data: &[u8]| block("p", EntryType::XHeader, data);
        let file = block("a", EntryType::Regular, b"1");
        for data in ["5 a=b\n", "99 a=b\n", "x a=b\n", "6 a=bc", "3 \n", "-6 a=b\n", "+6 a=b\n"] {
            check(&[&pax(data.as_bytes())[..], &file].concat(), Err("has not its length"));
        }
        check(&[&pax(&record("size", "-1"))[..], &file].concat(), Err("is none"));
        let huge = record("size", "99999999999999999999999");
        check(&[&pax(&huge)[..], &file].concat(), Err("larger than any file"));
        let huge = record("size", &u64::MAX.to_string());
        check(&[&pax(&huge)[..], &file].concat(), Err("larger than any file"));
        let three = [pax(b""), pax(b""), pax(b""), file.clone()].concat();
        check(&three, Err("more than 2 extended headers"));
        check(&block("p", EntryType::XHeader, &[b'a'; 1001]), Err("more than 1000 bytes"));
        check(&pax(b""), Err("ends after an extended header"));
        check(&file[..700], Err("cannot read"));
        check(&file[..100], Err("cannot read"));
        let mut wrong = file.clone();
        wrong[0] = b'b';
        check(&wrong, Err("sum"));
        check(&[&file[..], &[0; 512], &file].concat(), Ok(&["a"]));
        check(b"", Ok(&[]));
    }

    #[test]
    fn times_may_be_before_1970() {
        for (text, expected) in [
            ("12", Some((12, 0))),
            ("12.5", Some((12, 500_000_000))),
            ("-1.25", Some((-2, 750_000_000))),
            ("1.0000000009", Some((1, 0))),
            ("x", None),
            ("1.x", None),
        ] {
            assert_eq!(pax_time(text.as_bytes()), expected, "{text}");
        }
    }
}
