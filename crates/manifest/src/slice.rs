//! Words of EndpointSlices.

/// The type of address that is a name, which nobody looks up.
pub const BY_NAME: &str = "FQDN";
