//! Where the agent learns of pods and namespaces, and where it reports which pods are captured.
//!
//! `files` reads the directory that `ambit up` writes. Nothing here decides about a pod.

pub(crate) mod files;
pub(crate) mod object;
