//! Role: the control plane: registry, view, delta xDS and certificate authority.
//!
//! It reads objects, builds the view from them, sends it to proxies, signs their pods' certificates
//! and answers administrators. It never touches a pod's traffic, and a mesh works without it until
//! certificates expire.
//!
//! | module | does |
//! |---|---|
//! | [`config`] | flags and Istio's environment variables |
//! | `registry` | where objects come from, as a stream of events |
//! | `view_builder` | objects to the workloads, services and policies of the view |
//! | `attached` | what becomes of policies at waypoints |
//! | `kubernetes` | the API server: client, and what only a cluster needs |
//! | `world` | the current state, shared |
//! | `xds_server`, `listener` | delta discovery, and TLS below it |
//! | `callers`, `authentication` | who a token belongs to, and whether that is a node proxy |
//! | `entry_callers` | whether it is the computer of a WorkloadEntry |
//! | `ca` | the certificate authority |
//! | `jwks` | the keys of token issuers, fetched |
//! | [`acme`] | the conversation with a directory that issues certificates |
//! | `node_credentials` | tokens, roots and revocation lists for nodes |
//! | `admin`, `monitoring`, `http_server`, `metrics` | what operators see |
//! | `durable` | whole files |

pub mod acme;
mod admin;
mod attached;
mod authentication;
mod ca;
mod callers;
pub mod config;
mod delta_service;
mod durable;
mod entry_callers;
mod exchange;
mod http_server;
mod issuer;
mod jwks;
mod kubernetes;
mod listener;
mod metrics;
mod monitoring;
mod node_credentials;
mod registry;
mod role;
mod view_builder;
mod world;
mod xds_server;

pub use config::Args;
pub use role::{RunError, run};
