//! Writes a run as files in one directory, `run.json` and everything made from it, and reads it
//! back.
//!
//! Each file is written beside its place and then moved there, so a full disk leaves no
//! half-written file. `run.json` comes first: the others can be made from it again.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::figures::Figures;
use super::record::{RUN_VERSION, Run};
use super::{chart, html, table, words};

/// The record itself.
const RECORD: &str = "run.json";
/// No record is larger: hundreds of measurements have some 10 MB.
const RECORD_BYTES_MAX: u64 = 256 << 20;
/// Characters of why something is no run.
const REASON_WIDTH: usize = 200;
/// Everything in one page.
const REPORT: &str = "report.html";
/// What is seen first where the run is published.
const README: &str = "README.md";

/// A run that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Nothing is there.
    #[error(
        "there is no run at {}; give its {RECORD} or the directory that holds it", path.display()
    )]
    Absent {
        /// Where.
        path: PathBuf,
    },
    /// It cannot be opened or read.
    #[error("cannot read {}", path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A device, a pipe: it may have no end.
    #[error("{} is no file; give the {RECORD} that `ambit bench` wrote", path.display())]
    NotAFile {
        /// What.
        path: PathBuf,
    },
    /// No run is so large.
    #[error(
        "{} is larger than the {} MiB that a run may have; give the {RECORD} that `ambit bench` \
         wrote", path.display(), RECORD_BYTES_MAX >> 20
    )]
    TooLarge {
        /// What.
        path: PathBuf,
    },
    /// It is not the JSON of a run.
    #[error(
        "{} is not the JSON of a run ({reason}); give the {RECORD} that `ambit bench` wrote",
        path.display()
    )]
    NotARun {
        /// What.
        path: PathBuf,
        /// The parser's words; it quotes the file's, so no sign of them may steer a terminal.
        reason: String,
    },
    /// It was written by another ambit.
    #[error(
        "{} is of version {version}, and this ambit knows {RUN_VERSION}; read it with the ambit \
         that wrote it", path.display()
    )]
    Version {
        /// What.
        path: PathBuf,
        /// Its version.
        version: u64,
    },
}

/// A run that cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The directory cannot be made.
    #[error("cannot make the directory {} for the run's results", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be written; nothing of it is left.
    #[error("cannot write {}; make room or choose another directory", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The version field, which every version of the JSON has.
#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

impl Run {
    /// Reads a run: its file, or the directory that [`keep`] wrote.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let path = if path.is_dir() { path.join(RECORD) } else { path.to_owned() };
        let text = record(&path)?;
        let not_a_run = |error: serde_json::Error| {
            let reason = words::shortened(&words::one_line(&error.to_string()), REASON_WIDTH);
            ReadError::NotARun { path: path.clone(), reason }
        };
        let Versioned { version } = serde_json::from_slice(&text).map_err(not_a_run)?;
        if version != u64::from(RUN_VERSION) {
            return Err(ReadError::Version { path, version });
        }
        serde_json::from_slice(&text).map_err(not_a_run)
    }
}

/// A regular file's text. Pipes are not even opened: that alone can take forever.
fn record(path: &Path) -> Result<Vec<u8>, ReadError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => ReadError::Absent { path: path.to_owned() },
        _ => ReadError::Io { path: path.to_owned(), source },
    };
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(ReadError::NotAFile { path: path.to_owned() });
    }
    let mut text = Vec::new();
    let file = File::open(path).map_err(failed)?;
    // It may grow meanwhile.
    file.take(RECORD_BYTES_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > RECORD_BYTES_MAX {
        return Err(ReadError::TooLarge { path: path.to_owned() });
    }
    Ok(text)
}

/// Writes the run and all that is made from it into the directory, and says which files those are.
pub fn keep(run: &Run, directory: &Path) -> Result<Vec<PathBuf>, KeepError> {
    fs::create_dir_all(directory)
        .map_err(|source| KeepError::Directory { path: directory.to_owned(), source })?;
    let mut written = Vec::new();
    let mut write = |name: &str, text: &str| {
        let path = directory.join(name);
        match replace(&path, text) {
            Ok(()) => written.push(path),
            Err(source) => return Err(KeepError::Write { path, source }),
        }
        Ok(())
    };
    write(RECORD, &json(run))?;
    let figures = Figures::of(run);
    let charts = chart::charts(&figures);
    write(REPORT, &html::page(&figures))?;
    for chart in &charts {
        write(&chart.file_name(), &chart.standalone())?;
    }
    write(README, &readme(&figures, &charts))?;
    Ok(written)
}

