//! Scripted agents and workers.
