//! Namespaces, links, rules, captures and descriptors against the real kernel.

#![allow(clippy::unwrap_used, reason = "a test stops where something is missing")]

mod capture;
mod descriptors;
mod kernel_path;
mod namespaces;
mod nftables;
mod world;
