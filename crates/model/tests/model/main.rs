//! Decisions of the model, by tables, by distribution and against naive references.

mod authorize;
mod plan;
mod requests;
mod view;
mod waypoint;
