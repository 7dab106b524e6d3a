//! An image of the containerd on this machine, by its gRPC services: the name gives a digest, and
//! the store of content gives what has it.
//!
//! The messages here have the fields that are used, with containerd's numbers.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::daemon::{Daemon, Daemons, SocketError};
use crate::digest::{Digest, DigestError};
use crate::exchange::{ANSWER_TIMEOUT, Sink, shown};
use crate::layout::{FetchOptions, HashedFile, Layout, LayoutError, Parts};
use crate::limits::{Exceeded, within};
use crate::reference::Reference;
use crate::source::Source;
use crate::store::Store;

/// The second is that of k3s, which has a containerd of its own.
const DAEMON: Daemon = Daemon {
    name: "containerd",
    variable: "CONTAINERD_ADDRESS",
    usual: &["/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock"],
};
/// Where images are looked for unless the user says: those of Kubernetes, then those of ctr and
/// nerdctl.
const NAMESPACES: [&str; 2] = ["k8s.io", "default"];
const NAMESPACE_HEADER: &str = "containerd-namespace";
/// Of one message; containerd sends content in pieces of 1 MiB.
const MESSAGE_MAX_BYTES: usize = 4 << 20;
const HEADERS_MAX_BYTES: u32 = 64 << 10;
const NAME_MAX_BYTES: usize = 512;
const GET: &str = "/containerd.services.images.v1.Images/Get";
const READ: &str = "/containerd.services.content.v1.Content/Read";

/// An image as containerd knows it: a name is any text, mostly a complete reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerdImage(String);

/// A text that names no image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} does not name an image: it is empty, too long, or has blanks")]
pub struct ContainerdImageError {
    /// As written.
    pub text: String,
}

