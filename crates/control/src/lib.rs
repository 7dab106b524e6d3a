//! Role: the control plane: registry, view, delta xDS and certificate authority.
//!
//! | module | does |
//! |---|---|
//! | [`manifest`] | what users write, to typed objects or to errors with line and remedy |
//! | `registry` | where objects come from, as a stream of events |
//! | `view_builder` | objects to the workloads, services and policies of the view |

pub mod manifest;
mod registry;
mod view_builder;
