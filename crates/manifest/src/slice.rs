//! Names that EndpointSlices use: a label and an address type.

/// The type of address that is a name, which nobody looks up.
pub const BY_NAME: &str = "FQDN";
