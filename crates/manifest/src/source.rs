//! Reads files, directories and standard input as text.
//!
//! Files come in the order of their names, so a run can be repeated. Nothing here may interpret the
//! text.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::document::INPUT_SIZE_MAX_BYTES;
use super::{Finding, Input, Location};

/// Deepest directory below one that was named; more is a loop of symbolic links.
const DIRECTORY_DEPTH_MAX: usize = 32;
/// Endings of the files that are read from a directory, whatever their case.
const ENDINGS: &[&str] = &["yaml", "yml", "json"];

/// One text to parse.
#[derive(Debug)]
pub(crate) struct Source {
    /// What messages call it.
    pub(crate) name: String,
    /// The text.
    pub(crate) text: String,
}

/// Reads all texts of one input.
pub(crate) fn read(input: &Input) -> Result<Vec<Source>, Box<Finding>> {
    match input {
        Input::Text { name, text } => Ok(vec![Source { name: name.clone(), text: text.clone() }]),
        Input::Stdin => {
            let text =
                read_text(io::stdin().lock()).map_err(|error| unreadable("<stdin>", &error))?;
            Ok(vec![Source { name: "<stdin>".to_owned(), text }])
        }
        Input::Path(path) => {
            let mut files = Vec::new();
            collect(path, 0, &mut files)?;
            if files.is_empty() {
                return Err(Box::new(Finding {
                    location: Location { file: path.display().to_string(), line: 0 },
                    object: String::new(),
                    field: String::new(),
                    what: "the directory holds no *.yaml, *.yml or *.json".to_owned(),
                    remedy: "name a directory or file with manifests".to_owned(),
                }));
            }
            files.iter().map(|file| read_file(file)).collect()
        }
    }
}

fn collect(path: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Box<Finding>> {
    let name = path.display().to_string();
    let metadata = fs::metadata(path).map_err(|error| unreadable(&name, &error))?;
    if !metadata.is_dir() {
        // A file that was named is read whatever it is called.
        files.push(path.to_owned());
        return Ok(());
    }
    if depth > DIRECTORY_DEPTH_MAX {
        let error = io::Error::other("directories are nested too deeply");
        return Err(unreadable(&name, &error));
    }
    let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut paths: Vec<PathBuf> = match entries {
        Ok(entries) => entries.into_iter().map(|entry| entry.path()).collect(),
        Err(error) => return Err(unreadable(&name, &error)),
    };
    paths.sort();
    for path in paths {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if path.is_dir() || ENDINGS.iter().any(|it| ending.eq_ignore_ascii_case(it)) {
            collect(&path, depth + 1, files)?;
        }
    }
    Ok(())
}

fn read_file(path: &Path) -> Result<Source, Box<Finding>> {
    let name = path.display().to_string();
    let text =
        fs::File::open(path).and_then(read_text).map_err(|error| unreadable(&name, &error))?;
    Ok(Source { name, text })
}

fn read_text(reader: impl Read) -> io::Result<String> {
    let mut text = String::new();
    let read = reader.take(INPUT_SIZE_MAX_BYTES + 1).read_to_string(&mut text)?;
    if read as u64 > INPUT_SIZE_MAX_BYTES {
        let mebibytes = INPUT_SIZE_MAX_BYTES >> 20;
        return Err(io::Error::other(format!("it is larger than {mebibytes} MiB")));
    }
    Ok(text)
}

fn unreadable(name: &str, error: &io::Error) -> Box<Finding> {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "check the path",
        io::ErrorKind::PermissionDenied => "make it readable for this user",
        io::ErrorKind::InvalidData => "save it as UTF-8 text",
        _ => "make it a readable file of YAML or JSON",
    };
    Box::new(Finding {
        location: Location { file: name.to_owned(), line: 0 },
        object: String::new(),
        field: String::new(),
        what: format!("cannot be read: {error}"),
        remedy: remedy.to_owned(),
    })
}
