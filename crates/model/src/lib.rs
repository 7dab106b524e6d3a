//! Decisions of the mesh as pure functions over an immutable view.
//!
//! This crate knows identities, workloads, services and policies, and answers two questions about
//! a connection: where it goes ([`view::View::plan`]) and whether it may come in
//! ([`view::View::authorize`]). It never opens a socket, reads a clock, spawns a task or draws a
//! random number: callers pass in the time and the randomness.
//!
//! | module | holds |
//! |---|---|
//! | [`address`] | one form for each address, and how far it reaches |
//! | [`identity`] | SPIFFE identities |
//! | [`names`] | keys of services, policies and addresses |
//! | [`workload`], [`service`], [`policy`] | the three kinds of resource that make a view |
//! | [`few`], [`intern`] | what keeps a view of 100,000 workloads small |
//! | [`view`] | the immutable view and how one change makes the next |
//! | [`plan`] | outbound: where a connection goes |
//! | [`choice`] | which endpoint of a service |
//! | [`authorize`] | inbound: whether a connection may come in, and why |
//! | [`expression`] | CEL, over what is known of a request |
//! | [`http`] | routes of requests, and policies that read requests |
//! | [`trace`] | which trace a request belongs to |
//! | [`printable`], [`markup`] | foreign text for a terminal, and within SVG or HTML |

pub mod address;
pub mod authorize;
pub mod choice;
pub mod expression;
pub mod fence;
pub mod few;
pub mod http;
pub mod identity;
mod index;
pub mod intern;
mod map;
pub mod markup;
pub mod names;
pub mod plan;
pub mod policy;
pub mod printable;
pub mod service;
mod sieve;
pub mod trace;
pub mod view;
pub mod workload;

/// Shared, immutable text: names repeat across thousands of workloads.
pub type Text = std::sync::Arc<str>;
