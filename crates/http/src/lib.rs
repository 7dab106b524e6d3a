//! HTTP/1.1 as a pure codec: bytes in, values out, and back.
//!
//! The layer-7 engine is built on this crate; so are its fuzz targets and what compiles a policy's
//! paths. It must never open a socket, spawn a task, read a clock, or pass bytes of a head through:
//! a head is read into values, and what is sent is written from these values. What the grammar
//! refuses, and why, is in `docs/design/layer-7.md`.
//!
//! | name | what it is |
//! |---|---|
//! | [`Fields`] | header fields and trailers: names as received, found without regard to case |
//! | [`RequestHead`], [`ResponseHead`] | heads, of which no illegal one can be made |
//! | [`Authority`] | host and port |
//! | [`Path`] | path and query, and Istio's normalisation of paths |
//! | [`h1::parse`] | heads from a buffer |
//! | [`h1::framing`] | how long a body is, and what else concerns one connection alone |
//! | [`h1::chunks`] | the chunked coding, both ways |
//! | [`h1::write`] | heads into a buffer |
//! | [`Refused`] | why something is refused: the section of the RFC, and the status to answer |

mod authority;
mod fields;
mod grammar;
pub mod h1;
mod head;
mod path;
mod refused;

pub use self::{
    authority::Authority,
    fields::{Field, FieldError, FieldLimits, Fields, Name, known::Known},
    head::{Method, Reason, RequestHead, ResponseHead, Scheme, Status, Target, Version},
    path::{Normalisation, Path},
    refused::Refused,
};
