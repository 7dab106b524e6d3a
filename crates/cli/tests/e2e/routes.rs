//! How soon a changed route is obeyed on one machine, with 5,000 other routes in the same waypoint,
//! under the load of the drills.

use serde_json::json;

use crate::drill::Outcome;
use crate::drills::{start_load, with_waypoint};
use crate::followed::{LOAD_S, Routes, asking, change_all, now, tell};
use crate::load::Load;

const ROUTES: Routes = Routes { namespace: "app", port: 80 };

#[test]
fn a_changed_route_is_obeyed_soon_and_no_request_is_lost() {
    let machine = with_waypoint("route-change", 1);
    machine.apply(&ROUTES.others().concat());
    machine.apply(&ROUTES.measured(0));
    let loads = start_load(&machine, LOAD_S);
    let seen = machine.load("client/load", &asking("http://web.app/?size=20"));
    let parent = json!({"group": "", "kind": "Service", "name": "web", "port": ROUTES.port});
    let answered = change_all(|edition| {
        let rules: serde_json::Value =
            serde_json::from_str(&ROUTES.rules(edition)).expect("it is JSON");
        let route = json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": {"name": "measured", "namespace": ROUTES.namespace},
            "spec": {"parentRefs": [parent], "rules": rules},
        });
        machine.ask(async |client| client.apply(vec![route.clone()], false).await);
        now()
    });
    let seen = seen.seen();
    let outcome = Outcome::new(loads.map(Load::http));
    tell(&answered, &seen);
    eprintln!("{}", outcome.row("a route changes"));
    outcome.assert_whole("a route changes");
    machine.down();
}
