//! Reads files and directories for a build, and keeps its bounds.
//!
//! A file must be in or below the directory of the kustomization that names it, after symbolic
//! links are resolved. A base may be elsewhere, but not around a kustomization that is being read.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use crate::error::KustomizeError;
use crate::limits::{
    BASES_DEPTH_MAX, FILE_SIZE_MAX_BYTES, FILES_MAX, KUSTOMIZATIONS_MAX, TOTAL_SIZE_MAX_BYTES,
};

/// The names of a kustomization file.
pub(crate) const NAMES: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// What a build has read so far.
#[derive(Debug, Default)]
pub(crate) struct Spent {
    kustomizations: Cell<usize>,
    files: Cell<usize>,
    bytes: Cell<u64>,
}

/// The directory of one kustomization, and those of the kustomizations that include it.
#[derive(Debug)]
pub(crate) struct Root<'a> {
    /// The directory as messages call it.
    pub(crate) shown: PathBuf,
    /// The kustomization file as messages call it.
    pub(crate) file: PathBuf,
    /// The directory without symbolic links.
    real: PathBuf,
    /// Those that include it, itself first.
    visited: Vec<PathBuf>,
    spent: &'a Spent,
}

/// Which kustomization files a directory has.
pub(crate) fn kustomizations(directory: &Path) -> Vec<&'static str> {
    NAMES.into_iter().filter(|name| directory.join(name).is_file()).collect()
}

impl<'a> Root<'a> {
    /// The directory that a build was asked for.
    pub(crate) fn first(directory: &Path, spent: &'a Spent) -> Result<Self, KustomizeError> {
        let real = real(directory).map_err(|source| KustomizeError::Unreadable {
            file: directory.to_owned(),
            path: directory.to_owned(),
            source,
        })?;
        Self::at(directory.to_owned(), real, &[], spent)
    }

    /// A directory that this kustomization includes.
    pub(crate) fn include(&self, path: &str) -> Result<Self, KustomizeError> {
        let shown = tidied(&self.shown.join(path));
        let unreadable = |source| KustomizeError::Unreadable {
            file: self.file.clone(),
            path: shown.clone(),
            source,
        };
        if Path::new(path).is_absolute() {
            return Err(unreadable(io::Error::other("a base must be named by a relative path")));
        }
        let real = real(&self.real.join(path)).map_err(unreadable)?;
        if !real.is_dir() {
            return Err(unreadable(io::Error::from(io::ErrorKind::NotADirectory)));
        }
        if self.visited.iter().any(|it| it.starts_with(&real)) {
            return Err(KustomizeError::Cycle { file: self.file.clone(), base: shown });
        }
        if self.visited.len() >= BASES_DEPTH_MAX {
            return Err(self.bound("nested bases", BASES_DEPTH_MAX as u64));
        }
        Self::at(shown, real, &self.visited, self.spent)
    }

    fn at(
        shown: PathBuf,
        real: PathBuf,
        visited: &[PathBuf],
        spent: &'a Spent,
    ) -> Result<Self, KustomizeError> {
        let file = match kustomizations(&real).as_slice() {
            [] => return Err(KustomizeError::Missing { directory: shown }),
            [name] => shown.join(name),
            names => {
                return Err(KustomizeError::Several { directory: shown, files: names.join(", ") });
            }
        };
        let visited = [std::slice::from_ref(&real), visited].concat();
        let root = Self { shown, file, real, visited, spent };
        spent.kustomizations.set(spent.kustomizations.get() + 1);
        if spent.kustomizations.get() > KUSTOMIZATIONS_MAX {
            return Err(root.bound("kustomizations", KUSTOMIZATIONS_MAX as u64));
        }
        Ok(root)
    }

    /// The directory that the build was asked for, if it is this one's.
    pub(crate) fn is_first(&self) -> bool {
        self.visited.len() == 1
    }

    /// Whether a path names a directory.
    pub(crate) fn is_directory(&self, path: &str) -> bool {
        self.real.join(path).is_dir()
    }

    /// Whether a path names anything.
    pub(crate) fn exists(&self, path: &str) -> bool {
        self.real.join(path).exists()
    }

    /// What messages call a file.
    pub(crate) fn show(&self, path: &str) -> PathBuf {
        tidied(&self.shown.join(path))
    }

    /// The text of the kustomization file.
    pub(crate) fn kustomization(&self) -> Result<String, KustomizeError> {
        let name = self.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.text(&name)
    }

    /// The text of a file.
    pub(crate) fn text(&self, path: &str) -> Result<String, KustomizeError> {
        let bytes = self.bytes(path)?;
        String::from_utf8(bytes)
            .map_err(|_| self.unreadable(path, io::ErrorKind::InvalidData.into()))
    }

    /// The content of a file.
    pub(crate) fn bytes(&self, path: &str) -> Result<Vec<u8>, KustomizeError> {
        let file = real(&self.real.join(path)).map_err(|source| self.unreadable(path, source))?;
        if !file.starts_with(&self.real) {
            return Err(KustomizeError::Outside {
                file: self.file.clone(),
                path: self.show(path),
                root: self.shown.clone(),
            });
        }
        let kind = fs::metadata(&file).map_err(|source| self.unreadable(path, source))?;
        if !kind.is_file() {
            return Err(self.unreadable(path, io::Error::other("it is no regular file")));
        }
        self.spent.files.set(self.spent.files.get() + 1);
        if self.spent.files.get() > FILES_MAX {
            return Err(self.bound("files", FILES_MAX as u64));
        }
        let mut bytes = Vec::new();
        let opened = File::open(&file).map_err(|source| self.unreadable(path, source))?;
        opened
            .take(FILE_SIZE_MAX_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|source| self.unreadable(path, source))?;
        let size = bytes.len() as u64;
        if size > FILE_SIZE_MAX_BYTES {
            return Err(self.bound("bytes in one file", FILE_SIZE_MAX_BYTES));
        }
        self.spent.bytes.set(self.spent.bytes.get() + size);
        if self.spent.bytes.get() > TOTAL_SIZE_MAX_BYTES {
            return Err(self.bound("bytes in all files", TOTAL_SIZE_MAX_BYTES));
        }
        Ok(bytes)
    }

    fn unreadable(&self, path: &str, source: io::Error) -> KustomizeError {
        KustomizeError::Unreadable { file: self.file.clone(), path: self.show(path), source }
    }

    fn bound(&self, what: &'static str, bound: u64) -> KustomizeError {
        KustomizeError::Bound { file: self.file.clone(), what, bound }
    }
}

/// A path without symbolic links. `..` goes up from where a link leads, as the system does.
fn real(path: &Path) -> io::Result<PathBuf> {
    fs::canonicalize(path)
}

/// A path that reads well: `a/../b` is `b`. For messages alone.
fn tidied(path: &Path) -> PathBuf {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir
                if matches!(tidy.components().next_back(), Some(Component::Normal(_))) =>
            {
                tidy.pop();
            }
            other => tidy.push(other),
        }
    }
    if tidy.as_os_str().is_empty() { PathBuf::from(".") } else { tidy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_tidied_for_messages() {
        for (path, expected) in
            [("a/../b", "b"), ("./a", "a"), ("../a", "../a"), ("a/..", "."), ("/a/./b", "/a/b")]
        {
            assert_eq!(tidied(Path::new(path)), Path::new(expected));
        }
    }
}
