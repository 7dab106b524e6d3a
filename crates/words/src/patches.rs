//! The directives of Kubernetes' strategic merge patches.

/// What is done with the map, or with the list, that it is in.
pub const PATCH: &str = "$patch";
/// The only fields of the map that stay.
pub const RETAIN_KEYS: &str = "$retainKeys";
/// Begins the name of a list that says how the members of another are ordered.
pub const SET_ELEMENT_ORDER: &str = "$setElementOrder/";
/// Begins the name of a list of values that another one loses.
pub const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList/";
