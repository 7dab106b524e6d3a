//! `--image`: local commands, and images that are brought into the machine's store.
//!
//! An image is fetched and unpacked by the user's own command, before any pod needs it. Nothing
//! here starts a pod, and nothing of an image is run.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ambit_image::registry::{Connect, Credentials, PullError, PullOptions, pull};
use ambit_image::users::{self, UserError};
use ambit_image::{Limits, Options, Reference, ReferenceError, Source, SourceError, Store};

use crate::image::{ImageError, ImageMap, StoredImage, repository};
use crate::layout::Layout;
use crate::ownership::{OwnershipError, create_below};

/// What a value of `--image` begins with if it says where an image lies.
const FORMS: [&str; 3] = ["oci:", "oci-archive:", "docker-archive:"];
/// What it begins with if a registry has the image.
const REGISTRY: &str = "registry:";

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
pub struct ImageSources(BTreeMap<String, Origin>);

/// Where an image comes from.
#[derive(Clone, Debug)]
enum Origin {
    /// A file or directory.
    File(Source),
    /// A registry.
    Registry(Reference),
}

/// How registries are asked.
#[derive(Debug)]
pub struct Registries<C> {
    /// Opens the connections.
    pub connect: C,
    /// Who the user is to them.
    pub credentials: Credentials,
}

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
    /// It names no image of a registry.
    #[error("--image {argument:?} cannot be used")]
    Reference {
        /// As written.
        argument: String,
        /// Why.
        source: ReferenceError,
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
    /// The image cannot be fetched.
    #[error("--image {name}: nothing was imported")]
    Pull {
        /// The name in the manifests.
        name: String,
        /// Why.
        source: Box<PullError>,
    },
    /// The user ended the command.
    #[error("interrupted; nothing was imported")]
    Interrupted,
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
    /// Reads arguments of all forms: `NAME=COMMAND`, `NAME=oci:PATH`, `NAME=registry:REFERENCE`.
    pub fn parse<'a>(
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, ImageArgumentError> {
        let mut commands = Vec::new();
        let mut sources = BTreeMap::new();
        for argument in arguments {
            let named = argument.split_once('=').filter(|(name, _)| !name.is_empty());
            match named.map(|(name, value)| (name, origin(argument, value))) {
                Some((name, Some(origin))) => drop(sources.insert(name.to_owned(), origin?)),
                _ => commands.push(argument),
            }
        }
        Ok(Self { commands: ImageMap::parse(commands)?, sources: ImageSources(sources) })
    }
}

/// Where the value of an argument says that an image is; `None` if it is a command.
fn origin(argument: &str, value: &str) -> Option<Result<Origin, ImageArgumentError>> {
    let argument = || argument.to_owned();
    if let Some(reference) = value.strip_prefix(REGISTRY) {
        let wrong = |source| ImageArgumentError::Reference { argument: argument(), source };
        return Some(reference.parse().map(Origin::Registry).map_err(wrong));
    }
    if !FORMS.iter().any(|form| value.starts_with(form)) {
        return None;
    }
    let wrong = |source| ImageArgumentError::Source { argument: argument(), source };
    Some(Source::parse(value).map(Origin::File).map_err(wrong))
}

impl ImageSources {
    /// Whether the image of a manifest is one of them.
    pub fn contains(&self, image: &str) -> bool {
        self.0.contains_key(image) || self.0.contains_key(repository(image))
    }

    /// Whether one of them is in a registry.
    pub fn need_registries(&self) -> bool {
        self.0.values().any(|origin| matches!(origin, Origin::Registry(_)))
    }

