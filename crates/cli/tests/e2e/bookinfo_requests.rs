//! The example bookinfo behind a waypoint, on one machine.

use std::time::Duration;

use ambit_load::Report;

use crate::bookinfo_steps::{self, Place};
use crate::machine::Machine;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/");
const CLIENT: &str = "bookinfo/fortio";
/// Twelve pods start, on a machine that may be busy.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

impl Place for Machine {
    fn step(&self, name: &str) {
        self.run(&["apply", &format!("{EXAMPLE}bookinfo-steps/{name}.yaml")]);
    }

    fn curl(&self, words: &str) -> String {
        self.bash(CLIENT, &format!("curl {words}"))
    }

    fn load(&self, words: &str) -> Report {
        Machine::load(self, CLIENT, words).http()
    }

    fn metrics(&self) -> String {
        self.bash("bookinfo/waypoint", "curl -s http://127.0.0.1:15020/metrics")
    }

    fn log(&self) -> String {
        self.run(&["logs", "bookinfo/waypoint"])
    }

    fn wait(&self, what: &str, is_so: impl FnMut() -> bool) {
        Machine::wait(self, what, READY_TIMEOUT, is_so);
    }
}

#[test]
fn bookinfo_behind_a_waypoint_does_what_its_steps_say() {
    let machine = Machine::none("bookinfo-requests");
    machine.run(&["up", &format!("{EXAMPLE}bookinfo"), "--nodes", "2", "--detach"]);
    machine.step("mesh-on");
    machine.wait_until_meshed();
    bookinfo_steps::run(&machine);
    machine.down();
}
