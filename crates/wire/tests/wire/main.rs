//! Messages and protocols of the mesh: both ends against each other, and against noise.

#![allow(clippy::unwrap_used, reason = "a test stops where something is missing")]

mod admin;
mod conversion;
mod discovery;
mod enrolment;
mod ext_authz;
mod layer7;
mod strategies;
