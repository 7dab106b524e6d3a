//! Layer 7: the codec of HTTP/1.1, and the engine that is built on it.
//!
//! [`engine`] carries requests from a client to an endpoint; it knows no position and no
//! Kubernetes. Everything else is a pure codec: bytes in, values out, and back. The codec, its fuzz
//! targets and what compiles a policy's paths never open a socket, spawn a task or read a clock. A
//! head is read into values, and what is sent is written from these values: no byte of one is
//! passed through. What the grammar refuses, and why, is in `docs/design/layer-7.md`.
//!
//! | name | what it is |
//! |---|---|
//! | [`engine`] | one request, from its head to its record |
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
pub mod engine;
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
