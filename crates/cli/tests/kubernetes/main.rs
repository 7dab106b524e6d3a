//! The mesh on a real cluster, end to end, as the chart installs it.
//!
//! `cargo xtask e2e kubernetes` builds and starts the cluster, installs the chart and runs these
//! tests; `AMBIT_KUBERNETES` is the cluster's state directory. Without it they fail, because a
//! silently skipped test proves nothing; they are not part of the ordinary `cargo test`. Every test
//! works in its own namespaces and deletes them, several at a time; a test that disturbs the mesh
//! has the cluster to itself. Ignored tests are for a release: `--deep` runs them.

#![expect(clippy::unwrap_used, reason = "every function here is part of a test")]

mod acme;
mod bench;
mod bookinfo;
#[path = "../shared/bookinfo_steps.rs"]
mod bookinfo_steps;
mod check;
mod cluster;
mod disturbance;
#[path = "../shared/drill.rs"]
mod drill;
mod drills;
mod edge;
mod enrolment;
#[path = "../shared/followed.rs"]
mod followed;
mod install;
mod istio;
mod load;
mod migration;
mod outside;
mod policy;
mod routes;
mod scale;
#[path = "../shared/stray.rs"]
mod stray;
mod upgrade;
mod waypoint;
