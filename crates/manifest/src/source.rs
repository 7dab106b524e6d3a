//! Reads files, directories and standard input as text, and builds kustomizations.
//!
//! Files come in the order of their names, so a run can be repeated. Nothing here may interpret the
//! text.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use ambit_kustomize::{KustomizeError, is_kustomization, is_kustomization_file};
use serde_json::Value;

use super::document::INPUT_SIZE_MAX_BYTES;
use super::{Finding, Input, Location};

/// Deepest directory below one that was named; more is a loop of symbolic links.
const DIRECTORY_DEPTH_MAX: usize = 32;
/// Endings of the files that are read from a directory, whatever their case.
const ENDINGS: &[&str] = &["yaml", "yml", "json"];

/// One thing to read objects from.
#[derive(Debug)]
pub(crate) struct Source {
    /// What messages call it.
    pub(crate) name: String,
    /// What it holds.
    pub(crate) content: Content,
}

/// What a source holds.
#[derive(Debug)]
pub(crate) enum Content {
    /// A text to parse.
    Text(String),
    /// A resource of a kustomization. It was changed on its way, so it has no lines.
    Built(Value),
}

/// What an input holds.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// The sources, in order.
    pub(crate) sources: Vec<Source>,
    /// What the user should know.
    pub(crate) warnings: Vec<Finding>,
}

/// Reads all sources of one input.
pub(crate) fn read(input: &Input) -> Result<Sources, Box<Finding>> {
    let mut read = Sources::default();
    match input {
        Input::Text { name, text } => read.text(name.clone(), text.clone()),
        Input::Stdin => {
            let text =
                read_text(io::stdin().lock()).map_err(|error| unreadable("<stdin>", &error))?;
            read.text("<stdin>".to_owned(), text);
        }
        Input::Kustomization(directory) => read.build(directory)?,
        Input::Path(path) if is_kustomization_file(path) && path.is_file() => {
            let above = path.parent().filter(|it| !it.as_os_str().is_empty());
            let directory = above.unwrap_or(Path::new("."));
            return Err(whole(
                path.display().to_string(),
                "a kustomization is built with the files that it names",
                &format!("name its directory: -k {}", directory.display()),
            ));
        }
        Input::Path(path) => {
            read.collect(path, 0)?;
            if read.sources.is_empty() && !is_kustomization(path) {
                return Err(whole(
                    path.display().to_string(),
                    "the directory holds no *.yaml, *.yml or *.json",
                    "name a directory or file with manifests",
                ));
            }
        }
    }
    Ok(read)
}

impl Sources {
    fn text(&mut self, name: String, text: String) {
        self.sources.push(Source { name, content: Content::Text(text) });
    }

    fn collect(&mut self, path: &Path, depth: usize) -> Result<(), Box<Finding>> {
        let name = path.display().to_string();
        let metadata = fs::metadata(path).map_err(|error| unreadable(&name, &error))?;
        if !metadata.is_dir() {
            // One that was named may be a pipe; in a directory nobody may ever write to it.
            if depth > 0 && !metadata.is_file() {
                return Err(unreadable(&name, &io::Error::other("it is not a regular file")));
            }
            // A file that was named is read whatever it is called.
            let text = fs::File::open(path).and_then(read_text);
            self.text(name.clone(), text.map_err(|error| unreadable(&name, &error))?);
            return Ok(());
        }
        if is_kustomization(path) {
            return self.build(path);
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
                self.collect(&path, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Builds a directory that has a kustomization.
    fn build(&mut self, directory: &Path) -> Result<(), Box<Finding>> {
        let build =
            ambit_kustomize::build(directory).map_err(|error| unbuilt(directory, &error))?;
        self.warnings.extend(build.warnings.iter().map(|it| *said(directory, it, None)));
        for resource in build.resources {
            let name = resource.origin.display().to_string();
            self.sources.push(Source { name, content: Content::Built(resource.value) });
        }
        Ok(())
    }
}

/// Why a kustomization was not built.
fn unbuilt(directory: &Path, error: &KustomizeError) -> Box<Finding> {
    let cause = std::error::Error::source(error).map(ambit_words::error_chain);
    said(directory, &error.to_string(), cause)
}

/// A finding of what is said of a kustomization, as in `place: what; remedy`.
fn said(directory: &Path, text: &str, cause: Option<String>) -> Box<Finding> {
    let (place, rest) = text.split_once(": ").unwrap_or_default();
    let (what, remedy) = rest.split_once("; ").unwrap_or((text, "correct the kustomization"));
    let what = cause.map_or_else(|| what.to_owned(), |cause| format!("{what}: {cause}"));
    let place = if place.is_empty() { directory.display().to_string() } else { place.to_owned() };
    whole(place, &what, remedy)
}

/// A finding about a whole file or directory.
fn whole(file: String, what: &str, remedy: &str) -> Box<Finding> {
    Box::new(Finding {
        location: Location { file, line: 0 },
        object: String::new(),
        field: String::new(),
        what: what.to_owned(),
        remedy: remedy.to_owned(),
    })
}

fn read_text(reader: impl io::Read) -> io::Result<String> {
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
    whole(name.to_owned(), &format!("cannot be read: {error}"), remedy)
}
