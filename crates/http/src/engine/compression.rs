//! Compression of responses, for services and routes that ask for it.
//!
//! Nothing depends on it: a response that cannot be compressed is sent as it is.
//!
//! | file | says |
//! |---|---|
//! | `accepted` | which coding a client takes |
//! | `wanted` | which responses are compressed, and what that changes of their heads |
//! | `encoder` | how bytes are compressed, and what memory that takes |
//! | `room` | how much of it a pod has for all responses |
//! | `coded` | how a body is compressed on its way to the client |

mod accepted;
mod coded;
mod encoder;
pub(crate) mod room;
mod wanted;

pub(crate) use coded::Coded;
pub(crate) use encoder::Encoder;
pub(crate) use wanted::Wanted;
