//! Role: the control plane: registry, view, delta xDS and certificate authority.
//!
//! | module | does |
//! |---|---|
//! | [`manifest`] | what users write, to typed objects or to errors with line and remedy |

pub mod manifest;
