//! Names that EndpointSlices use: a label and an address type.

/// The label that names the Service of a slice.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The type of an address that is a name; nothing looks it up.
pub const BY_NAME: &str = "FQDN";
