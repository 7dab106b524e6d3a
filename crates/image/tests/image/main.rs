//! Images made by hand, good ones and hostile ones, through the crate's public interface.

mod bounds;
mod build;
mod hostile;
mod layers;
mod registry;
mod sources;
mod stores;
mod user;
