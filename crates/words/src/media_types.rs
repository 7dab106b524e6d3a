//! Types of bodies that several crates read or write.

/// Kubernetes' protobuf.
pub const KUBERNETES_PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
