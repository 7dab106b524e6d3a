//! The whole mesh, end to end, with the shipped binary: what the proof asks for and a user
//! sees.
//!
//! Every test starts a machine of two nodes of its own, drives it with the commands that a user
//! has, and takes it down; nothing may be left of it but logs. Machines are heavy, so only one
//! lives at a time. `AMBIT_BINARY` names the binary under test; without it, it is the one cargo has
//! just built. Nothing here is skipped: without root a machine lives in a user namespace, or its
//! test fails.

mod certificates;
mod disturbance;
mod enrolment;
mod inputs;
mod lifecycle;
mod load;
mod machine;
mod policy;
mod remains;
mod transfer;
mod ztunnel;
