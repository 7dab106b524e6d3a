//! Where an image comes from, as a user writes it: `oci:shop.tar`, `docker-archive:all.tar:cart:1`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// An image in a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub(crate) form: Form,
    pub(crate) path: PathBuf,
    /// Which of several.
    pub(crate) name: Option<String>,
    /// What people know it by, if it was fetched from elsewhere.
    shown: Option<String>,
}

/// How the image is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Whatever is found: a layout, an archive of one, or an archive of Docker.
    Any,
    /// A layout of OCI in an archive.
    Oci,
    /// What `docker save` writes.
    Docker,
}

const FORMS: [(&str, Form); 3] =
    [("oci", Form::Any), ("oci-archive", Form::Oci), ("docker-archive", Form::Docker)];

/// A text that says no source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} does not say where an image is: write oci:PATH, oci-archive:FILE or \
     docker-archive:FILE, and :NAME after it if there are several images"
)]
pub struct SourceError {
    /// As written.
    pub text: String,
}

impl Source {
    /// Reads `FORM:PATH` or `FORM:PATH:NAME`. A path has no colon.
    pub fn parse(text: &str) -> Result<Self, SourceError> {
        let wrong = || SourceError { text: text.to_owned() };
        let (form, rest) = text.split_once(':').ok_or_else(wrong)?;
        let (_, form) = FORMS.iter().find(|(name, _)| *name == form).ok_or_else(wrong)?;
        let (path, name) = match rest.split_once(':') {
            Some((path, name)) => (path, Some(name)),
            None => (rest, None),
        };
        if path.is_empty() || name.is_some_and(str::is_empty) {
            return Err(wrong());
        }
        Ok(Self { form: *form, path: path.into(), name: name.map(str::to_owned), shown: None })
    }

    /// A layout in a directory, or an archive in any of the forms, with one image.
    pub fn at(path: &Path) -> Self {
        Self { form: Form::Any, path: path.to_owned(), name: None, shown: None }
    }

    /// The same, which errors call by where it came from.
    pub(crate) fn shown_as(self, shown: String) -> Self {
        Self { shown: Some(shown), ..self }
    }
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        Self::parse(text)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(shown) = &self.shown {
            return formatter.write_str(shown);
        }
        let form = FORMS.iter().find(|(_, form)| *form == self.form);
        let form = form.map_or("oci", |(name, _)| *name);
        write!(formatter, "{form}:{}", self.path.display())?;
        self.name.iter().try_for_each(|name| write!(formatter, ":{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_a_form_a_path_and_maybe_a_name() {
        for (text, expected) in [
            ("oci:a/b.tar", Some((Form::Any, "a/b.tar", None))),
            ("oci:a:b", Some((Form::Any, "a", Some("b")))),
            (
                "oci-archive:/x:localhost:5000/y:1",
                Some((Form::Oci, "/x", Some("localhost:5000/y:1"))),
            ),
            ("docker-archive:x", Some((Form::Docker, "x", None))),
            ("oci", None),
            ("oci:", None),
            ("oci::x", None),
            ("oci:x:", None),
            ("docker://nginx", None),
            ("nginx", None),
        ] {
            let source = Source::parse(text);
            let found = source
                .as_ref()
                .ok()
                .map(|it| (it.form, it.path.to_str().unwrap(), it.name.as_deref()));
            assert_eq!(found, expected);
            if let Ok(source) = source {
                assert_eq!(source.to_string(), text);
            }
        }
    }
}
