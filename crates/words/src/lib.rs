//! What several crates must write and read alike: ports, labels, annotations, names, the order to
//! leave, durations, and an error in one line.
//!
//! The lowest crate: it depends on nothing and decides nothing. A word that one crate alone needs
//! stays in that crate. `cargo xtask tidy` fails on two crates that define the same word.

pub mod addresses;
pub mod annotations;
pub mod departure;
pub mod durations;
mod error_chain;
pub mod exposition;
pub mod labels;
pub mod names;
pub mod ports;

pub use error_chain::error_chain;
