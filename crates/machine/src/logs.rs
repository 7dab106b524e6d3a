//! Logs of bounded size: written by the parent of a process, read and followed by the command line.
//!
//! A log is a file and the one before it (`.1`). The writer renames when the file is full; a reader
//! that follows notices the new file by its number. A log never grows past twice
//! [`FILE_SIZE_MAX_BYTES`]. Beside it may lie when its lines were written ([`Lines`]).

mod lines;
mod times;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

pub use lines::{Lines, Shown};

use crate::ownership::open_own;
use times::{Noted, Times};

/// Size at which a log file is put aside.
pub const FILE_SIZE_MAX_BYTES: u64 = 8 << 20;
/// Most files with logs of pods; beyond, those of pods that are long gone are removed.
const POD_LOGS_MAX: usize = 2000;
/// How often a reader that follows looks again.
pub(crate) const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);
const COPY_BUFFER_SIZE_BYTES: usize = 16 << 10;

/// A log that is being written.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
    size_bytes: u64,
    times: Option<Times>,
}

impl LogFile {
    /// Opens a log of ours for appending. A symbolic link there is refused.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let file = open_own(OpenOptions::new().create(true).append(true), &path);
        let file = file.map_err(io::Error::other)?;
        let size_bytes = file.metadata()?.len();
        Ok(Self { path, file, size_bytes, times: None })
    }

    /// Also keeps when each line is written.
    pub(crate) fn with_times(self) -> io::Result<Self> {
        let times = Some(Times::open(&self.path, &self.file)?);
        Ok(Self { times, ..self })
    }

    /// Appends, putting the file aside when it is full.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_at(bytes, SystemTime::now())
    }

    fn write_at(&mut self, bytes: &[u8], now: SystemTime) -> io::Result<()> {
        if self.size_bytes + bytes.len() as u64 > FILE_SIZE_MAX_BYTES {
            self.put_aside()?;
        }
        if let Some(times) = &mut self.times {
            // What is written counts more than when.
            let _unknown = times.note(self.size_bytes, now);
        }
        self.file.write_all(bytes)?;
        self.size_bytes += bytes.len() as u64;
        Ok(())
    }

    fn put_aside(&mut self) -> io::Result<()> {
        let aside = aside(&self.path);
        fs::rename(&self.path, &aside)?;
        let has_times = self.times.is_some();
        if has_times {
            fs::rename(times::beside(&self.path), times::beside(&aside))?;
        }
        *self = Self::open(std::mem::take(&mut self.path))?;
        if has_times {
            self.times = Some(Times::open(&self.path, &self.file)?);
        }
        Ok(())
    }

    /// Copies everything that a process writes into the returned descriptor, until all its copies
    /// are closed.
    ///
    /// A full disk must not stop the process: what cannot be written is dropped, and the first
    /// failure is reported.
    pub(crate) fn collect(self) -> io::Result<OwnedFd> {
        self.collect_until_closed().map(|(writer, _)| writer)
    }

    /// `collect`, and the task that ends when everything is in the log.
    pub fn collect_until_closed(mut self) -> io::Result<(OwnedFd, JoinHandle<()>)> {
        let (reader, writer) = io::pipe()?;
        let mut reader = pipe::Receiver::from_owned_fd(reader.into())?;
        let copying = tokio::spawn(async move {
            let mut buffer = vec![0; COPY_BUFFER_SIZE_BYTES];
            let mut failed = false;
            while let Ok(length @ 1..) = reader.read(&mut buffer).await {
                let written = self.write(&buffer[..length]);
                if let Err(error) = &written
                    && !failed
                {
                    tracing::warn!(log = %self.path.display(), %error, "cannot write a log");
                }
                failed = written.is_err();
            }
        });
        Ok((writer.into(), copying))
    }
}

