//! `--image`: local commands, and images that are brought into the machine's store.
//!
//! An image is fetched and unpacked by the user's own command, before any pod needs it. Nothing
//! here starts a pod, and nothing of an image is run.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;

use ambit_image::containerd::{self, ContainerdError, ContainerdImage, ContainerdImageError};
use ambit_image::docker::{self, DockerError, DockerImage};
use ambit_image::registry::{Connect, Credentials, PullError, pull};
use ambit_image::users::{self, UserError};
use ambit_image::{
    Daemons, FetchOptions, Image, Limits, Options, Reference, ReferenceError, Source, SourceError,
    Stop, Store,
};
use tokio::task::spawn_blocking;

use crate::image::{ImageError, ImageMap, StoredImage, repository};
use crate::layout::Layout;
use crate::ownership::{OwnershipError, create_below};

/// What a value of `--image` begins with if it says where an image lies.
const FORMS: [&str; 3] = ["oci:", "oci-archive:", "docker-archive:"];
/// What it begins with if a registry has the image.
const REGISTRY: &str = "registry:";
/// If the Docker on this machine has it.
const DOCKER: &str = "docker-daemon:";
/// If the containerd on this machine has it.
const CONTAINERD: &str = "containerd:";

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
    /// Another program, which is asked.
    Program(Program),
}

/// Who has an image that is in no file.
#[derive(Clone, Debug)]
enum Program {
    /// A registry.
    Registry(Reference),
    /// The Docker on this machine.
    Docker(DockerImage),
    /// The containerd on this machine.
    Containerd(ContainerdImage),
}

/// How registries are asked, and the daemons of this machine.
#[derive(Debug)]
pub struct Registries<C> {
    /// Opens the connections.
    pub connect: C,
    /// Who the user is to them.
    pub credentials: Credentials,
    /// What the user's environment says of the daemons.
    pub daemons: Daemons,
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
    /// It names no image of containerd.
    #[error("--image {argument:?} cannot be used")]
    Containerd {
        /// As written.
        argument: String,
        /// Why.
        source: ContainerdImageError,
    },
}