/// The record, as it is kept.
pub(crate) fn json(run: &Run) -> String {
    // Not pretty: each bucket of a histogram would have four lines of its own.
    let json = serde_json::to_string(run).expect("a run has no map with keys that are no strings");
    json + "\n"
}

/// Writes it beside its place and moves it there.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        // A full disk may show only now.
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().inspect_err(|_| {
        // The error that matters is the one that is returned.
        let _ = fs::remove_file(&beside);
    })
}

fn readme(figures: &Figures<'_>, charts: &[chart::Chart]) -> String {
    let run = figures.run;
    let fence = "````";
    let table = table::text(figures).replace(fence, "'''");
    let mut text = format!(
        "# {}\n\n{} holds every measurement; [{REPORT}]({REPORT}) shows it.\n\n{fence}\n\
         {table}{fence}\n",
        words::one_line(&format!("{}: {}", run.experiment, run.title)).replace('<', "&lt;"),
        format_args!("[{RECORD}]({RECORD})"),
    );
    for chart in charts {
        let alt = chart.name().replace(['[', ']', '<', '>', '\n'], " ");
        text += &format!("\n![{alt}]({})\n", chart.file_name());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let name = format!("ambit-run-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_kept_run_is_read_as_it_was() {
        let directory = Directory::new("kept");
        let run = testing::run();
        let written = keep(&run, &directory.0).unwrap();
        assert!(written.iter().all(|it| it.metadata().unwrap().len() > 100), "{written:?}");
        assert_eq!(fs::read_dir(&directory.0).unwrap().count(), written.len());
        let read = Run::read(&directory.0).unwrap();
        assert!(read.measurements[0].load.latency == run.measurements[0].load.latency);
        assert_eq!((&read.modes, &read.cases), (&run.modes, &run.cases));
        assert!(Run::read(&directory.0.join(RECORD)).unwrap() == read);
        keep(&run, &directory.0).unwrap();
        let readme = fs::read_to_string(directory.0.join(README)).unwrap();
        assert!(readme.contains("(rate-latency.svg)") && readme.contains("times none"), "{readme}");
    }

    #[test]
    fn what_is_no_run_is_refused_in_words() {
        let directory = Directory::new("refused");
        fs::create_dir_all(&directory.0).unwrap();
        let check = |text: Option<&str>, words: &str| {
            let path = directory.0.join(RECORD);
            let _ = fs::remove_file(&path);
            if let Some(text) = text {
                fs::write(&path, text).unwrap();
            }
            let error = Run::read(&directory.0).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        };
        check(None, "there is no run at");
        check(Some("{"), "is not the JSON of a run");
        check(Some("[]"), "is not the JSON of a run");
        check(Some("{\"version\": 1}"), "is not the JSON of a run");
        let evil = "{\"version\": 1, \"ending\": \"\\u001b[31m\\n\"}";
        check(Some(evil), "unknown variant ` [31m `");
        check(Some("{\"version\": 7, \"new\": []}"), "is of version 7, and this ambit knows 1");
    }

    #[test]
    fn what_has_no_end_is_not_read() {
        let error = Run::read(Path::new("/dev/full")).unwrap_err().to_string();
        assert!(error.contains("/dev/full is no file; give the run.json"), "{error}");
        let directory = Directory::new("large");
        fs::create_dir_all(&directory.0).unwrap();
        // Nothing but a hole: it takes no room on the disk.
        let file = File::create(directory.0.join(RECORD)).unwrap();
        file.set_len(RECORD_BYTES_MAX + 1).unwrap();
        let error = Run::read(&directory.0).unwrap_err().to_string();
        assert!(error.contains("larger than the 256 MiB that a run may have"), "{error}");
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing() {
        let directory = Directory::new("unwritable");
        fs::create_dir_all(directory.0.join(REPORT).join("in the way")).unwrap();
        let error = keep(&testing::run(), &directory.0).unwrap_err();
        assert!(error.to_string().contains("report.html; make room"), "{error}");
        let mut names: Vec<_> =
            fs::read_dir(&directory.0).unwrap().map(|it| it.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [REPORT, RECORD]);
        let error = keep(&testing::run(), &directory.0.join(RECORD)).unwrap_err();
        assert!(error.to_string().contains("cannot make the directory"), "{error}");
    }
}