/// For a program's own log lines.
impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::write(self, bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// Removes the oldest files of a directory beyond [`POD_LOGS_MAX`], except those that `is_in_use`.
pub(crate) fn prune(directory: &Path, is_in_use: impl Fn(&str) -> bool) -> io::Result<()> {
    let mut idle = Vec::new();
    let mut count = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        count += 1;
        if !entry.file_name().to_str().is_some_and(&is_in_use) {
            idle.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    idle.sort();
    for (_, path) in idle.iter().take(usize::saturating_sub(count, POD_LOGS_MAX)) {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Reads a log: what is there, and what is added later.
#[derive(Debug)]
struct Reader {
    path: PathBuf,
    /// What is read before the present file: the part that was put aside.
    old: Option<File>,
    file: File,
}

impl Reader {
    /// Begins with the part that was put aside, or only with the last lines of both.
    fn open(path: &Path, lines: Option<usize>) -> io::Result<Self> {
        let mut old = match File::open(aside(path)) {
            Ok(old) => Some(old),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let mut file = File::open(path)?;
        if let Some(lines) = lines {
            match seek_last_lines(&mut file, lines, true)? {
                None => old = None,
                Some(missing) => {
                    file.rewind()?;
                    let is_empty = file.metadata()?.len() == 0;
                    if let Some(old) = &mut old
                        && seek_last_lines(old, missing, is_empty)?.is_some()
                    {
                        old.rewind()?;
                    }
                }
            }
        }
        Ok(Self { path: path.to_owned(), old, file })
    }

    /// Reads the next part of what is there; nothing at its end. A writer that goes on may put the
    /// file aside meanwhile, which ends the log here.
    fn read(&mut self, part: &mut [u8]) -> io::Result<usize> {
        if let Some(old) = &mut self.old {
            match old.read(part)? {
                0 => self.old = None,
                length => return Ok(length),
            }
        }
        self.file.read(part)
    }

    /// Reads the next part, also of a file that has taken this one's place; nothing, where the log
    /// ends for now.
    fn read_on(&mut self, part: &mut [u8]) -> io::Result<usize> {
        let length = self.read(part)?;
        if length > 0 {
            return Ok(length);
        }
        match fs::metadata(&self.path) {
            Ok(now) if now.ino() != self.file.metadata()?.ino() => {
                // It may have grown between the two looks, before it was put aside.
                let length = self.file.read(part)?;
                if length > 0 {
                    return Ok(length);
                }
                self.file = File::open(&self.path)?;
                self.file.read(part)
            }
            Ok(_) => Ok(0),
            // Between two files of a rotation.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// The number of the file that so much was just read of, and where in it that began.
    fn place(&mut self, length: usize) -> io::Result<(u64, u64)> {
        let file = self.old.as_mut().unwrap_or(&mut self.file);
        let end = file.stream_position()?;
        Ok((file.metadata()?.ino(), end - length as u64))
    }

    /// When the file that was just read was written.
    fn noted(&self) -> io::Result<Noted> {
        let file = self.old.as_ref().unwrap_or(&self.file);
        Noted::of(file, &[self.path.clone(), aside(&self.path)])
    }
}

/// Goes to where the last lines of a file begin. If it has fewer, says how many are missing.
fn seek_last_lines(file: &mut File, lines: usize, may_be_cut: bool) -> io::Result<Option<usize>> {
    let mut end = file.metadata()?.len();
    let mut block = [0; COPY_BUFFER_SIZE_BYTES];
    let mut left = lines;
    // The end of the last line is none between two lines.
    let mut is_last = may_be_cut;
    if lines == 0 {
        file.seek(SeekFrom::Start(end))?;
        return Ok(None);
    }
    while end > 0 {
        let start = end.saturating_sub(COPY_BUFFER_SIZE_BYTES as u64);
        let length = usize::try_from(end - start).expect("it is at most a block");
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut block[..length])?;
        for (at, byte) in block[..length].iter().enumerate().rev() {
            if std::mem::take(&mut is_last) || *byte != b'\n' {
                continue;
            }
            left -= 1;
            if left == 0 {
                file.seek(SeekFrom::Start(start + at as u64 + 1))?;
                return Ok(None);
            }
        }
        end = start;
    }
    Ok(Some(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_logs_of_nobody_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let write = |name: String, age_s: u64| {
            let file = File::create(directory.join(name)).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000 - age_s))
                .unwrap();
        };
        for number in 0..POD_LOGS_MAX as u64 {
            write(format!("idle-{number}"), number);
        }
        write("used".to_owned(), 999_999);
        write("used-too".to_owned(), 999_999);
        prune(directory, |name| name.starts_with("used")).unwrap();
        let left = |name: &str| directory.join(name).exists();
        assert!(left("used") && left("used-too") && left("idle-1997"));
        assert!(!left("idle-1998") && !left("idle-1999"));
    }

    #[test]
    fn a_reader_begins_with_the_last_lines_of_both_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        let check = |old: Option<&str>, new: &str, lines: Option<usize>, expected: &str| {
            match old {
                Some(old) => fs::write(aside(&path), old).unwrap(),
                None => drop(fs::remove_file(aside(&path))),
            }
            fs::write(&path, new).unwrap();
            let mut reader = Reader::open(&path, lines).unwrap();
            let (mut text, mut part) = (Vec::new(), [0; 3]);
            loop {
                match reader.read(&mut part).unwrap() {
                    0 => break,
                    length => text.extend_from_slice(&part[..length]),
                }
            }
            let text = String::from_utf8(text).unwrap();
            assert_eq!(text, expected, "{lines:?} of {old:?} and {new:?}");
        };
        check(None, "a\nb\nc\n", None, "a\nb\nc\n");
        check(None, "a\nb\nc\n", Some(2), "b\nc\n");
        check(None, "a\nb\nc", Some(2), "b\nc");
        check(None, "a\nb\n", Some(2), "a\nb\n");
        check(None, "a\nb\n", Some(9), "a\nb\n");
        check(None, "a\n", Some(0), "");
        check(None, "", Some(3), "");
        check(Some("x\ny\nz\n"), "a\nb\n", None, "x\ny\nz\na\nb\n");
        check(Some("x\ny\nz\n"), "a\nb\n", Some(1), "b\n");
        check(Some("x\ny\nz\n"), "a\nb\n", Some(2), "a\nb\n");
        check(Some("x\ny\nz\n"), "a\nb\n", Some(3), "z\na\nb\n");
        check(Some("x\ny\nz\n"), "a\nb\n", Some(9), "x\ny\nz\na\nb\n");
        check(Some("x\ny"), "z\nb\n", Some(2), "yz\nb\n");
        check(Some("x\ny\n"), "", Some(1), "y\n");
        let long = "l\n".repeat(COPY_BUFFER_SIZE_BYTES);
        check(None, &long, Some(COPY_BUFFER_SIZE_BYTES - 1), &long[2..]);
    }

    #[test]
    fn a_reader_goes_on_behind_a_rotation() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        fs::write(&path, "one\n").unwrap();
        let mut reader = Reader::open(&path, Some(0)).unwrap();
        let mut part = [0; 16];
        let mut next = || {
            let length = reader.read_on(&mut part).unwrap();
            String::from_utf8(part[..length].to_vec()).unwrap()
        };
        assert_eq!(next(), "");
        let mut old = OpenOptions::new().append(true).open(&path).unwrap();
        old.write_all(b"two\n").unwrap();
        fs::rename(&path, aside(&path)).unwrap();
        assert_eq!(next(), "two\n");
        assert_eq!(next(), "", "between two files");
        fs::write(&path, "three\n").unwrap();
        assert_eq!(next(), "three\n");
        assert_eq!(next(), "");
    }

    #[test]
    fn a_full_log_is_put_aside_and_read_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let path = directory.join("a.log");
        let mut log = LogFile::open(&path).unwrap();
        let line = [b'x'; 1 << 20];
        for _ in 0..FILE_SIZE_MAX_BYTES >> 20 {
            log.write(&line).unwrap();
        }
        log.write(b"last").unwrap();
        assert_eq!(fs::metadata(aside(&path)).unwrap().len(), FILE_SIZE_MAX_BYTES);
        let mut all = Vec::new();
        Lines::open(&path, Shown::default()).unwrap().copy(&mut all).unwrap();
        assert_eq!(all.len() as u64, FILE_SIZE_MAX_BYTES + 4);
        assert!(all.ends_with(b"last"));
    }
}
