//! When the parts of a log were written.
//!
//! Beside a log lies a file with the places at which something was added, and when. It begins with
//! the number of the log's file, so that it is never taken for that of another one. A log is of
//! use without it: a reader then takes the time of the last change.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::ownership::open_own;

/// A place and a time, in nanoseconds since 1970.
const RECORD_SIZE_BYTES: usize = 16;
/// The number of the log's file.
const HEAD_SIZE_BYTES: usize = 8;
/// What is added sooner has the time of what was before it.
const STEP: Duration = Duration::from_millis(1);
/// Most places of one file; what comes later has the time of the last one.
const RECORDS_MAX: u64 = 1 << 18;

/// The file beside a log.
pub(super) fn beside(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".times");
    name.into()
}

/// Notes when a log grows.
#[derive(Debug)]
pub(super) struct Times {
    file: File,
    records: u64,
    last: SystemTime,
}

impl Times {
    /// Of this log; goes on where an earlier writer of it ended.
    pub(super) fn open(path: &Path, log: &File) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = open_own(options.create(true).read(true).append(true), &beside(path));
        let mut file = file.map_err(io::Error::other)?;
        let number = log.metadata()?.ino().to_le_bytes();
        let mut head = [0; HEAD_SIZE_BYTES];
        if file.read_exact(&mut head).is_err() || head != number {
            file.set_len(0)?;
            file.write_all(&number)?;
        }
        let length = file.metadata()?.len().saturating_sub(HEAD_SIZE_BYTES as u64);
        // What a writer left half would put all that follows in a wrong place.
        let whole = length - length % RECORD_SIZE_BYTES as u64;
        file.set_len(HEAD_SIZE_BYTES as u64 + whole)?;
        Ok(Self { file, records: whole / RECORD_SIZE_BYTES as u64, last: UNIX_EPOCH })
    }

    /// Something is added at this place now.
    pub(super) fn note(&mut self, place: u64, now: SystemTime) -> io::Result<()> {
        let is_soon = now.duration_since(self.last).is_ok_and(|since| since < STEP);
        if is_soon || self.records >= RECORDS_MAX {
            return Ok(());
        }
        self.file.write_all(&record(place, nanos(now)))?;
        (self.last, self.records) = (now, self.records + 1);
        Ok(())
    }
}

fn record(place: u64, nanos: u64) -> [u8; RECORD_SIZE_BYTES] {
    let mut record = [0; RECORD_SIZE_BYTES];
    record[..8].copy_from_slice(&place.to_le_bytes());
    record[8..].copy_from_slice(&nanos.to_le_bytes());
    record
}

/// Since 1970, as far as that can be told.
pub(super) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// What was noted of a log.
#[derive(Debug)]
pub(super) struct Noted {
    file: Option<File>,
    records: Vec<(u64, u64)>,
    /// Bytes of a record that is not there as a whole yet.
    rest: Vec<u8>,
    /// When nothing was noted.
    otherwise: u64,
}

impl Noted {
    /// Of a log, which lies in one of these places.
    pub(super) fn of(log: &File, places: &[PathBuf]) -> io::Result<Self> {
        let metadata = log.metadata()?;
        let number = metadata.ino().to_le_bytes();
        let file = places.iter().find_map(|path| {
            let mut file = File::open(beside(path)).ok()?;
            let mut head = [0; HEAD_SIZE_BYTES];
            file.read_exact(&mut head).ok()?;
            (head == number).then_some(file)
        });
        let otherwise = metadata.modified().map(nanos)?;
        let mut noted = Self { file, records: Vec::new(), rest: Vec::new(), otherwise };
        noted.read()?;
        Ok(noted)
    }

    /// When what is at this place of the log was written.
    pub(super) fn at(&mut self, place: u64) -> io::Result<u64> {
        if self.records.last().is_none_or(|(last, _)| *last < place) {
            self.read()?;
        }
        let after = self.records.partition_point(|(from, _)| *from <= place);
        let record = after.checked_sub(1).and_then(|index| self.records.get(index));
        Ok(record.map_or(self.otherwise, |(_, nanos)| *nanos))
    }

    fn read(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.read_to_end(&mut self.rest)?;
        let (whole, rest) = self.rest.as_chunks::<RECORD_SIZE_BYTES>();
        self.records.extend(whole.iter().map(|record| {
            let number = |at: usize| {
                let bytes = record[at..at + 8].try_into().expect("it has eight bytes");
                u64::from_le_bytes(bytes)
            };
            (number(0), number(8))
        }));
        self.rest = rest.to_vec();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_has_its_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        let log = File::create(&path).unwrap();
        let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
        let mut times = Times::open(&path, &log).unwrap();
        let mut noted = Noted::of(&log, std::slice::from_ref(&path)).unwrap();
        assert_ne!(noted.at(0).unwrap(), 0, "then it is when the log was changed");
        for (place, millis) in [(0, 1), (10, 5), (20, 5), (30, 9)] {
            times.note(place, at(millis)).unwrap();
        }
        let millis = |nanos: u64| nanos / 1_000_000;
        for (place, expected) in [(0, 1), (9, 1), (10, 5), (29, 5), (30, 9), (999, 9)] {
            assert_eq!(millis(noted.at(place).unwrap()), expected, "{place}");
        }
        // Another writer goes on, also where the first left half a record.
        times.file.write_all(&[1, 2, 3]).unwrap();
        let mut times = Times::open(&path, &log).unwrap();
        times.note(40, at(20)).unwrap();
        assert_eq!(times.records, 4);
        let mut noted = Noted::of(&log, std::slice::from_ref(&path)).unwrap();
        assert_eq!(millis(noted.at(40).unwrap()), 20);
        // The times of another file of the name count for nothing.
        let other = directory.path().join("b.log");
        std::fs::rename(beside(&path), beside(&other)).unwrap();
        let log = File::create(&other).unwrap();
        let mut noted = Noted::of(&log, std::slice::from_ref(&other)).unwrap();
        assert!(millis(noted.at(40).unwrap()) > 1_000_000);
        assert_eq!(Times::open(&other, &log).unwrap().records, 0);
    }
}
