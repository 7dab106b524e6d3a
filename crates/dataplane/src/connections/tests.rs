//! A waypoint that comes or goes while connections are open: nothing is cut at once, everything in
//! time, and what the policies deny without delay.

use ambit_model::identity::Identity;
use ambit_model::names::{PolicyName, ServiceName, entry_uid};
use ambit_model::policy::{Action, Policy, PolicyScope, Rule};
use ambit_model::service::Service;
use ambit_model::view::Change;
use ambit_model::workload::{GatewayAddress, GatewayDestination};
use ambit_net::outside::Outside;
use tokio::task::LocalSet;
use tokio::time::advance;

use super::*;
use crate::certificates::{Certificates, Clock};
use crate::demand::demand;
use crate::descriptors::Shares;
use crate::judgement::{Refused, VIEW_PATIENCE, admit};
use crate::lately::DISAGREEMENT;
use crate::own::{FromOutside, OwnWorkload};
use crate::views::tests::settings;

/// A destination, and what is published of it.
struct Bed {
    mesh: Arc<Mesh>,
    own: OwnWorkload,
    connections: Connections,
    view: View,
}

impl Bed {
    fn publish(&mut self, changes: impl IntoIterator<Item = Change>) {
        changes.into_iter().for_each(|change| self.view.apply(change));
        self.mesh.publish(self.view.clone());
    }

    async fn admit(&self, account: &str) -> Result<Entered, Refused> {
        let identity = Identity::new("cluster.local", "app", account);
        let source = Source::new(Some(identity), "10.0.0.1".parse().expect("an address"));
        let to = "10.0.0.2:8080".parse().expect("an address");
        let enter = |judged| self.connections.enter(Vec::new(), Some(judged), None);
        admit(&self.mesh, &self.own, source, to, enter).await.map(|allowed| allowed.entered)
    }

    async fn is_refused(&self, account: &str) -> bool {
        matches!(self.admit(account).await, Err(Refused::Denied(_)))
    }
}

/// The service of the destination, which names a waypoint or none.
fn service(waypoint: bool) -> Change {
    let mut service = Service::named("app", "web");
    service.waypoint = waypoint.then(|| GatewayAddress {
        destination: GatewayDestination::Hostname(ServiceName::new("app", "waypoint")),
        hbone_mtls_port: 15008,
    });
    Change::Service(service)
}

/// A policy of the namespace that waypoints judge. As an ALLOW policy it has no rule.
fn policy(action: Action) -> Change {
    let key = PolicyName::new("app", "policy");
    let rules = match action {
        Action::Allow => Vec::new(),
        Action::Deny => vec![Rule::default()],
    };
    let (scope, is_of_waypoints) = (PolicyScope::Namespace, action == Action::Allow);
    Change::Policy(Policy { key, scope, action, rules, dry_run: false, is_of_waypoints })
}

fn run(test: impl AsyncFnOnce(Bed)) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let (certificates, _asks) = Certificates::new(Clock::system());
        let (demand, _demands) = demand(false);
        let mesh = Arc::new(Mesh::new(settings(), certificates, demand));
        mesh.view_complete.send_replace(true);
        let name = WorkloadName::new("app", "web-1");
        let own = OwnWorkload {
            uid: "web-1".into(),
            netns: None,
            outside: None,
            identity: Identity::new("cluster.local", "app", "web"),
            shares: Shares::new(&mesh.descriptors, &name),
            name,
        };
        let pod = |account: &str, name: &str| {
            let mut pod = Workload::named(name, "app", name);
            (pod.service_account, pod.node) = (account.into(), "node".into());
            pod.serve(ServiceName::new("app", account), Vec::new());
            Change::Workload(pod)
        };
        let connections = Connections::new(mesh.clone());
        let judging = connections.clone();
        tokio::task::spawn_local(async move { judging.keep_judged().await });
        let mut bed = Bed { mesh, own, connections, view: View::default() };
        bed.publish([pod("web", "web-1"), pod("waypoint", "waypoint-1"), service(false)]);
        pass(DISAGREEMENT).await;
        test(bed).await;
    });
}

/// Lets time pass, and whoever waits for it act.
async fn pass(time: Duration) {
    advance(time).await;
    // The judge's own pauses.
    sleep(JUDGE_INTERVAL + COUNT_INTERVAL).await;
}

#[test]
fn what_is_open_when_a_waypoint_is_named_goes_on_past_it_for_a_time() {
    run(async |mut bed| {
        let before = bed.admit("client").await.expect("nothing is against it");
        bed.publish([service(true)]);
        let late = bed.admit("client").await.expect("its proxy has not heard of the waypoint");
        pass(DISAGREEMENT).await;
        assert!(bed.is_refused("client").await, "by now it has");
        assert!(bed.admit("waypoint").await.is_ok());
        assert_eq!((before.cut_for(), late.cut_for()), (None, None));
        pass(PAST_WAYPOINT_MAX).await;
        for it in [before, late] {
            let cut = it.cut_for().expect("it is");
            assert!(matches!(cut, CutReason::Denied(Denial::NotThroughWaypoint { .. })), "{cut}");
        }
    });
}

