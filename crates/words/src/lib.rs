//! What several crates must write and read alike: ports, labels, annotations, names, short names
//! of kinds, keys of Secrets, the order to leave, durations, variables of a waypoint, directives of
//! patches, types of bodies, the processor, an error in one line, and how near two words are.
//!
//! The lowest crate: it depends on nothing and decides nothing. A word that one crate alone needs
//! stays in that crate. `cargo xtask tidy` fails on two crates that define the same word.

pub mod addresses;
pub mod annotations;
mod architecture;
pub mod departure;
pub mod durations;
mod error_chain;
pub mod exposition;
pub mod kinds;
pub mod labels;
pub mod media_types;
pub mod names;
pub mod patches;
pub mod ports;
pub mod secrets;
pub mod spelling;
pub mod variables;

pub use architecture::host_architecture;
pub use error_chain::error_chain;
