//! The places of tunnels on a connection: how many are taken, and since when it has none.

use std::cell::Cell;
use std::rc::Rc;

use tokio::time::Instant;

/// What the connection's tasks and tunnels know of it in common.
#[derive(Debug)]
pub(super) struct State {
    pub(super) tunnels: Cell<usize>,
    pub(super) idle_since: Cell<Instant>,
}

/// One tunnel's place on its connection.
pub(super) struct Occupied(Rc<State>);

impl Occupied {
    pub(super) fn new(state: &Rc<State>) -> Rc<Self> {
        state.tunnels.set(state.tunnels.get() + 1);
        Rc::new(Self(state.clone()))
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        let left = self.0.tunnels.get() - 1;
        self.0.tunnels.set(left);
        if left == 0 {
            self.0.idle_since.set(Instant::now());
        }
    }
}
