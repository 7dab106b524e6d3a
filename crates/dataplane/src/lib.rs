//! What every proxy is made of, below the roles and above `ambit_net`.
//!
//! A role brings its configuration, its listeners and its directions: what it does with a
//! connection from accept to record. Here is what all of them use for it.
//!
//! | module | holds |
//! |---|---|
//! | [`settings`], [`mesh`] | what a role sets, and what all of its threads read |
//! | [`views`], [`demand`], [`control_plane`] | discovery, and what connections ask of it |
//! | [`certificates`] | those of the workloads that a proxy acts for, and what is revoked |
//! | [`learned`] | what a proxy learns, for whoever takes its place |
//! | [`own`], [`handshakes`] | the workloads that a proxy acts for |
//! | [`plane`] | what a thread has for itself |
//! | [`accept`], [`descriptors`], [`memory`] | who may have how much, from accept on |
//! | [`choice`], [`judgement`] | what the decisions of `ambit_model` are asked with |
//! | [`dial`], [`tunnel`] | connections to applications and to other proxies |
//! | [`connections`], [`record`], [`failure`] | what lives, and what is told of it |
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
pub mod learned;
pub mod logging;
pub mod memory;
pub mod mesh;
pub mod metrics;
pub mod own;
pub mod plane;
pub mod record;
pub mod settings;
pub mod tunnel;
pub mod views;
