//! Images made by hand, good ones and hostile ones, through the crate's public interface.

#![expect(clippy::unwrap_used, reason = "every function here is part of a test")]

mod bounds;
mod build;
mod daemons;
mod hostile;
mod layers;
mod registry;
mod sources;
mod stores;
mod user;
