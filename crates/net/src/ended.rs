//! Why a stream of HTTP/2, or its connection, is over.

use std::sync::Arc;

use ambit_wire::http2::{Fault, Reason};

/// Why a tunnel or its connection is over.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Ended {
    /// The transport failed.
    #[error("the transport failed")]
    Transport(#[source] Arc<std::io::Error>),
    /// The peer broke the protocol.
    #[error("the peer broke HTTP/2")]
    Fault(#[source] Fault),
    /// The stream was reset.
    #[error("the stream was reset: {0}")]
    Reset(Reason),
    /// The peer has not touched the stream.
    #[error("the peer closes the connection: {0}")]
    Untouched(Reason),
    /// The connection was closed.
    #[error("the connection was closed")]
    Closed,
}
