//! Clients and servers that mean harm, against a waypoint in this process: its own thread, sockets
//! on loopback, tunnels in mutual TLS, certificates of an authority of the test.
//!
//! `cargo test -p ambit-waypoint attack`. Each test says what the attacker gets; beside each a good
//! client is answered meanwhile, and what the engine holds in memory stays below a bound. Health
//! checks and bounds that operators set are tested in the same world.
#![allow(clippy::unwrap_used)]

mod backends;
mod bombs;
mod bounds;
mod bytes;
mod crowds;
mod edge;
mod entering;
mod floods;
mod frames;
mod health;
mod paths;
mod servers;
mod slow;
mod smuggling;
mod tenants;
mod world;
