//! Paths that two readers could read in two ways, against policies: what routes, policies and
//! endpoints see is the same, whatever the normalisation.

use ambit_http::engine::Settings;
use ambit_http::{Normalisation, Path};
use ambit_model::http::matching::{Match, PathMatch};
use ambit_model::http::policy::Action;

use crate::authorizers::{OK, paths, policy};
use crate::world::{Bed, backend, rule, run_with};

const ALL: [Normalisation; 4] = [
    Normalisation::None,
    Normalisation::Base,
    Normalisation::MergeSlashes,
    Normalisation::DecodeAndMergeSlashes,
];

/// Ways to write `/admin/x`, or something that a careless server takes for it.
const CONFUSING: [&str; 30] = [
    "/admin/x",
    "/Admin/x",
    "/ADMIN/x",
    "/%61dmin/x",
    "/%61%64%6D%69%6E/x",
    "/%2561dmin/x",
    "/admin%2Fx",
    "/admin%2fx",
    "/admin%5Cx",
    "/admin%252Fx",
    "/admin\\x",
    "//admin/x",
    "/./admin/x",
    "/public/../admin/x",
    "/public/..//admin/x",
    "/public/%2e%2e/admin/x",
    "/public/%2E./admin/x",
    "/public/.%2e/admin/x",
    "/public%2f..%2fadmin/x",
    "/public/..%2fadmin/x",
    "/public/..%5cadmin/x",
    "/public\\..\\admin\\x",
    "/public/%252e%252e/admin/x",
    "/public/..;/admin/x",
    "/public/..;a=b/admin/x",
    "/admin;a=b/x",
    "/;/admin/x",
    "/public//../admin/x",
    "/admin/../admin/x",
    "/../../admin/x",
];

/// What an endpoint heard: the path, as the bytes that it was sent.
fn heard(bed: &Bed, told: &str) -> Option<String> {
    let line = told.lines().next()?;
    assert!(line.ends_with(" HTTP/1.1"), "{line}");
    let path = line.split(' ').nth(1).unwrap().to_owned();
    let record = bed.last();
    assert_eq!(record.head.unwrap().path().unwrap().as_str(), path, "what was judged is sent");
    Some(path)
}

/// Asks for each of these with each normalisation; `check` sees what came of it: the path, whether
/// the request passed, and which backend heard it.
fn check_all(policies: &[(Action, &[&str])], check: impl Fn(&str, Normalisation, bool)) {
    for how in ALL {
        let settings = Settings { normalisation: how, ..Settings::default() };
        run_with(settings, async |bed| {
            let admin = bed.hears("admin-1", OK);
            let web = bed.hears("web-1", OK);
            let to_admin = Match { path: Some(PathMatch::Segments("/admin".into())), ..any() };
            let mut routed = rule();
            routed.matches = vec![to_admin];
            if let ambit_model::http::rule::Action::Forward { backends, .. } = &mut routed.action {
                *backends = vec![backend("admin")];
            }
            bed.world.rules.borrow_mut().extend([routed, rule()]);
            *bed.world.request_policies.borrow_mut() = policies
                .iter()
                .map(|(action, patterns)| policy("p", action.clone(), vec![paths(patterns)]))
                .collect();
            for target in CONFUSING {
                admin.borrow_mut().clear();
                web.borrow_mut().clear();
                let request =
                    format!("GET {target} HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n");
                let answer = bed.ask(&request).await;
                let passed = answer.starts_with("HTTP/1.1 200 ");
                let refused = ["HTTP/1.1 400 ", "HTTP/1.1 403 "];
                assert!(
                    passed || refused.iter().any(|it| answer.starts_with(it)),
                    "{target}: {answer}"
                );
                let (to_admin, to_web) = (admin.borrow().clone(), web.borrow().clone());
                assert_eq!(passed, !(to_admin + &to_web).is_empty(), "{target}: {answer}");
                if !passed {
                    check(target, how, false);
                    continue;
                }
                // The route that was taken is the one of the path that was sent.
                let is_admin = !admin.borrow().is_empty();
                let told = if is_admin { admin.borrow().clone() } else { web.borrow().clone() };
                let sent = heard(bed, &told).unwrap();
                let is_below = |of: &str| sent == of || sent.starts_with(&format!("{of}/"));
                assert_eq!(is_admin, is_below("/admin"), "{target} as {sent}");
                // A second proxy with the same normalisation changes nothing more.
                let mut again = Path::parse(sent.as_bytes()).unwrap();
                again.normalise(how).unwrap();
                assert_eq!(again.as_str(), sent, "{target}");
                check(&sent, how, true);
            }
        });
    }
}

fn any() -> Match {
    Match {
        path: None,
        method: None,
        scheme: None,
        authority: None,
        headers: Vec::new(),
        parameters: Vec::new(),
        client_namespace: None,
        claims: Vec::new(),
    }
}

/// The path as it is normalised.
fn normal(target: &str, how: Normalisation) -> Option<String> {
    let mut path = Path::parse(target.as_bytes()).ok()?;
    path.normalise(how).ok()?;
    Some(path.path().to_owned())
}

#[test]
fn what_deny_forbids_reaches_nobody_however_it_is_written() {
    let forbidden = |path: &str| path == "/admin" || path.starts_with("/admin/");
    check_all(&[(Action::Deny, &["/admin", "/admin/*"])], |path, how, passed| {
        if passed {
            assert!(!forbidden(path), "{path} passed with {how:?}");
        } else {
            let normal = normal(path, how);
            assert!(normal.is_none_or(|it| forbidden(&it)), "{path} is denied with {how:?}");
        }
    });
}

#[test]
fn what_allow_lets_pass_is_what_is_sent() {
    let allowed = |path: &str| path.starts_with("/public/");
    check_all(&[(Action::Allow, &["/public/*"])], |path, how, passed| {
        if passed {
            assert!(allowed(path), "{path} passed with {how:?}");
        } else {
            let normal = normal(path, how);
            assert!(normal.is_none_or(|it| !allowed(&it)), "{path} is denied with {how:?}");
        }
    });
}

#[test]
fn by_default_no_spelling_of_dots_and_letters_hides_a_path() {
    let hidden = [
        "/admin/x",
        "/%61dmin/x",
        "/admin\\x",
        "/./admin/x",
        "/public/../admin/x",
        "/public/%2e%2e/admin/x",
        "/public/%2E./admin/x",
        "/public\\..\\admin\\x",
        "/../../admin/x",
    ];
    for target in hidden {
        assert!(CONFUSING.contains(&target));
        assert_eq!(normal(target, Normalisation::Base).as_deref(), Some("/admin/x"), "{target}");
    }
    // What RFC 3986 keeps apart stays apart: case, encoded slashes, parameters of segments.
    for target in ["/ADMIN/x", "/admin%2Fx", "/admin;a=b/x", "/public/..;/admin/x", "/%2561dmin/x"]
    {
        assert_eq!(normal(target, Normalisation::Base).as_deref(), Some(target));
    }
    for target in ["/admin%2fx", "/admin%5Cx", "//admin/x", "/public%2f..%2fadmin/x"] {
        let decoded = normal(target, Normalisation::DecodeAndMergeSlashes);
        assert_eq!(decoded.as_deref(), Some("/admin/x"), "{target}");
    }
}
