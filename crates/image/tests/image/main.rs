//! Images made by hand, good ones and hostile ones, through the crate's public interface.

mod bounds;
mod build;
mod hostile;
mod layers;
mod sources;
mod stores;
mod user;
