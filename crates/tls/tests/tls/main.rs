//! Certificates, handshakes and tokens, as other crates use them.

mod authority;
mod edge;
mod handshake;
mod key_set;
mod mesh;
mod origination;
mod parsers;
mod tokens;
