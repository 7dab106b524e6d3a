//! The persistent map of views, with a hash that is seeded and cheap: a request looks up names in
//! several of them.

use foldhash::quality::RandomState;
use imbl::GenericHashMap;
use imbl::shared_ptr::DefaultSharedPtr;

/// A persistent map whose keys are of the control plane's making.
pub(crate) type Map<K, V> = GenericHashMap<K, V, RandomState, DefaultSharedPtr>;
