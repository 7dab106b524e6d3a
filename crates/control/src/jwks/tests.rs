//! Keys from an issuer to what a waypoint is told.

use ambit_manifest::{Kind, ObjectKey, stored};
use serde_json::{Value, json};

use super::testing::{CANONICAL, Issuer, KEYS, authority, response};
use super::*;
use crate::metrics::Metrics;
use crate::view_builder::{Mesh, Vips};

fn put(kind: Kind, object: &Value) -> Event {
    Event::Put(stored(kind, object.to_string().as_bytes()).expect("an object"))
}

fn world() -> Arc<World> {
    let metrics = Arc::new(Metrics::new());
    let world = World::new(Mesh::sample(), Vips::default(), "/nonexistent".into(), metrics);
    world.apply(vec![put(
        Kind::Service,
        &json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "shop", "name": "web"},
            "spec": {"ports": [{"port": 80}], "selector": {"app": "web"}},
        }),
    )]);
    Arc::new(world)
}

fn authentication(rules: &Value) -> Event {
    put(
        Kind::RequestAuthentication,
        &json!({
            "apiVersion": "security.istio.io/v1", "kind": "RequestAuthentication",
            "metadata": {"namespace": "shop", "name": "jwt"}, "spec": {"jwtRules": rules},
        }),
    )
}

fn settings(kept: &std::path::Path) -> Settings {
    let networks = vec!["127.0.0.0/8".parse().expect("a network")];
    let allowed = Allowed { networks, ..Allowed::default() };
    Settings {
        refresh: Duration::from_secs(300),
        allowed,
        system_roots: None,
        roots: None,
        asks_endpoints: false,
        kept: kept.join("keys.json"),
    }
}

/// The keys that waypoints have for each rule of the service.
fn told_keys(world: &World) -> Vec<Option<String>> {
    let builder = world.read();
    let name = "shop/web.shop.svc.cluster.local".parse().expect("a name");
    let service = builder.view().http_service(&name).expect("a service");
    let rules = service.authentication.rules.iter();
    rules.map(|rule| rule.keys.as_ref().map(ToString::to_string)).collect()
}

fn state(world: &World) -> Option<IssuerKeys> {
    let builder = world.read();
    let (_, object) = builder.store().request_authentications().next()?;
    builder.store().issuer_keys(object).first()?.1.cloned()
}

#[tokio::test]
async fn keys_reach_waypoints_and_stay_while_the_issuer_is_away() {
    let (issuer, directory) = (Issuer::start().await, tempfile::tempdir().expect("a directory"));
    let world = world();
    issuer.answer("/keys", response("200 OK", KEYS));
    let rules = json!([
        {"issuer": "https://a", "jwksUri": issuer.url("/keys")},
        {"issuer": "https://b", "jwks": KEYS},
    ]);
    world.apply(vec![authentication(&rules)]);
    assert_eq!(told_keys(&world), [None, Some(KEYS.to_owned())]);
    let mut jwks =
        Jwks::new(world.clone(), authority(directory.path()), settings(directory.path()))
            .expect("roots");
    jwks.first_round().await;
    let keys = Some(CANONICAL.to_owned());
    assert_eq!(told_keys(&world), [keys.clone(), Some(KEYS.to_owned())]);
    let good = state(&world).expect("it is known");
    assert!(good.fetched.is_some() && good.problem.is_none());
    // The issuer is away: what was good stays good, and the state says so.
    issuer.answer("/keys", response("503 Service Unavailable", ""));
    let source = jwks.known.keys().next().cloned().expect("a source");
    let failed = jwks.fetcher.clone().keys(&source, Duration::from_secs(5)).await;
    jwks.take((source, failed));
    assert_eq!(told_keys(&world)[0], keys);
    let stale = state(&world).expect("it is known");
    assert_eq!(stale.fetched, good.fetched);
    assert!(stale.problem.expect("a problem").what.contains("503"));
    // Another run of control starts with them, though it cannot fetch them.
    let again = self::world();
    again.apply(vec![authentication(&rules)]);
    let mut jwks =
        Jwks::new(again.clone(), authority(directory.path()), settings(directory.path()))
            .expect("roots");
    jwks.first_round().await;
    assert_eq!(told_keys(&again)[0], keys);
    // Nobody asks for them any more.
    again.apply(vec![Event::Delete(ObjectKey::new(Kind::RequestAuthentication, "shop", "jwt"))]);
    jwks.follow();
    assert!(jwks.known.is_empty());
    assert!(told_keys(&again).is_empty());
}