/// An image that containerd does not give.
#[derive(Debug, thiserror::Error)]
pub enum ContainerdError {
    /// It cannot be asked.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The environment names no namespace.
    #[error("CONTAINERD_NAMESPACE is {value:?}, which is not the name of a namespace")]
    Namespace {
        /// What it says.
        value: String,
    },
    /// It does not speak gRPC.
    #[error("what listens at {socket} does not answer as containerd does")]
    Http2 {
        /// Who was asked.
        socket: PathBuf,
        /// Why.
        source: tonic::transport::Error,
    },
    /// There is no such image.
    #[error(
        "containerd at {socket} has no image {names} in namespace {namespaces}: `ctr -n NAMESPACE \
         images ls` lists those that it has, `images pull` fetches others, and \
         CONTAINERD_NAMESPACE names another namespace"
    )]
    NoImage {
        /// Who was asked.
        socket: PathBuf,
        /// What was asked for.
        names: String,
        /// Where.
        namespaces: String,
    },
    /// The image's content is not there.
    #[error(
        "containerd knows {image} in namespace {namespace} but does not have its {what}; fetch it \
         again with `ctr -n {namespace} content fetch`, or from its registry"
    )]
    NoContent {
        /// The image.
        image: String,
        /// Where.
        namespace: String,
        /// Which part of it.
        what: String,
    },
    /// It refuses.
    #[error("containerd answers {code:?} when it is asked for {what}: {message}")]
    Status {
        /// Which part.
        what: String,
        /// Its answer.
        code: Code,
        /// What it says.
        message: String,
    },
    /// An answer that does not say where the image is.
    #[error("containerd does not describe the content of {image}")]
    Descriptor {
        /// The image.
        image: String,
        /// What is wrong with the digest, if there is one.
        source: Option<DigestError>,
    },
    /// Content in another order than it was asked for.
    #[error("containerd sends byte {found} of {what} instead of {expected}")]
    Order {
        /// Which part.
        what: String,
        /// As asked.
        expected: u64,
        /// As sent.
        found: i64,
    },
    /// Too little content.
    #[error("containerd sends {found} bytes of {what} instead of {expected}")]
    Size {
        /// Which part.
        what: String,
        /// As described.
        expected: u64,
        /// As sent.
        found: u64,
    },
    /// Too much content.
    #[error("containerd sends too much of {what}")]
    Bound {
        /// Which part.
        what: String,
        /// The bound.
        source: Exceeded,
    },
    /// It says nothing.
    #[error("containerd says nothing of {what} for {} seconds", .after.as_secs())]
    Silence {
        /// Which part.
        what: String,
        /// How long was waited.
        after: Duration,
    },
    /// It takes for ever.
    #[error("{image} is not here after {} seconds", .after.as_secs())]
    Timeout {
        /// The image.
        image: ContainerdImage,
        /// How long was waited.
        after: Duration,
    },
    /// A part cannot be written.
    #[error("cannot write {what}")]
    Write {
        /// Which part.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// What it sends is not the image.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

#[derive(Clone, PartialEq, prost::Message)]
struct GetImageRequest {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct GetImageResponse {
    #[prost(message, optional, tag = "1")]
    image: Option<ImageRecord>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ImageRecord {
    #[prost(message, optional, tag = "3")]
    target: Option<Target>,
}

/// containerd's `Descriptor`.
#[derive(Clone, PartialEq, prost::Message)]
struct Target {
    #[prost(string, tag = "1")]
    media_type: String,
    #[prost(string, tag = "2")]
    digest: String,
    #[prost(int64, tag = "3")]
    size: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReadContentRequest {
    #[prost(string, tag = "1")]
    digest: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReadContentResponse {
    #[prost(int64, tag = "1")]
    offset: i64,
    #[prost(bytes = "bytes", tag = "2")]
    data: hyper::body::Bytes,
}

/// Fetches an image into an empty directory, as a layout with this image alone.
///
/// The layers of an image that is in the store already are left out. Files are written on the
/// calling thread.
pub async fn pull(
    daemons: &Daemons,
    image: &ContainerdImage,
    options: &FetchOptions,
    store: &Store,
    directory: &Path,
) -> Result<Source, ContainerdError> {
    let after = options.timeout;
    let pulled = timeout(after, layout(daemons, image, options, store, directory)).await;
    pulled.map_err(|_| ContainerdError::Timeout { image: image.clone(), after })?
}

async fn layout(
    daemons: &Daemons,
    image: &ContainerdImage,
    options: &FetchOptions,
    store: &Store,
    directory: &Path,
) -> Result<Source, ContainerdError> {
    let namespaces = namespaces(daemons.containerd_namespace.as_deref())?;
    let (channel, socket) = connect(daemons).await?;
    let (mut client, target) = find(channel, &socket, image, &namespaces).await?;
    let wrong = |source| ContainerdError::Descriptor { image: client.image.clone(), source };
    let digest: Digest = target.digest.parse().map_err(|error| wrong(Some(error)))?;
    let size = u64::try_from(target.size).map_err(|_| wrong(None))?;
    let what = format!("manifest {digest}");
    let limit = options.limits.document_bytes;
    let too_large = |source| ContainerdError::Bound { what: what.clone(), source };
    within(size, limit, "bytes").map_err(too_large)?;
    let mut document = Vec::new();
    client.read(&what, &digest, size, &mut document).await?;
    let image = client.image.clone();
    let layout = Layout { image: &image, sender: DAEMON.name, directory, store, options };
    layout.begin(&target.media_type, Some(digest), &document)?;
    let source = layout.fill(&mut client).await?;
    Ok(source.shown_as(format!("containerd:{image}")))
}

/// The one that the user names, or the usual ones.
fn namespaces(configured: Option<&str>) -> Result<Vec<MetadataValue<Ascii>>, ContainerdError> {
    let configured = configured.filter(|value| !value.is_empty());
    let names = configured.map_or(NAMESPACES.to_vec(), |value| vec![value]);
    let value = |name: &str| {
        let wrong = |_| ContainerdError::Namespace { value: name.to_owned() };
        MetadataValue::try_from(name).map_err(wrong)
    };
    names.into_iter().map(value).collect()
}

async fn connect(daemons: &Daemons) -> Result<(Channel, PathBuf), ContainerdError> {
    let (stream, socket) = DAEMON.connect(daemons.containerd_address.as_deref()).await?;
    let mut stream = Some(TokioIo::new(stream));
    // One connection, which is there already: a second one would be another daemon's.
    let connector = tower::service_fn(move |_: Uri| {
        let taken = stream.take();
        std::future::ready(taken.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
    });
    let endpoint =
        Endpoint::from_static("http://containerd").http2_max_header_list_size(HEADERS_MAX_BYTES);
    let connected = timeout(ANSWER_TIMEOUT, endpoint.connect_with_connector(connector)).await;
    let connected = connected.map_err(|_| silent("the connection"))?;
    match connected {
        Ok(channel) => Ok((channel, socket)),
        Err(source) => Err(ContainerdError::Http2 { socket, source }),
    }
}

/// The namespaces in their order, and in each the name as it is written before its complete form.
async fn find(
    channel: Channel,
    socket: &Path,
    image: &ContainerdImage,
    namespaces: &[MetadataValue<Ascii>],
) -> Result<(Client, Target), ContainerdError> {
    let names = image.names();
    for namespace in namespaces {
        for name in &names {
            let (namespace, image) = (namespace.clone(), name.clone());
            let client = Client { channel: channel.clone(), namespace, image };
            if let Some(record) = client.get().await? {
                let image = name.clone();
                let target = record.target;
                let target = target.ok_or(ContainerdError::Descriptor { image, source: None })?;
                return Ok((client, target));
            }
        }
    }
    let namespaces: Vec<_> = namespaces.iter().filter_map(|it| it.to_str().ok()).collect();
    Err(ContainerdError::NoImage {
        socket: socket.to_owned(),
        names: names.join(" or "),
        namespaces: namespaces.join(" or "),
    })
}

/// Asks for one image of one namespace.
struct Client {
    channel: Channel,
    namespace: MetadataValue<Ascii>,
    image: String,
}

type Grpc = tonic::client::Grpc<Channel>;

impl Client {
    /// What containerd knows of the image; `None` if it knows none of this name.
    async fn get(&self) -> Result<Option<ImageRecord>, ContainerdError> {
        let (what, message) = (&self.image, GetImageRequest { name: self.image.clone() });
        let mut grpc = self.ready(what).await?;
        let codec = ProstCodec::<_, GetImageResponse>::default();
        let path = PathAndQuery::from_static(GET);
        let answer = answered(what, grpc.unary(self.request(message), path, codec)).await?;
        match answer {
            Ok(response) => Ok(Some(response.into_inner().image.unwrap_or_default())),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(refused(what, &status)),
        }
    }

    /// Content of this size. The caller compares its digest.
    async fn read(
        &self,
        what: &str,
        digest: &Digest,
        size: u64,
        sink: &mut impl Sink,
    ) -> Result<(), ContainerdError> {
        let mut grpc = self.ready(what).await?;
        let request = self.request(ReadContentRequest { digest: digest.to_string() });
        let codec = ProstCodec::<_, ReadContentResponse>::default();
        let path = PathAndQuery::from_static(READ);
        let answer = answered(what, grpc.server_streaming(request, path, codec)).await?;
        let failed = |status: Status| match status.code() {
            Code::NotFound => self.no_content(what),
            _ => refused(what, &status),
        };
        let mut stream = answer.map_err(failed)?.into_inner();
        let mut count = 0;
        while let Some(message) = answered(what, stream.message()).await?.map_err(failed)? {
            let ReadContentResponse { offset, data } = message;
            if u64::try_from(offset) != Ok(count) {
                let (what, expected, found) = (what.to_owned(), count, offset);
                return Err(ContainerdError::Order { what, expected, found });
            }
            count += data.len() as u64;
            let what = || what.to_owned();
            within(count, size, "bytes")
                .map_err(|source| ContainerdError::Bound { what: what(), source })?;
            sink.take(&data).map_err(|source| ContainerdError::Write { what: what(), source })?;
        }
        if count == size {
            return Ok(());
        }
        Err(ContainerdError::Size { what: what.to_owned(), expected: size, found: count })
    }

    async fn ready(&self, what: &str) -> Result<Grpc, ContainerdError> {
        let grpc = Grpc::new(self.channel.clone());
        let mut grpc = grpc.max_decoding_message_size(MESSAGE_MAX_BYTES);
        let ready = answered(what, grpc.ready()).await?;
        ready.map_err(|error| refused(what, &Status::from_error(Box::new(error))))?;
        Ok(grpc)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert(NAMESPACE_HEADER, self.namespace.clone());
        request
    }

    fn no_content(&self, what: &str) -> ContainerdError {
        let namespace = self.namespace.to_str().unwrap_or_default().to_owned();
        let (image, what) = (self.image.clone(), what.to_owned());
        ContainerdError::NoContent { image, namespace, what }
    }
}

impl Parts for Client {
    type Error = ContainerdError;

    async fn fetch(
        &mut self,
        what: &str,
        digest: &Digest,
        size: u64,
        file: &mut File,
    ) -> Result<Digest, ContainerdError> {
        let mut sink = HashedFile::new(file);
        self.read(what, digest, size, &mut sink).await?;
        Ok(sink.digest())
    }
}

async fn answered<T>(what: &str, answer: impl Future<Output = T>) -> Result<T, ContainerdError> {
    timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| silent(what))
}

fn silent(what: &str) -> ContainerdError {
    ContainerdError::Silence { what: what.to_owned(), after: ANSWER_TIMEOUT }
}

fn refused(what: &str, status: &Status) -> ContainerdError {
    let (what, message) = (what.to_owned(), shown(status.message()));
    ContainerdError::Status { what, code: status.code(), message }
}

impl ContainerdImage {
    /// As written, and completed if it can be.
    fn names(&self) -> Vec<String> {
        let complete = self.0.parse::<Reference>().map(|reference| reference.to_string());
        let complete = complete.ok().filter(|complete| *complete != self.0);
        [self.0.clone()].into_iter().chain(complete).collect()
    }
}

impl FromStr for ContainerdImage {
    type Err = ContainerdImageError;

    fn from_str(text: &str) -> Result<Self, ContainerdImageError> {
        let is_blank = |letter: char| letter.is_control() || letter.is_whitespace();
        if text.is_empty() || text.len() > NAME_MAX_BYTES || text.contains(is_blank) {
            return Err(ContainerdImageError { text: text.to_owned() });
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for ContainerdImage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_asked_as_written_and_then_completed() {
        for (text, expected) in [
            ("nginx", &["nginx", "docker.io/library/nginx:latest"][..]),
            ("ghcr.io/a/b:1", &["ghcr.io/a/b:1"]),
            ("import-2026:web:1", &["import-2026:web:1"]),
        ] {
            assert_eq!(text.parse::<ContainerdImage>().unwrap().names(), expected);
        }
        for text in ["", "a b", "a\nb", &"a".repeat(513)] {
            assert!(text.parse::<ContainerdImage>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_users_namespace_is_the_only_one() {
        let names = |configured| {
            let found = namespaces(configured).map_err(|error| error.to_string())?;
            Ok::<_, String>(found.iter().map(|it| it.to_str().unwrap().to_owned()).collect())
        };
        assert_eq!(names(None), Ok(vec!["k8s.io".to_owned(), "default".to_owned()]));
        assert_eq!(names(Some("")), names(None));
        assert_eq!(names(Some("moby")), Ok(vec!["moby".to_owned()]));
        assert!(names(Some("a\nb")).unwrap_err().contains("CONTAINERD_NAMESPACE"));
    }
}
