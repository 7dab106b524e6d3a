//! What a client says that it holds: a name and a version, as bytes of the message they came in.

use bytes::Bytes;

use crate::proto::envoy::service::discovery::v3::HeldVersion;

impl HeldVersion {
    /// A resource and its version; an empty one for a name that is waited for.
    pub fn new(name: &str, version: &str) -> Self {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        Self { name: bytes(name), version: bytes(version) }
    }

    /// Both as text; nothing that is not text is the name of a resource.
    pub fn texts(&self) -> Option<(&str, &str)> {
        Some((str::from_utf8(&self.name).ok()?, str::from_utf8(&self.version).ok()?))
    }
}