#[tokio::test]
async fn without_keys_the_state_says_why_and_new_keys_arrive_by_themselves() {
    let (issuer, directory) = (Issuer::start().await, tempfile::tempdir().expect("a directory"));
    let world = world();
    let rules = json!([{"issuer": "https://a", "jwksUri": issuer.url("/keys")}]);
    world.apply(vec![authentication(&rules)]);
    let mut jwks =
        Jwks::new(world.clone(), authority(directory.path()), settings(directory.path()))
            .expect("roots");
    jwks.first_round().await;
    assert_eq!(told_keys(&world), [None]);
    let missing = state(&world).expect("it is known");
    assert!(missing.keys.is_none() && missing.problem.expect("a problem").what.contains("404"));
    issuer.answer("/keys", response("200 OK", KEYS));
    let drain = ambit_net::drain::Drain::new();
    tokio::spawn(jwks.run(drain.guard()));
    let mut changes = world.resources();
    let arrived = async {
        while told_keys(&world) == [None] {
            changes.changed().await.expect("the world is there");
        }
    };
    timeout(Duration::from_secs(30), arrived).await.expect("it asks again after a second");
    assert_eq!(told_keys(&world), [Some(CANONICAL.to_owned())]);
}

#[tokio::test]
async fn keys_that_stay_the_same_are_not_written_each_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = world();
    world.apply(vec![authentication(&json!([{"issuer": "a", "jwksUri": "https://a/"}]))]);
    let (authority, settings) = (authority(directory.path()), settings(directory.path()));
    let kept = settings.kept.clone();
    let mut jwks = Jwks::new(world.clone(), authority, settings).expect("roots");
    jwks.follow();
    let source = KeySource::Uri("https://a/".into());
    let mut is_written = |keys: &str| {
        let _absent = std::fs::remove_file(&kept);
        jwks.take((source.clone(), Ok(keys.to_owned())));
        kept.exists()
    };
    let other = r#"{"keys":[]}"#;
    for (keys, expected) in [(CANONICAL, true), (CANONICAL, false), (other, true), (other, false)] {
        assert_eq!(is_written(keys), expected, "{keys}");
    }
    jwks.kept_at = Instant::now().checked_sub(KEPT_AGAIN);
    let _absent = std::fs::remove_file(&kept);
    jwks.take((source.clone(), Ok(other.to_owned())));
    assert!(kept.exists(), "once an hour, for when it was fetched");
    std::fs::remove_file(&kept).expect("it is there");
    std::fs::create_dir(&kept).expect("a directory in its place");
    jwks.take((source.clone(), Ok(CANONICAL.to_owned())));
    std::fs::remove_dir(&kept).expect("it is empty");
    jwks.take((source, Ok(CANONICAL.to_owned())));
    assert!(kept.is_file(), "what could not be written is written next time");
}

/// The issuers that are not asked, and why.
fn left_out(world: &World) -> Vec<String> {
    let builder = world.read();
    let all = builder.store().request_authentications();
    let states = all.flat_map(|(_, object)| builder.store().issuer_keys(object));
    let problems = states.filter_map(|(_, state)| Some(state?.problem.as_ref()?.what.to_string()));
    problems.collect()
}

#[tokio::test]
async fn the_issuers_of_a_namespace_are_bounded_and_the_first_ones_stay() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = world();
    let rule = |index: usize| json!({"issuer": "a", "jwksUri": format!("https://{index:03}/")});
    let rules = |range: std::ops::Range<usize>| json!(range.map(rule).collect::<Vec<_>>());
    world.apply(vec![authentication(&rules(100..100 + NAMESPACE_SOURCES_MAX))]);
    let authority = authority(directory.path());
    let mut jwks = Jwks::new(world.clone(), authority, settings(directory.path())).expect("roots");
    jwks.follow();
    assert_eq!(left_out(&world), [""; 0]);
    // One more comes first in the alphabet, and is the one that is left out.
    world.apply(vec![authentication(&rules(99..100 + NAMESPACE_SOURCES_MAX))]);
    jwks.follow();
    let told = left_out(&world);
    assert_eq!(told, ["objects of the namespace shop name more than 16 by URL"]);
    assert!(!jwks.schedule.has(&KeySource::Uri("https://099/".into())));
    assert!(jwks.schedule.has(&KeySource::Uri("https://115/".into())));
}

#[tokio::test]
async fn keys_of_an_issuer_that_is_away_are_used_for_a_week() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = world();
    world.apply(vec![authentication(&json!([{"issuer": "a", "jwksUri": "https://a/"}]))]);
    let authority = authority(directory.path());
    let mut jwks = Jwks::new(world.clone(), authority, settings(directory.path())).expect("roots");
    jwks.follow();
    let source = KeySource::Uri("https://a/".into());
    jwks.take((source.clone(), Ok(CANONICAL.to_owned())));
    for (age, expected) in
        [(AGE_MAX.as_secs() - 60, Some(CANONICAL.to_owned())), (AGE_MAX.as_secs() + 60, None)]
    {
        jwks.known.get_mut(&source).expect("it is known").fetched = Some(unix_now() - age);
        jwks.take((source.clone(), Err(FetchError::Nowhere("a".to_owned()))));
        assert_eq!(told_keys(&world), [expected]);
    }
}
