//! The layer-7 engine: one request from its head to its record.
//!
//! The engine knows no position ([`position::Position`]): not who accepted a connection, nor how an
//! endpoint is reached. `exchange.rs` tells a request's story; everything else here is a part of
//! it. One engine belongs to one thread, and so do its connections.
//!
//! | module | holds |
//! |---|---|
//! | `state` | what all requests of a thread share |
//! | `server` | clients' connections: detection, HTTP/1, HTTP/2 |
//! | `exchange` | a request: route, judge, choose, send, again, record |
//! | `authenticate` | the tokens of a request |
//! | [`rate_limit`] | the counts of limits, which all threads share |
//! | `upstream` | endpoints' connections, and the pool of those that are kept |
//! | [`position`], [`record`] | what surrounds an engine, and what it reports |
//! | `piece`, `inbox`, `outbox`, `halves`, `quiet`, `buffered`, `bounded` | bytes on their way |
//! | `messages` | messages of gRPC, counted |
//! | `compression` | bodies of responses, compressed on their way |
//! | `heads`, `filters`, `cors`, `answer` | heads: changed, read for decisions, made here |
//! | `held` | room for bodies that are kept whole |
//! | `unread` | bodies by HTTP/2 that have come and are not read |
//! | [`overload`] | what a pod refuses when it has too much to do |
//! | [`probe`] | health checks of endpoints |
//! | `again`, `replay`, `loads` | further attempts, and the state that endpoints have here |
//! | `copies` | bodies on their way to mirrors |

mod again;
mod answer;
mod authenticate;
mod bounded;
mod buffered;
mod compression;
mod copies;
mod cors;
mod detect;
mod exchange;
mod filters;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod halves;
mod heads;
mod held;
mod inbox;
mod loads;
mod messages;
mod outbox;
pub mod overload;
mod piece;
pub mod position;
mod prefixed;
pub mod probe;
mod quiet;
pub mod rate_limit;
pub mod record;
mod replay;
mod respond;
mod server;
mod state;
mod unread;
mod upstream;

pub use exchange::{Opened, hash_of, open};
pub use piece::Broken;
pub use prefixed::Prefixed;
pub use quiet::quiet;
pub use server::{Served, Speaks, serve};
pub use state::{Engine, Settings};
