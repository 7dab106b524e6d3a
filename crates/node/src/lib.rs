//! Role: the node agent, in istio-cni's place: decides which pods of its node are in the mesh,
//! programs capture in their network namespaces and hands them to the node proxy over ZDS.
//!
//! The agent holds nothing that is needed to move traffic: rules live in the kernel, connections in
//! the proxy. Killing it disturbs nothing, and a new one picks up where the old one stopped. It
//! never reads or forwards a byte of the pods' traffic, and never touches a namespace that no pod of
//! this node owns, except for its own table in the node's.

mod args;
mod capture;
mod cni;
mod enrolment;
mod metrics;
mod monitor;
mod node_side;
mod plan;
mod pod;
mod registry;
mod zds_server;

pub use args::{Args, ArgsError};
