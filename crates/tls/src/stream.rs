//! An established TLS stream.

/// The server's end.
pub type ServerStream<IO> = Stream<tokio_rustls::server::TlsStream<IO>>;
/// The client's end.
pub type ClientStream<IO> = Stream<tokio_rustls::client::TlsStream<IO>>;

/// A TLS stream: tokio's AsyncRead and AsyncWrite (vectored).
pub struct Stream<T>(pub(crate) T);

impl<IO> ServerStream<IO> {
    /// The transport below.
    pub fn io(&self) -> &IO {
        self.0.get_ref().0
    }
}
impl<IO> ClientStream<IO> {
    /// The transport below.
    pub fn io(&self) -> &IO {
        self.0.get_ref().0
    }
}
