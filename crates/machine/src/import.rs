//! `--image`: local commands, and images that are brought into the machine's store.
//!
//! An image is unpacked by the user's own command, before any pod needs it. Nothing here starts a
//! pod, and nothing of an image is run.

use std::collections::BTreeMap;

use ambit_image::users::{self, UserError};
use ambit_image::{Limits, Options, Source, SourceError, Store};

use crate::image::{ImageError, ImageMap, StoredImage, repository};
use crate::layout::Layout;
use crate::ownership::{OwnershipError, create_below};

/// What a value of `--image` begins with if it says where an image lies.
const FORMS: [&str; 3] = ["oci:", "oci-archive:", "docker-archive:"];

/// What all `--image` of a command say.
#[derive(Clone, Debug, Default)]
pub struct ImageArguments {
    /// Images that are local commands.
    pub commands: ImageMap,
    /// Images to import.
    pub sources: ImageSources,
}

/// Images to import, by the names that manifests give them.
#[derive(Clone, Debug, Default)]
pub struct ImageSources(BTreeMap<String, Source>);

/// An `--image` argument that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageArgumentError {
    /// It is no command.
    #[error(transparent)]
    Command(#[from] ImageError),
    /// It is no source.
    #[error("--image {argument:?} cannot be used")]
    Source {
        /// As written.
        argument: String,
        /// Why.
        source: SourceError,
    },
}

/// An image that is not in the store now.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The store's directory is not ours.
    #[error("cannot make the store of images")]
    Directory(#[from] OwnershipError),
    /// The store cannot be used.
    #[error("cannot open the store of images")]
    Store(#[source] Box<ambit_image::ImageError>),
    /// The image cannot be imported.
    #[error("--image {name}: nothing was imported")]
    Image {
        /// The name in the manifests.
        name: String,
        /// Why.
        source: Box<ambit_image::ImageError>,
    },
    /// The image runs as a user whom it does not know.
    #[error("--image {name}: its user {user:?} is not known")]
    User {
        /// The name in the manifests.
        name: String,
        /// As written in the image.
        user: String,
        /// Why.
        source: UserError,
    },
}

impl ImageArguments {
    /// Reads arguments of both forms, `NAME=COMMAND` and `NAME=oci:PATH`.
    pub fn parse<'a>(
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, ImageArgumentError> {
        let mut commands = Vec::new();
        let mut sources = BTreeMap::new();
        for argument in arguments {
            let source = argument.split_once('=').filter(|(name, value)| {
                !name.is_empty() && FORMS.iter().any(|form| value.starts_with(form))
            });
            let Some((name, value)) = source else {
                commands.push(argument);
                continue;
            };
            let source = Source::parse(value).map_err(|source| ImageArgumentError::Source {
                argument: argument.to_owned(),
                source,
            })?;
            sources.insert(name.to_owned(), source);
        }
        Ok(Self { commands: ImageMap::parse(commands)?, sources: ImageSources(sources) })
    }
}

impl ImageSources {
    /// Whether the image of a manifest is one of them.
    pub fn contains(&self, image: &str) -> bool {
        self.0.contains_key(image) || self.0.contains_key(repository(image))
    }

    /// Brings them into the store of this machine, one after the other, and says what they mean
    /// then. It blocks until they are unpacked.
    pub fn import(
        &self,
        layout: &Layout,
        mut progress: impl FnMut(&str),
    ) -> Result<ImageMap, ImportError> {
        let mut images = ImageMap::default();
        if self.0.is_empty() {
            return Ok(images);
        }
        create_below(layout.root(), &layout.images())?;
        let store = Store::open(&layout.images(), Options::default())
            .map_err(|error| ImportError::Store(Box::new(error)))?;
        for (name, source) in &self.0 {
            progress(name);
            let name = || name.clone();
            let image = store
                .import(source)
                .map_err(|source| ImportError::Image { name: name(), source: Box::new(source) })?;
            let user = users::resolve(&image.root, &image.config.user, &Limits::default());
            let user = user.map_err(|source| ImportError::User {
                name: name(),
                user: image.config.user.clone(),
                source,
            })?;
            let (digest, root, config) = (image.digest, image.root, image.config);
            let stored = StoredImage { digest, root, config, uid: user.uid, gid: user.gid };
            images.insert(name(), stored);
        }
        Ok(images)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_a_command_or_a_source() {
        let all =
            ["shop/cart=/opt/cart -x", "shop/web:2=oci:/tmp/web:a", "db=docker-archive:db.tar"];
        let read = ImageArguments::parse(all).unwrap();
        assert_eq!(read.commands, ImageMap::parse(["shop/cart=/opt/cart -x"]).unwrap());
        for (image, expected) in [
            ("shop/web:2", true),
            ("shop/web:1", false),
            ("db:17", true),
            ("docker.io/library/db", true),
            ("shop/cart", false),
        ] {
            assert_eq!(read.sources.contains(image), expected, "{image}");
        }
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for (argument, part) in [
            ("web=oci:", "cannot be used"),
            ("=oci:a", "neither NAME=COMMAND nor NAME=oci:PATH"),
            ("oci:a", "neither NAME=COMMAND nor NAME=oci:PATH"),
        ] {
            let error = ImageArguments::parse([argument]).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