    /// Brings them into the store of this machine, one after the other, and says what they mean
    /// then. It blocks while one is unpacked.
    pub async fn import<C: Connect>(
        &self,
        layout: &Layout,
        registries: &Registries<C>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<ImageMap, ImportError> {
        if self.0.is_empty() {
            return Ok(ImageMap::default());
        }
        create_below(layout.root(), &layout.images())?;
        self.import_into(&open(&layout.images())?, registries, progress).await
    }

    /// Looks whether they can be imported, and says what they would mean. Nothing of them stays.
    pub async fn try_import<C: Connect>(
        &self,
        layout: &Layout,
        registries: &Registries<C>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<ImageMap, ImportError> {
        if self.0.is_empty() {
            return Ok(ImageMap::default());
        }
        create_below(layout.root(), &layout.images())?;
        let scratch = open(&layout.images())?.scratch().map_err(store_failed)?;
        self.import_into(&open(&scratch.path().join("store"))?, registries, progress).await
    }

    async fn import_into<C: Connect>(
        &self,
        store: &Store,
        registries: &Registries<C>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<ImageMap, ImportError> {
        let options =
            PullOptions { credentials: registries.credentials.clone(), ..PullOptions::default() };
        let mut images = ImageMap::default();
        for (name, origin) in &self.0 {
            progress(name);
            let failed =
                |source| ImportError::Image { name: name.clone(), source: Box::new(source) };
            let image = match origin {
                Origin::File(source) => store.import(source).map_err(failed)?,
                Origin::Registry(reference) => {
                    let scratch = store.scratch().map_err(store_failed)?;
                    let connect = &registries.connect;
                    let pulled = pull(connect, reference, &options, store, scratch.path()).await;
                    let source = pulled.map_err(|source| ImportError::Pull {
                        name: name.clone(),
                        source: Box::new(source),
                    })?;
                    store.import(&source).map_err(failed)?
                }
            };
            let user = users::resolve(&image.root, &image.config.user, &Limits::default());
            let user = user.map_err(|source| ImportError::User {
                name: name.clone(),
                user: image.config.user.clone(),
                source,
            })?;
            let (digest, root, config) = (image.digest, image.root, image.config);
            let stored = StoredImage { digest, root, config, uid: user.uid, gid: user.gid };
            images.insert(name.clone(), stored);
        }
        Ok(images)
    }
}

fn open(directory: &Path) -> Result<Store, ImportError> {
    Store::open(directory, Options::default()).map_err(store_failed)
}

fn store_failed(error: ambit_image::ImageError) -> ImportError {
    ImportError::Store(Box::new(error))
}

/// The store of a machine that is not there yet, or no more.
pub(crate) enum Claim {
    /// There is none.
    Absent,
    /// It is the caller's until the value ends.
    Taken(File),
    /// An `ambit up` is filling it.
    Busy,
}

/// Takes the store of a machine that is not there, against others who would fill or remove it.
pub(crate) fn claim(layout: &Layout) -> io::Result<Claim> {
    let path = layout.images();
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Claim::Absent),
        other => other?,
    };
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(Claim::Busy),
        Err(TryLockError::Error(error)) => return Err(error),
        Ok(()) => {}
    }
    // Another command may have removed it, and a third one made another.
    let is_it = fs::metadata(&path).is_ok_and(|now| {
        file.metadata().is_ok_and(|held| (held.dev(), held.ino()) == (now.dev(), now.ino()))
    });
    Ok(if is_it { Claim::Taken(file) } else { Claim::Busy })
}

/// Removes what an `ambit up` left that was killed while it imported images. Whether there was
/// something; `None` if one is at work there.
pub(crate) fn remove_left(layout: &Layout) -> io::Result<Option<bool>> {
    match claim(layout)? {
        Claim::Absent => Ok(Some(false)),
        Claim::Busy => Ok(None),
        Claim::Taken(_held) => fs::remove_dir_all(layout.images()).map(|()| Some(true)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_a_command_or_a_source() {
        let all = [
            "shop/cart=/opt/cart -x",
            "shop/web:2=oci:/tmp/web:a",
            "db=docker-archive:db.tar",
            "cache=registry:localhost:5000/x:1",
        ];
        let read = ImageArguments::parse(all).unwrap();
        assert_eq!(read.commands, ImageMap::parse(["shop/cart=/opt/cart -x"]).unwrap());
        for (image, expected) in [
            ("shop/web:2", true),
            ("shop/web:1", false),
            ("db:17", true),
            ("cache", true),
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
            ("web=registry:", "cannot be used"),
            ("web=registry:a b", "cannot be used"),
            ("=oci:a", "none of NAME=COMMAND, NAME=oci:PATH and NAME=registry:REFERENCE"),
            ("oci:a", "none of NAME=COMMAND, NAME=oci:PATH and NAME=registry:REFERENCE"),
        ] {
            let error = ImageArguments::parse([argument]).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn what_a_killed_import_left_is_removed_unless_somebody_is_at_it() {
        let state = tempfile::tempdir().unwrap();
        let layout = Layout::new(state.path());
        assert_eq!(remove_left(&layout).unwrap(), Some(false));
        fs::create_dir_all(layout.images().join("unfinished/x")).unwrap();
        let Claim::Taken(held) = claim(&layout).unwrap() else { panic!("nobody has it") };
        assert_eq!(remove_left(&layout).unwrap(), None);
        assert!(layout.images().exists());
        drop(held);
        assert_eq!(remove_left(&layout).unwrap(), Some(true));
        assert!(!layout.images().exists());
    }
}
