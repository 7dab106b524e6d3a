//! What a client of SPDY does wrong.

/// What a client does wrong; its connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpdyError {
    /// The headers of a frame.
    #[error("headers of a SPDY frame: {0}")]
    Headers(&'static str),
    /// A frame.
    #[error("a SPDY frame: {0}")]
    Frame(&'static str),
}
