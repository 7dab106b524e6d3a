//! The whole mesh, end to end, with the shipped binary: what it promises and a user sees.
//!
//! Every test but `plan`'s, which only reckons, starts a machine of two nodes of its own, drives it
//! with the commands that a user has, and takes it down; nothing may be left of it but logs.
//! Machines are heavy, so only one lives at a time. `AMBIT_BINARY` names the binary under test;
//! without it, it is the one cargo has just built. Nothing here is skipped: without root a machine
//! lives in a user namespace, or its test fails.
//!
//! `AMBIT_E2E_FULL=1` runs the same proofs at their full size, for minutes more and on a machine
//! that does nothing else: 1 GiB each way, certificates of a minute under five minutes of load, and
//! half a second for a worker to come back, with no allowance for busy processors. Without it they
//! run at the sizes that stand beside the full ones in each file ([`size`]).

mod bench;
mod bookinfo;
mod certificates;
mod disturbance;
mod enrolment;
mod examples;
mod experiments;
mod findings;
mod greed;
mod held;
mod inputs;
mod lifecycle;
mod load;
mod load_tool;
mod machine;
mod plan;
mod policy;
mod remains;
mod reuse;
mod sidecars;
mod size;
#[path = "../shared/stray.rs"]
mod stray;
mod transfer;
mod ztunnel;
