//! Container images as root file systems.
//!
//! An image lies in a file or directory ([`Source`]): a layout of OCI, an archive of one, or what
//! `docker save` writes. [`Store::import`] finds the image that is meant, checks the digest of each
//! of its parts, and unpacks its layers into one directory tree ([`Image::root`]), which somebody
//! else mounts; [`mount_point`] finds places in it for further mounts. [`registry`], [`docker`] and
//! [`containerd`] fetch an image from elsewhere. [`users::resolve`] finds its user in that tree.
//!
//! Images are the work of strangers. Nothing here follows a path out of the tree, makes a device,
//! or reads more than [`Limits`] say; on an error nothing is left in the store. Nothing here
//! mounts, enters a namespace, or runs anything of an image.

mod archive;
pub mod containerd;
mod content;
mod daemon;
mod digest;
pub mod docker;
mod documents;
mod entries;
mod exchange;
mod files;
mod halt;
mod layer;
mod layout;
mod limits;
mod manifest;
pub mod mount_point;
mod reference;
pub mod registry;
mod source;
mod store;
mod tree;
mod unpack;
pub mod users;

pub use archive::ArchiveError;
pub use daemon::{Daemons, SocketError};
pub use digest::{Digest, DigestError};
pub use entries::TarError;
pub use exchange::ExchangeError;
pub use files::StoreError;
pub use halt::{Halt, Stop};
pub use layer::LayerError;
pub use layout::{FetchOptions, LayoutError};
pub use limits::{Exceeded, Limits};
pub use manifest::ManifestError;
pub use reference::{Reference, ReferenceError};
pub use source::{Source, SourceError};
pub use store::{Image, ImageConfig, ImageError, Options, Scratch, Store};
pub use tree::PathError;
pub use unpack::{EntryError, Omitted, Ownership, UnpackError};
