//! What can fail, said for the person who wrote the kustomization.
//!
//! [`KustomizeError`] names the file. [`Fault`] is a problem of a part that does not know its file
//! yet; whoever holds the file adds it.

use std::io;
use std::path::{Path, PathBuf};

/// Why a kustomization could not be built. Every message names the place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum KustomizeError {
    /// The directory has no kustomization file.
    #[error(
        "{}: no kustomization.yaml, kustomization.yml or Kustomization; name a directory that has \
         one",
        directory.display()
    )]
    Missing {
        /// The directory that was asked for.
        directory: PathBuf,
    },
    /// The directory has several kustomization files.
    #[error(
        "{}: more than one kustomization file ({files}); keep one of them",
        directory.display()
    )]
    Several {
        /// The directory.
        directory: PathBuf,
        /// The names of the files.
        files: String,
    },
    /// A file or directory cannot be read.
    #[error(
        "{}: read {}; correct the path or the file's permissions",
        file.display(), path.display()
    )]
    Unreadable {
        /// The kustomization that names it.
        file: PathBuf,
        /// What cannot be read.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is not YAML, or not of the form that is expected.
    #[error("{}: {what}; correct the file", place(file, *line))]
    Syntax {
        /// The file.
        file: PathBuf,
        /// The line, counted from 1; 0 if it is unknown.
        line: u64,
        /// What is wrong.
        what: String,
    },
    /// A file is outside of the directory of the kustomization that names it.
    #[error(
        "{}: {} is not in or below {}; move the file there, or include its directory as a resource",
        file.display(), path.display(), root.display()
    )]
    Outside {
        /// The kustomization.
        file: PathBuf,
        /// The file that it names.
        path: PathBuf,
        /// The directory that it must not leave.
        root: PathBuf,
    },
    /// A kustomization includes itself or a directory above it.
    #[error(
        "{}: the base {} is or contains a kustomization that includes it; remove one of the two \
         references",
        file.display(), base.display()
    )]
    Cycle {
        /// The kustomization that closes the cycle.
        file: PathBuf,
        /// The directory that it includes.
        base: PathBuf,
    },
    /// A bound of the build is reached.
    #[error("{}: more than {bound} {what}; split the kustomization", file.display())]
    Bound {
        /// The kustomization that was being read.
        file: PathBuf,
        /// What is counted.
        what: &'static str,
        /// The bound.
        bound: u64,
    },
    /// The kustomization uses what this library does not do.
    #[error(
        "{}: {field}: {what}; render it with: {}",
        file.display(), way_out(directory)
    )]
    Unsupported {
        /// The kustomization.
        file: PathBuf,
        /// The field.
        field: String,
        /// What is not supported.
        what: String,
        /// The directory that was asked for.
        directory: PathBuf,
    },
    /// A field of a kustomization cannot be followed.
    #[error("{}: {field}: {what}; {remedy}", file.display())]
    Field {
        /// The kustomization.
        file: PathBuf,
        /// The field.
        field: String,
        /// What is wrong.
        what: String,
        /// What to do about it.
        remedy: String,
    },
}

/// A file and a line of it, if the line is known.
fn place(file: &Path, line: u64) -> String {
    match line {
        0 => file.display().to_string(),
        line => format!("{}:{line}", file.display()),
    }
}

/// How kustomize itself builds a directory for Ambit, whose command is unknown here.
pub(crate) fn way_out(directory: &Path) -> String {
    let directory = directory.display();
    format!("kubectl kustomize {directory} | ambit apply -f - (or up, delete, plan)")
}

/// Why a patch does not fit an object.
#[derive(Debug, thiserror::Error)]
#[error("{what}; {remedy}")]
pub struct PatchError {
    what: String,
    remedy: String,
}

impl From<Fault> for PatchError {
    fn from(fault: Fault) -> Self {
        Self { what: fault.what, remedy: fault.remedy }
    }
}

/// What is wrong with a part, before its file is known.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// What is wrong.
    pub(crate) what: String,
    /// What to do about it.
    pub(crate) remedy: String,
    /// Whether it is correct kustomize that this library does not do.
    pub(crate) is_unsupported: bool,
}

impl Fault {
    /// A mistake in the input.
    pub(crate) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into(), is_unsupported: false }
    }

    /// What only kustomize itself does.
    pub(crate) fn unsupported(what: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: String::new(), is_unsupported: true }
    }

    /// The error, now that the file and field are known. `directory` is the one that was asked for.
    pub(crate) fn at(self, file: &Path, field: &str, directory: &Path) -> KustomizeError {
        let (file, field) = (file.to_owned(), field.to_owned());
        if self.is_unsupported {
            let directory = directory.to_owned();
            return KustomizeError::Unsupported { file, field, what: self.what, directory };
        }
        KustomizeError::Field { file, field, what: self.what, remedy: self.remedy }
    }
}
