//! Decisions of the model, by tables, by distribution and against naive references.

mod authorize;
mod canary;
mod egress;
mod judged_before;
mod plan;
mod requests;
mod view;
mod waypoint;
