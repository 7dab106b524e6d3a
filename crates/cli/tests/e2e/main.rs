//! The whole mesh, end to end, with the shipped binary: the promises that a user can check.
//!
//! Every test except `plan`'s, which only calculates, starts its own machine of two nodes, drives
//! it with the user's commands, and takes it down; only logs may be left of it. Machines are heavy,
//! so only one lives at a time. `AMBIT_BINARY` names the binary under test; the default is the one
//! cargo has just built. Nothing here is skipped: without root a machine lives in a user namespace,
//! or its test fails.
//!
//! `AMBIT_E2E_FULL=1` runs the same proofs at their full size, for minutes more and on a machine
//! that does nothing else: 1 GiB each way, certificates of a minute under five minutes of load, and
//! half a second for a worker to come back, with no allowance for busy processors. Without it they
//! run at the smaller sizes, which each file lists beside the full ones ([`size`]).

mod authorization;
mod autoscaling;
mod bench;
mod bookinfo;
mod bookinfo_requests;
#[path = "../shared/bookinfo_steps.rs"]
mod bookinfo_steps;
mod budgets;
mod certificates;
mod conditions;
mod disturbance;
#[path = "../shared/drill.rs"]
mod drill;
mod drills;
mod egress;
mod enrolment;
mod examples;
mod experiments;
mod findings;
#[path = "../shared/followed.rs"]
mod followed;
mod gateway;
mod greed;
mod habits;
mod health;
mod held;
mod images;
mod inputs;
mod inspect;
mod join;
mod kubectl;
mod kubectl_streams;
mod kubectl_writes;
mod kustomize;
mod lifecycle;
mod load;
mod load_tool;
mod machine;
mod nodes;
mod overload;
mod plan;
mod policy;
mod published;
mod rate_limit_services;
mod rate_limits;
mod registries;
mod remains;
mod requests;
mod reuse;
mod routed_bytes;
mod routes;
mod samples;
mod sidecars;
mod size;
#[path = "../shared/stray.rs"]
mod stray;
mod telemetry;
mod tokens;
mod traffic_policies;
mod transfer;
mod volumes;
mod way_out;
mod waypoint;
mod waypoints;
mod workloads;
mod ztunnel;