#[test]
fn what_is_open_of_a_workload_outside_is_its_entrys_and_ends_with_it() {
    run(async |mut bed| {
        let entry = entry_uid("Kubernetes", "app", "web-1");
        let outside = FromOutside {
            entry: entry.as_str().into(),
            address: "192.0.2.7".parse().expect("an address"),
            outside: Outside::new("/none".into()),
            disowned: bed.mesh.disowned.clone(),
        };
        let of_the_entry = |outside| {
            let name = WorkloadName::new("app", "web-1");
            OwnWorkload {
                uid: "outside".into(),
                netns: None,
                outside,
                identity: Identity::new("cluster.local", "app", "web"),
                shares: Shares::new(&bed.mesh.descriptors, &name),
                name,
            }
        };
        let outside = Some(Arc::new(outside));
        let own = Arc::new(of_the_entry(outside.clone()));
        bed.own = of_the_entry(outside);
        let mut described = Workload::named(entry, "app", "web-1");
        described.service_account = "web".into();
        bed.publish([Change::Workload(described)]);
        assert!(bed.admit("client").await.is_ok());
        let open = bed.connections.enter(vec![own], None, None);
        let of_pod = bed.connections.enter(Vec::new(), None, None);
        bed.mesh.disowned.store(true, Ordering::Relaxed);
        bed.publish([]);
        pass(DISAGREEMENT).await;
        assert_eq!(open.cut_for(), Some(CutReason::Disowned));
        assert!(bed.admit("client").await.is_err(), "nobody comes in any more");
        assert_eq!(of_pod.cut_for(), None, "a pod is none of them");
    });
}

#[test]
fn who_has_heard_before_us_that_a_waypoint_is_gone_waits_until_we_hear_it() {
    run(async |mut bed| {
        bed.publish([service(true)]);
        pass(DISAGREEMENT).await;
        let (mesh, mut view) = (bed.mesh.clone(), bed.view.clone());
        tokio::task::spawn_local(async move {
            sleep(VIEW_PATIENCE / 2).await;
            view.apply(service(false));
            mesh.publish(view);
        });
        assert!(bed.admit("client").await.is_ok());
    });
}

#[test]
fn what_came_through_a_waypoint_that_is_named_no_more_goes_on_for_a_time() {
    run(async |mut bed| {
        bed.publish([service(true), policy(Action::Allow)]);
        pass(DISAGREEMENT).await;
        let before = bed.admit("waypoint").await.expect("the waypoint has judged it");
        bed.publish([service(false)]);
        let late = bed.admit("waypoint").await.expect("the waypoint still serves");
        pass(DISAGREEMENT).await;
        assert!(bed.is_refused("waypoint").await, "the policy allows it no more than others");
        assert_eq!((before.cut_for(), late.cut_for()), (None, None));
        pass(WITHDRAWN_MAX).await;
        for it in [before, late] {
            let cut = it.cut_for().expect("it is");
            assert!(matches!(cut, CutReason::Denied(Denial::NotAllowed { .. })), "{cut}");
        }
    });
}

#[test]
fn a_policy_cuts_at_once_whatever_became_of_the_waypoint() {
    for named in [true, false] {
        run(async |mut bed| {
            bed.publish([service(!named)]);
            pass(DISAGREEMENT).await;
            let open = bed.admit(if named { "client" } else { "waypoint" }).await;
            let open = open.expect("nothing is against it");
            bed.publish([service(named)]);
            bed.publish([policy(Action::Deny)]);
            pass(Duration::ZERO).await;
            let cut = open.cut_for().expect("it is denied");
            assert!(matches!(cut, CutReason::Denied(Denial::Denied(_))), "{cut}");
            assert!(bed.is_refused("client").await);
        });
    }
}

#[test]
fn a_waypoint_that_is_named_again_is_as_before() {
    run(async |mut bed| {
        bed.publish([service(true), policy(Action::Allow)]);
        let open = bed.admit("waypoint").await.expect("the waypoint has judged it");
        bed.publish([service(false)]);
        pass(Duration::ZERO).await;
        bed.publish([service(true)]);
        pass(2 * WITHDRAWN_MAX).await;
        assert_eq!(open.cut_for(), None);
    });
}

/// A pod whose network namespace was made again keeps its uid.
#[test]
fn a_pod_is_not_another_with_its_uid() {
    run(async |bed| {
        let pod = || {
            let name = WorkloadName::new("app", "web-1");
            Arc::new(OwnWorkload {
                uid: "web-1".into(),
                netns: None,
                outside: None,
                identity: Identity::new("cluster.local", "app", "web"),
                shares: Shares::new(&bed.mesh.descriptors, &name),
                name,
            })
        };
        let (before, after) = (pod(), pod());
        let enter = |pods: &[&Arc<OwnWorkload>]| {
            bed.connections.enter(pods.iter().map(|it| Arc::clone(it)).collect(), None, None)
        };
        let (first, joined, new) = (enter(&[&before]), enter(&[&before, &after]), enter(&[&after]));
        let all_left = bed.connections.all_left(&before);
        let mut all_left = std::pin::pin!(all_left);
        for entered in [first, joined] {
            assert!(futures::poll!(all_left.as_mut()).is_pending(), "one is left");
            drop(entered);
        }
        all_left.await;
        bed.connections.cut_pod(&before);
        assert_eq!(new.cut_for(), None);
        bed.connections.cut_pod(&after);
        assert_eq!(new.cut_for(), Some(CutReason::PodGone));
        drop(new);
        bed.connections.all_left(&after).await;
    });
}
