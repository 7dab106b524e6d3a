//! An image of the Docker on this machine, by its Engine API: what `docker save` would write.
//!
//! The archive is read and checked like one in a file.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use http::{Request, StatusCode, header};
use http_body_util::Empty;
use hyper::body::Bytes;
use tokio::time::timeout;

use crate::daemon::{Daemon, Daemons, SocketError};
use crate::digest::Digest;
use crate::exchange::{ExchangeError, Sink, USER_AGENT, escaped, exchange};
use crate::halt::LOOK_EVERY_BYTES;
use crate::layout::FetchOptions;
use crate::reference::{Reference, ReferenceError};
use crate::source::Source;
use crate::store::Store;

const DAEMON: Daemon =
    Daemon { name: "Docker", variable: "DOCKER_HOST", usual: &["/var/run/docker.sock"] };
/// HTTP demands the name of a host.
const HOST: &str = "docker";
/// The archive, in the directory that the caller gives.
const ARCHIVE_FILE: &str = "image.tar";

/// An image as Docker knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DockerImage {
    /// By its name. Without a tag it is `latest`: Docker itself would send all tags.
    Named(Reference),
    /// By its ID.
    Id(Digest),
}

/// An image that Docker does not give.
#[derive(Debug, thiserror::Error)]
pub enum DockerError {
    /// It cannot be asked.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// There is no such image.
    #[error(
        "Docker at {socket} has no image {image}: `docker images` lists those that it has, and \
         `docker pull` fetches others"
    )]
    NoImage {
        /// Who was asked.
        socket: PathBuf,
        /// The image.
        image: DockerImage,
    },
    /// It does not answer as it should.
    #[error("cannot get {image} from Docker at {socket}")]
    Exchange {
        /// Who was asked.
        socket: PathBuf,
        /// The image.
        image: DockerImage,
        /// Why.
        source: ExchangeError,
    },
    /// An answer that is none.
    #[error("what listens at {socket} is not Docker: it answers {status}")]
    Status {
        /// Who was asked.
        socket: PathBuf,
        /// Its answer.
        status: StatusCode,
    },
    /// It takes for ever.
    #[error("{image} is not here after {} seconds", .after.as_secs())]
    Timeout {
        /// The image.
        image: DockerImage,
        /// How long was waited.
        after: Duration,
    },
    /// The archive cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Writes an image into an empty directory, as an archive.
pub async fn save(
    daemons: &Daemons,
    image: &DockerImage,
    options: &FetchOptions,
    store: &Store,
    directory: &Path,
) -> Result<Source, DockerError> {
    let after = options.timeout;
    let saved = timeout(after, ask(daemons, image, options, store, directory)).await;
    saved.map_err(|_| DockerError::Timeout { image: image.clone(), after })?
}

async fn ask(
    daemons: &Daemons,
    image: &DockerImage,
    options: &FetchOptions,
    store: &Store,
    directory: &Path,
) -> Result<Source, DockerError> {
    let path = directory.join(ARCHIVE_FILE);
    let file = File::create(&path).map_err(|source| {
        let path = path.clone();
        DockerError::Write { path, source }
    })?;
    let (stream, socket) = DAEMON.connect(daemons.docker_host.as_deref()).await?;
    let request = Request::get(format!("/images/{}/get", escaped(&image.to_string())))
        .header(header::HOST, HOST)
        .header(header::USER_AGENT, USER_AGENT)
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .expect("an escaped name is a path");
    let mut sink = WatchedFile { file, store, unseen_bytes: 0 };
    let limit = options.limits.archive_bytes;
    match exchange(stream, HOST, request, limit, &mut sink).await {
        Ok(head) if head.status == StatusCode::OK => {
            Ok(Source::at(&path).shown_as(format!("docker-daemon:{image}")))
        }
        Ok(head) => Err(DockerError::Status { socket, status: head.status }),
        Err(ExchangeError::Status { status: StatusCode::NOT_FOUND, .. }) => {
            Err(DockerError::NoImage { socket, image: image.clone() })
        }
        Err(source) => Err(DockerError::Exchange { socket, image: image.clone(), source }),
    }
}

/// A file that grows only while its file system has room.
struct WatchedFile<'w> {
    file: File,
    store: &'w Store,
    unseen_bytes: u64,
}

impl Sink for WatchedFile<'_> {
    fn take(&mut self, piece: &[u8]) -> io::Result<()> {
        self.unseen_bytes += piece.len() as u64;
        if self.unseen_bytes > LOOK_EVERY_BYTES {
            self.store.room(0).map_err(io::Error::other)?;
            self.unseen_bytes = 0;
        }
        self.file.write_all(piece)
    }
}

impl FromStr for DockerImage {
    type Err = ReferenceError;

    /// A digest alone is an ID, as for `docker run`.
    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        text.parse().map(Self::Id).or_else(|_| text.parse().map(Self::Named))
    }
}

impl fmt::Display for DockerImage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(reference) => reference.fmt(formatter),
            Self::Id(digest) => digest.fmt(formatter),
        }
    }
}
