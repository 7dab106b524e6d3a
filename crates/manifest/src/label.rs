//! Label keys that Ambit acts on.

/// Enrols a namespace or pod.
pub const DATAPLANE_MODE: &str = "istio.io/dataplane-mode";
/// Names a waypoint, on a namespace, Service, pod or entry; `none` names none.
pub const USE_WAYPOINT: &str = "istio.io/use-waypoint";
