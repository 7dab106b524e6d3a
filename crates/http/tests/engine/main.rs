//! The engine in memory: what clients and endpoints see of each other.

#![allow(clippy::unwrap_used, reason = "a test stops where something is missing")]

mod authentication;
mod authorizers;
mod compression;
mod failures;
mod grpc;
mod http1;
mod http2;
mod leaving;
mod limits;
mod mirrors;
mod opening;
mod paths;
mod pools;
mod probes;
mod rate_limit_services;
mod rate_limits;
mod routes;
mod shared;
mod tracing;
mod unread;
mod world;
