//! Decisions of the mesh as pure functions over an immutable view.
//!
//! This crate knows identities, workloads, services and policies, and answers two questions about
//! a connection: where it goes ([`View::plan`]) and whether it may ([`View::authorize`]). It never
//! opens a socket, reads a clock, spawns a task or draws a random number it was not handed.

pub mod identity;
pub mod names;
pub mod service;
pub mod workload;
