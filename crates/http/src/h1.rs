//! HTTP/1.1 and HTTP/1.0 as bytes (RFC 9112).

pub mod chunks;
pub mod framing;
mod lines;
pub mod options;
pub mod parse;
pub(crate) mod trailers;
pub mod write;
