//! Against a control plane in this process.
