//! A client that asks a waypoint for what another namespace has for itself.

use super::world::{GOOD, STRANGER, run};

#[test]
fn what_is_for_one_namespace_is_for_no_other() {
    run(&[], async |world| {
        assert!(world.takes("app", GOOD).await && world.takes(STRANGER, GOOD).await);
        // It knows the address, whatever its own proxy would make of it.
        world.keep_private(true);
        assert!(!world.takes(STRANGER, GOOD).await, "it is refused at once");
        assert!(world.takes("app", GOOD).await);
        world.stays_good().await;
        world.keep_private(false);
        assert!(world.takes(STRANGER, GOOD).await);
    });
}
