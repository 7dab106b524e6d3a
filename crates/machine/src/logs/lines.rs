//! The lines of a log with the time when each was written, and only those since a time.

use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

use jiff::Timestamp;

use super::times::{Noted, nanos};
use super::{COPY_BUFFER_SIZE_BYTES, FOLLOW_INTERVAL, Reader};

/// Which lines are read, and how they begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Only so many of the last lines.
    pub tail: Option<usize>,
    /// Only lines that were begun since then.
    pub since: Option<SystemTime>,
    /// Each line begins with its time (RFC 3339) and a space.
    pub timestamps: bool,
}

/// A log that is read.
#[derive(Debug)]
pub struct Lines {
    reader: Reader,
    shown: Shown,
    /// What is known of the file that is being read, by its number.
    noted: Option<(u64, Noted)>,
    is_at_start: bool,
    is_old: bool,
}

impl Lines {
    /// Begins with the part that was put aside, or where `shown` says.
    pub fn open(path: &Path, shown: Shown) -> io::Result<Self> {
        let reader = Reader::open(path, shown.tail)?;
        Ok(Self { reader, shown, noted: None, is_at_start: true, is_old: false })
    }

    /// Writes what is there to `output`.
    pub fn copy(&mut self, output: &mut impl Write) -> io::Result<()> {
        self.copy_by(false, output)
    }

    /// Writes the log to `output` as it grows. Ends only with an error; drop the future to stop.
    pub async fn follow(&mut self, output: &mut impl Write) -> io::Result<()> {
        loop {
            self.copy_by(true, output)?;
            tokio::time::sleep(FOLLOW_INTERVAL).await;
        }
    }

    fn copy_by(&mut self, follows: bool, output: &mut impl Write) -> io::Result<()> {
        let mut part = [0; COPY_BUFFER_SIZE_BYTES];
        loop {
            match self.next(follows, &mut part)? {
                next if next.is_empty() => return output.flush(),
                next => output.write_all(&next)?,
            }
        }
    }

    /// The next part of what is there, and with `follows` of a file that takes this one's place;
    /// nothing where the log ends, for now.
    pub(crate) fn next(&mut self, follows: bool, part: &mut [u8]) -> io::Result<Vec<u8>> {
        loop {
            let length = match follows {
                true => self.reader.read_on(part)?,
                false => self.reader.read(part)?,
            };
            let read = &part[..length];
            if length == 0 || self.shown.since.is_none() && !self.shown.timestamps {
                return Ok(read.to_vec());
            }
            let shown = self.show(read)?;
            if !shown.is_empty() {
                return Ok(shown);
            }
        }
    }

    fn show(&mut self, read: &[u8]) -> io::Result<Vec<u8>> {
        let (number, mut place) = self.reader.place(read.len())?;
        let mut shown = Vec::with_capacity(read.len());
        for line in read.split_inclusive(|byte| *byte == b'\n') {
            if std::mem::replace(&mut self.is_at_start, line.ends_with(b"\n")) {
                let time = self.time(number, place)?;
                self.is_old = self.shown.since.is_some_and(|since| time < nanos(since));
                if !self.is_old && self.shown.timestamps {
                    shown.extend_from_slice(written(time).as_bytes());
                }
            }
            if !self.is_old {
                shown.extend_from_slice(line);
            }
            place += line.len() as u64;
        }
        Ok(shown)
    }

    fn time(&mut self, number: u64, place: u64) -> io::Result<u64> {
        if self.noted.as_ref().is_none_or(|(of, _)| *of != number) {
            self.noted = Some((number, self.reader.noted()?));
        }
        let (_, noted) = self.noted.as_mut().expect("it was set above");
        noted.at(place)
    }
}

fn written(nanos: u64) -> String {
    let time = Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or_default();
    format!("{time} ")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::logs::LogFile;

    #[test]
    fn lines_have_their_times_also_behind_a_rotation() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let mut log = LogFile::open(&path).unwrap().with_times().unwrap();
        log.write_at(b"one\ntw", at(1)).unwrap();
        log.write_at(b"o\nthree\n", at(2)).unwrap();
        log.put_aside().unwrap();
        log.write_at(b"four\nfi", at(3)).unwrap();
        let text = |shown: Shown| {
            let mut lines = Lines::open(&path, shown).unwrap();
            let (mut text, mut part) = (Vec::new(), [0; 5]);
            loop {
                match lines.next(false, &mut part).unwrap() {
                    next if next.is_empty() => return String::from_utf8(text).unwrap(),
                    next => text.extend(next),
                }
            }
        };
        let timestamps = Shown { timestamps: true, ..Shown::default() };
        assert_eq!(
            text(timestamps),
            "1970-01-01T00:00:01Z one\n1970-01-01T00:00:01Z two\n1970-01-01T00:00:02Z three\n\
             1970-01-01T00:00:03Z four\n1970-01-01T00:00:03Z fi"
        );
        let since = |seconds| Shown { since: Some(at(seconds)), ..Shown::default() };
        assert_eq!(text(since(1)), "one\ntwo\nthree\nfour\nfi");
        assert_eq!(text(since(2)), "three\nfour\nfi");
        assert_eq!(text(since(4)), "");
        assert_eq!(text(Shown { tail: Some(2), ..timestamps }), {
            "1970-01-01T00:00:03Z four\n1970-01-01T00:00:03Z fi"
        });
        assert_eq!(text(Shown { tail: Some(3), ..since(3) }), "four\nfi");
    }
}