/// An image that does not come from where it is.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// From a registry.
    #[error(transparent)]
    Registry(#[from] PullError),
    /// From Docker.
    #[error(transparent)]
    Docker(#[from] DockerError),
    /// From containerd.
    #[error(transparent)]
    Containerd(#[from] ContainerdError),
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
    Fetch {
        /// The name in the manifests.
        name: String,
        /// Why.
        source: Box<FetchError>,
    },
    /// Another command makes or removes the store.
    #[error("the images of {state} are being made or removed by another command; try again")]
    Busy {
        /// The state directory.
        state: PathBuf,
    },
    /// There is no store, and so no machine.
    #[error("no machine at {state}; name its directory with --state")]
    NoMachine {
        /// The state directory.
        state: PathBuf,
    },
    /// The store cannot be held.
    #[error("cannot lock the images of {state}")]
    Lock {
        /// The state directory.
        state: PathBuf,
        /// Why.
        source: io::Error,
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

impl<C: Connect> Registries<C> {
    /// Writes an image that is elsewhere into a directory.
    async fn ask(
        &self,
        program: &Program,
        store: &Store,
        directory: &Path,
    ) -> Result<Source, FetchError> {
        let Self { connect, credentials, daemons } = self;
        let options = FetchOptions::default();
        Ok(match program {
            Program::Registry(reference) => {
                pull(connect, credentials, reference, &options, store, directory).await?
            }
            Program::Docker(image) => {
                docker::save(daemons, image, &options, store, directory).await?
            }
            Program::Containerd(image) => {
                containerd::pull(daemons, image, &options, store, directory).await?
            }
        })
    }
}

impl ImageArguments {
    /// Reads arguments of all forms: `NAME=COMMAND`, and `NAME=FORM:` and a place.
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
    if FORMS.iter().any(|form| value.starts_with(form)) {
        let wrong = |source| ImageArgumentError::Source { argument: argument(), source };
        return Some(Source::parse(value).map(Origin::File).map_err(wrong));
    }
    let wrong = |source| ImageArgumentError::Reference { argument: argument(), source };
    let program = if let Some(reference) = value.strip_prefix(REGISTRY) {
        reference.parse().map(Program::Registry).map_err(wrong)
    } else if let Some(image) = value.strip_prefix(DOCKER) {
        image.parse().map(Program::Docker).map_err(wrong)
    } else {
        let wrong = |source| ImageArgumentError::Containerd { argument: argument(), source };
        value.strip_prefix(CONTAINERD)?.parse().map(Program::Containerd).map_err(wrong)
    };
    Some(program.map(Origin::Program))
}

impl ImageSources {
    /// Whether the image of a manifest is one of them.
    pub fn contains(&self, image: &str) -> bool {
        self.0.contains_key(image) || self.0.contains_key(repository(image))
    }

    /// Whether one of them is in a registry.
    pub fn need_registries(&self) -> bool {
        self.0.values().any(|origin| matches!(origin, Origin::Program(Program::Registry(_))))
    }

    /// Brings them into the store that [`up_with`](crate::up_with) has made, one after the other,
    /// and says what they mean then. When `interruption` is there, it ends, and nothing goes on.
    pub async fn import<C: Connect>(
        &self,
        layout: &Layout,
        registries: &Registries<C>,
        progress: &mut dyn FnMut(&str),
        interruption: impl Future<Output = ()>,
    ) -> Result<ImageMap, ImportError> {
        if self.0.is_empty() {
            return Ok(ImageMap::default());
        }
        create_below(layout.root(), &layout.images())?;
        let interruption = pin!(interruption);
        Importer::open(&layout.images(), registries, interruption)?.all(&self.0, progress).await
    }

    /// Brings them into the store of a machine that runs. Until then nobody takes it away.
    pub async fn import_running<C: Connect>(
        &self,
        layout: &Layout,
        registries: &Registries<C>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<ImageMap, ImportError> {
        if self.0.is_empty() {
            return Ok(ImageMap::default());
        }
        let _held = share(layout)?;
        let never = pin!(std::future::pending());
        Importer::open(&layout.images(), registries, never)?.all(&self.0, progress).await
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
        let _held = share(layout)?;
        let scratch = open(&layout.images(), Stop::default())?.scratch().map_err(store_failed)?;
        let store = scratch.path().join("store");
        let never = pin!(std::future::pending());
        Importer::open(&store, registries, never)?.all(&self.0, progress).await
    }
}

/// Fetches and unpacks images until it is interrupted.
struct Importer<'i, C, I> {
    store: Arc<Store>,
    stop: Stop,
    registries: &'i Registries<C>,
    interruption: Pin<&'i mut I>,
}

impl<'i, C: Connect, I: Future<Output = ()>> Importer<'i, C, I> {
    fn open(
        store: &Path,
        registries: &'i Registries<C>,
        interruption: Pin<&'i mut I>,
    ) -> Result<Self, ImportError> {
        let stop = Stop::default();
        let store = Arc::new(open(store, stop.clone())?);
        Ok(Self { store, stop, registries, interruption })
    }

    async fn all(
        &mut self,
        origins: &BTreeMap<String, Origin>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<ImageMap, ImportError> {
        let mut images = ImageMap::default();
        for (name, origin) in origins {
            progress(name);
            let image = match origin {
                Origin::File(source) => self.unpack(name, source.clone()).await?,
                Origin::Program(program) => self.fetch(name, program).await?,
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

    /// Fetches one that is in no file, and unpacks it.
    async fn fetch(&mut self, name: &str, program: &Program) -> Result<Image, ImportError> {
        let store = self.store.clone();
        let scratch = store.scratch().map_err(store_failed)?;
        let fetched = tokio::select! {
            fetched = self.registries.ask(program, &store, scratch.path()) => fetched,
            () = &mut self.interruption => return Err(ImportError::Interrupted),
        };
        let source = fetched.map_err(|error| ImportError::Fetch {
            name: name.to_owned(),
            source: Box::new(error),
        })?;
        self.unpack(name, source).await
    }

    /// Unpacks one on a thread of its own. Its end is waited for, so that nobody writes any more.
    async fn unpack(&mut self, name: &str, source: Source) -> Result<Image, ImportError> {
        let store = self.store.clone();
        let mut unpacking = spawn_blocking(move || store.import(&source));
        let unpacked = tokio::select! {
            unpacked = &mut unpacking => unpacked,
            () = &mut self.interruption => {
                self.stop.stop();
                let _ended = unpacking.await;
                return Err(ImportError::Interrupted);
            }
        };
        let unpacked = unpacked.expect("an import does not panic");
        let source = |source| ImportError::Image { name: name.to_owned(), source };
        unpacked.map_err(|error| source(Box::new(error)))
    }
}

fn open(directory: &Path, stop: Stop) -> Result<Store, ImportError> {
    Store::open(directory, Options { stop, ..Options::default() }).map_err(store_failed)
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
    /// Another command is at it.
    Busy,
}

/// Takes the store of a machine that is not there, against others who would fill or remove it.
pub(crate) fn claim(layout: &Layout) -> io::Result<Claim> {
    let path = layout.images();
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Claim::Absent),
        other => other?,
    };
    locked(&path, file, File::try_lock)
}

/// Holds the store of a machine that is there, with others who do the same, against those who would
/// remove it.
fn share(layout: &Layout) -> Result<File, ImportError> {
    let (path, state) = (layout.images(), || layout.root().to_owned());
    let claim = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Claim::Absent),
        opened => opened.and_then(|file| locked(&path, file, File::try_lock_shared)),
    };
    match claim.map_err(|source| ImportError::Lock { state: state(), source })? {
        Claim::Taken(held) => Ok(held),
        Claim::Busy => Err(ImportError::Busy { state: state() }),
        Claim::Absent => Err(ImportError::NoMachine { state: state() }),
    }
}

fn locked(
    path: &Path,
    file: File,
    lock: impl FnOnce(&File) -> Result<(), TryLockError>,
) -> io::Result<Claim> {
    match lock(&file) {
        Err(TryLockError::WouldBlock) => return Ok(Claim::Busy),
        Err(TryLockError::Error(error)) => return Err(error),
        Ok(()) => {}
    }
    // Another command may have removed it, and a third one made another.
    let is_it = fs::metadata(path).is_ok_and(|now| {
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
            "queue=docker-daemon:nats:2",
            "mail=containerd:nats:2",
        ];
        let read = ImageArguments::parse(all).unwrap();
        assert_eq!(read.commands, ImageMap::parse(["shop/cart=/opt/cart -x"]).unwrap());
        for (image, expected) in [
            ("shop/web:2", true),
            ("shop/web:1", false),
            ("db:17", true),
            ("cache", true),
            ("queue:1", true),
            ("mail", true),
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
            ("web=docker-daemon:", "cannot be used"),
            ("web=containerd:", "cannot be used"),
            ("=oci:a", "neither NAME=COMMAND nor NAME= with one of oci:PATH"),
            ("oci:a", "neither NAME=COMMAND nor NAME= with one of oci:PATH"),
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

    #[test]
    fn who_imports_into_a_machine_shares_its_store() {
        let state = tempfile::tempdir().unwrap();
        let layout = Layout::new(state.path());
        assert!(matches!(share(&layout), Err(ImportError::NoMachine { .. })));
        assert!(!layout.images().exists(), "nothing is made for a machine that is gone");
        fs::create_dir_all(layout.images()).unwrap();
        let (first, second) = (share(&layout).unwrap(), share(&layout).unwrap());
        drop(first);
        assert!(matches!(claim(&layout).unwrap(), Claim::Busy));
        assert_eq!(remove_left(&layout).unwrap(), None);
        drop(second);
        let Claim::Taken(_held) = claim(&layout).unwrap() else { panic!("nobody has it") };
        assert!(matches!(share(&layout), Err(ImportError::Busy { .. })));
    }

    /// For images in files, which need none.
    struct Nowhere;

    impl Connect for Nowhere {
        type Stream = tokio::io::DuplexStream;

        async fn connect(&self, _: &ambit_image::registry::Endpoint) -> io::Result<Self::Stream> {
            unreachable!("no registry is asked")
        }
    }

    #[test]
    fn an_interruption_ends_the_unpacking() {
        let state = tempfile::tempdir().unwrap();
        let layout = Layout::new(state.path());
        // It is decompressed as a whole before its content is looked at, and that is nothing.
        let archive = state.path().join("a.tar.zst");
        let blocks = b"\x02\x00\x10\x00".repeat(63);
        let frame = [b"\x28\xb5\x2f\xfd\x00\x58", &blocks[..], b"\x03\x00\x10\x00"].concat();
        fs::write(&archive, frame.repeat(4096)).unwrap();
        let argument = format!("web=oci-archive:{}", archive.display());
        let sources = ImageArguments::parse([argument.as_str()]).unwrap().sources;
        let registries = Registries {
            connect: Nowhere,
            credentials: Credentials::default(),
            daemons: Daemons::default(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let imported = runtime.block_on(async {
            sources.import(&layout, &registries, &mut |_| {}, std::future::ready(())).await
        });
        assert!(matches!(imported, Err(ImportError::Interrupted)), "{imported:?}");
        let left = fs::read_dir(layout.images().join("unfinished")).unwrap().count();
        assert_eq!(left, 0);
    }
}
