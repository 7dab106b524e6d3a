//! The parts of every proxy, below the roles and above `ambit_net`.
//!
//! A role has its own configuration, listeners and directions (a direction serves a connection from
//! accept to record). This crate is what all roles use for that.
//!
//! | module | holds |
//! |---|---|
//! | [`settings`], [`mesh`] | what a role sets, and what all of its threads read |
//! | [`lately`] | the views that were in force until a moment ago |
//! | [`views`], [`demand`], [`control_plane`] | discovery, and what connections demand from it |
//! | [`certificates`] | certificates of the proxy's workloads, and revocations |
//! | [`learned`] | what a proxy learns, for its successor |
//! | [`own`], [`handshakes`] | the workloads that a proxy acts for |
//! | [`session`] | HBONE connections of other proxies to such a workload |
//! | [`plane`] | the state of one thread |
//! | [`accept`], [`descriptors`], [`memory`] | who may have how much, from accept on |
//! | [`choice`], [`judgement`] | the inputs to the decisions of `ambit_model` |
//! | [`dial`], [`tunnel`] | connections to applications and to other proxies |
//! | [`resolver`], [`names`] | DNS: queries, and the addresses of endpoints that are names |
//! | [`connections`], [`record`], [`failure`] | live connections, and how they end |
//! | [`metrics`], [`logging`] | what an operator sees |
//!
//! Nothing here knows a role, a pod's listeners, or the process that started this one.

pub mod accept;
pub mod certificates;
pub mod choice;
pub mod connections;
pub mod control_plane;
pub mod demand;
pub mod descriptors;
pub mod dial;
pub mod failure;
pub mod handshakes;
pub mod judgement;
pub mod lately;
pub mod learned;
pub mod logging;
pub mod memory;
pub mod mesh;
pub mod metrics;
pub mod names;
pub mod own;
pub mod plane;
pub mod record;
pub mod resolver;
pub mod session;
pub mod settings;
pub mod tunnel;
pub mod views;
