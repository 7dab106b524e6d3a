//! What routes and policies do with requests.

use std::time::Duration;

use ambit_http::engine::record::Flags;
use ambit_model::http::matching::{Match, PathMatch, ValueMatch};
use ambit_model::http::rule::{
    Abort, Action, Cors, Destination, Fraction, Mirror, PathChange, Redirect, RedirectPort,
    Rewrite, Session, SessionKeeper,
};
use ambit_model::names::ServiceName;

use crate::world::{backend, run};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: Web.App:80\r\nConnection: close\r\n\r\n")
}

fn path(prefix: &str) -> Vec<Match> {
    vec![Match { path: Some(PathMatch::Segments(prefix.into())), ..Match::default() }]
}

#[test]
fn what_no_rule_matches_is_not_found() {
    run(async |bed| {
        bed.answers("web-1", OK);
        bed.route(|rule| rule.matches = path("/a"));
        assert!(bed.ask(&get("/a/b")).await.starts_with("HTTP/1.1 200 "));
        let answer = bed.ask(&get("/b")).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        assert!(answer.contains("x-ambit-reason: no_route\r\n"), "{answer}");
        assert_eq!(bed.last().flags, Flags::NoRoute);
    });
}

#[test]
fn requests_are_rewritten() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        bed.route(|rule| {
            rule.matches = path("/a");
            let rewrite = Rewrite {
                host: Some("other.host".into()),
                path: Some(PathChange::Segments("/x".into())),
            };
            rule.action = Action::Forward { backends: vec![backend("web")], rewrite };
            rule.request_headers.set = vec![("x-new".into(), "1".into())];
            rule.request_headers.remove = vec!["x-old".into()];
            rule.response_headers.add = vec![("X-Seen".into(), "2".into())];
        });
        let request = "GET /a/b?q=1 HTTP/1.1\r\nHost: web\r\nX-Old: 0\r\nConnection: close\r\n\r\n";
        let answer = bed.ask(request).await;
        assert!(answer.contains("X-Seen: 2\r\n"), "{answer}");
        let heard = heard.borrow().clone();
        assert!(heard.starts_with("GET /x/b?q=1 HTTP/1.1\r\nHost: other.host\r\n"), "{heard}");
        assert!(heard.contains("x-new: 1\r\n") && !heard.contains("X-Old"), "{heard}");
    });
}

#[test]
fn clients_are_redirected_unless_they_may_not_ask() {
    run(async |bed| {
        bed.route(|rule| {
            rule.action = Action::Redirect(Redirect {
                scheme: Some("https".into()),
                host: None,
                port: RedirectPort::OfScheme,
                path: None,
                status: 301,
            });
        });
        let answer = bed.ask(&get("/a?b")).await;
        assert!(answer.starts_with("HTTP/1.1 301 "), "{answer}");
        assert!(answer.contains("location: https://web.app/a?b\r\n"), "{answer}");
        assert!(!answer.contains("x-ambit-reason"), "nothing went wrong: {answer}");
        *bed.world.denies.borrow_mut() = Some(|asked| asked.head.path == "/a");
        let answer = bed.ask(&get("/a")).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    });
}

#[test]
fn policies_see_the_path_that_is_sent_on() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        *bed.world.denies.borrow_mut() = Some(|asked| asked.head.path.starts_with("/admin"));
        for way in ["/admin", "/./admin", "/x/../admin", "/%61dmin", "/x\\..\\admin"] {
            let answer = bed.ask(&get(way)).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{way}: {answer}");
            assert!(answer.ends_with("RBAC: access denied"), "{way}: {answer}");
        }
        assert_eq!(*heard.borrow(), "");
        assert_eq!(bed.last().details, "denied by policy app/no rule 0");
        assert!(bed.ask(&get("/Admin")).await.starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn shares_are_kept() {
    run(async |bed| {
        bed.answers("web-1", OK);
        let canary = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n";
        bed.answers("canary-1", canary);
        bed.route(|rule| {
            let (mut web, canary) = (backend("web"), backend("canary"));
            web.weight = 3;
            rule.action =
                Action::Forward { backends: vec![web, canary], rewrite: Rewrite::default() };
        });
        let mut created = 0;
        for _ in 0..40 {
            created += usize::from(bed.ask(&get("/")).await.starts_with("HTTP/1.1 201 "));
        }
        assert!((5..=15).contains(&created), "{created} of 40");
        bed.route(|rule| {
            rule.matches = path("/nowhere");
            let mut nowhere = backend("nowhere");
            nowhere.destination = Destination::Invalid("no such service".into());
            rule.action = Action::Forward { backends: vec![nowhere], rewrite: Rewrite::default() };
        });
        let answer = bed.ask(&get("/nowhere")).await;
        assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
        assert_eq!(bed.last().details, "the backend cannot be used: no such service");
    });
}

#[test]
fn faults_are_made() {
    run(async |bed| {
        bed.answers("web-1", OK);
        bed.route(|rule| {
            rule.faults.delay = Some((Fraction::ALL, Duration::from_millis(20)));
            rule.faults.abort = Some((Fraction::ALL, Abort::Http(418)));
        });
        let start = std::time::Instant::now();
        assert!(bed.ask(&get("/")).await.starts_with("HTTP/1.1 418 "));
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert_eq!(bed.last().flags, Flags::Fault);
    });
}

#[test]
fn browsers_are_told_who_may_ask() {
    run(async |bed| {
        bed.answers("web-1", OK);
        // No policy stands between a browser and the answer to its question.
        *bed.world.denies.borrow_mut() = Some(|asked| asked.head.method == "OPTIONS");
        bed.route(|rule| {
            rule.cors = Some(Cors {
                allow_origins: vec![ValueMatch::Exact("https://shop".into())],
                allow_methods: vec!["GET".into(), "PUT".into()],
                allow_headers: vec!["*".into()],
                expose_headers: vec!["x-a".into()],
                allow_credentials: true,
                max_age: Some(Duration::from_secs(60)),
                forwards_unmatched: true,
            });
        });
        let ask = |origin: &str| {
            format!(
                "OPTIONS / HTTP/1.1\r\nHost: web\r\nOrigin: {origin}\r\nConnection: close\r\n\
                 Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-b\r\n\r\n"
            )
        };
        let answer = bed.ask(&ask("https://shop")).await;
        assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
        for field in [
            "access-control-allow-origin: https://shop\r\n",
            "access-control-allow-credentials: true\r\n",
            "access-control-allow-methods: GET, PUT\r\n",
            "access-control-allow-headers: x-b\r\n",
            "access-control-max-age: 60\r\n",
            "access-control-expose-headers: x-a\r\n",
        ] {
            assert!(answer.contains(field), "{field}: {answer}");
        }
        assert!(bed.ask(&ask("https://other")).await.starts_with("HTTP/1.1 403 "));
        let request = "GET / HTTP/1.1\r\nHost: web\r\nOrigin: https://shop\r\n\
                       Connection: close\r\n\r\n";
        let answer = bed.ask(request).await;
        assert!(answer.contains("access-control-allow-origin: https://shop\r\n"), "{answer}");
        assert!(answer.contains("access-control-expose-headers: x-a\r\n"), "{answer}");
    });
}

#[test]
fn the_question_of_an_origin_that_is_not_allowed_is_answered_without_permission() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        for (forwards_unmatched, status) in [(false, "204"), (true, "200")] {
            bed.world.rules.borrow_mut().clear();
            bed.route(|rule| {
                rule.cors = Some(Cors {
                    allow_origins: vec![ValueMatch::Exact("https://shop".into())],
                    allow_methods: vec!["PUT".into()],
                    allow_headers: Vec::new(),
                    expose_headers: Vec::new(),
                    allow_credentials: false,
                    max_age: None,
                    forwards_unmatched,
                });
            });
            let ask = "OPTIONS / HTTP/1.1\r\nHost: web\r\nOrigin: https://other\r\n\
                       Access-Control-Request-Method: PUT\r\nConnection: close\r\n\r\n";
            let answer = bed.ask(ask).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
            assert!(!answer.contains("access-control-"), "{answer}");
            assert_eq!(heard.borrow().contains("OPTIONS"), forwards_unmatched);
        }
    });
}

#[test]
fn what_a_rule_says_of_responses_holds_for_answers_of_the_proxys_own() {
    run(async |bed| {
        let redirect = Redirect {
            scheme: None,
            host: Some("other".into()),
            port: RedirectPort::OfAuthority,
            path: None,
            status: 302,
        };
        let mut nowhere = backend("nowhere");
        nowhere.destination = Destination::Invalid("no such service".into());
        for (action, status) in [
            (Action::Respond { status: 200, body: "own".into() }, "200"),
            (Action::Redirect(redirect), "302"),
            (Action::Forward { backends: vec![nowhere], rewrite: Rewrite::default() }, "500"),
        ] {
            bed.world.rules.borrow_mut().clear();
            bed.route(|rule| {
                rule.action = action;
                rule.response_headers.set = vec![("x-own".into(), "1".into())];
                rule.response_headers.remove = vec!["content-type".into()];
                rule.cors = Some(Cors {
                    allow_origins: vec![ValueMatch::Exact("https://shop".into())],
                    allow_methods: Vec::new(),
                    allow_headers: Vec::new(),
                    expose_headers: vec!["x-own".into()],
                    allow_credentials: true,
                    max_age: None,
                    forwards_unmatched: false,
                });
            });
            for origin in ["https://shop", "https://other"] {
                let ask = format!(
                    "GET / HTTP/1.1\r\nHost: web\r\nOrigin: {origin}\r\nConnection: close\r\n\r\n"
                );
                let answer = bed.ask(&ask).await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
                assert!(answer.contains("x-own: 1\r\n"), "{answer}");
                assert!(!answer.contains("content-type"), "{answer}");
                let is_allowed = origin == "https://shop";
                for field in [
                    "access-control-allow-origin: https://shop\r\n",
                    "access-control-allow-credentials: true\r\n",
                    "access-control-expose-headers: x-own\r\n",
                ] {
                    assert_eq!(answer.contains(field), is_allowed, "{field}: {answer}");
                }
            }
        }
    });
}

#[test]
fn copies_are_sent_and_not_waited_for() {
    run(async |bed| {
        bed.answers("web-1", OK);
        let copied = bed.hears("shadow-1", "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n");
        bed.serve("stuck-1", |stream, _| std::mem::forget(stream));
        bed.route(|rule| {
            let destination = |name: &str| Destination::Service {
                name: ServiceName::new("app", name),
                port: 80,
                subset: None,
            };
            rule.mirrors = ["shadow", "stuck"]
                .map(|it| Mirror { destination: destination(it), fraction: Fraction::ALL })
                .into();
        });
        let request = "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 4\r\n\
                       Connection: close\r\n\r\nbody";
        assert!(bed.ask(request).await.starts_with("HTTP/1.1 200 "));
        for _ in 0..100 {
            if copied.borrow().ends_with("\r\n\r\nbody") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(copied.borrow().starts_with("POST / HTTP/1.1\r\n"), "{}", copied.borrow());
        assert!(copied.borrow().ends_with("\r\n\r\nbody"), "{}", copied.borrow());
    });
}

#[test]
fn sessions_name_their_endpoint() {
    run(async |bed| {
        bed.answers("web-1", OK);
        bed.route(|rule| {
            let keeper = SessionKeeper::Cookie { name: "s".into(), is_permanent: false };
            rule.session = Some(Session { keeper, absolute_timeout: None, idle_timeout: None });
        });
        let answer = bed.ask(&get("/")).await;
        let line = answer.lines().find(|it| it.starts_with("set-cookie: ")).unwrap();
        let cookie = line.trim_start_matches("set-cookie: ").split(';').next().unwrap();
        assert_eq!(cookie, format!("s={:016x}", ambit_http::engine::hash_of("web-1")));
        let request = format!(
            "GET / HTTP/1.1\r\nHost: web\r\nCookie: a=b; {cookie}\r\nConnection: close\r\n\r\n"
        );
        assert!(!bed.ask(&request).await.contains("set-cookie"), "it has it");
    });
}

#[test]
fn a_session_stays_with_its_backend_when_new_ones_go_elsewhere() {
    run(async |bed| {
        bed.answers("web-1", OK);
        bed.answers("canary-1", "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n");
        let weights = |web: u32, canary: u32| {
            bed.world.rules.borrow_mut().clear();
            bed.route(|rule| {
                let keeper = SessionKeeper::Cookie { name: "s".into(), is_permanent: false };
                rule.session = Some(Session { keeper, absolute_timeout: None, idle_timeout: None });
                let mut backends = vec![backend("web"), backend("canary")];
                (backends[0].weight, backends[1].weight) = (web, canary);
                rule.action = Action::Forward { backends, rewrite: Rewrite::default() };
            });
        };
        weights(0, 1);
        let answer = bed.ask(&get("/")).await;
        assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
        let line = answer.lines().find(|it| it.starts_with("set-cookie: ")).unwrap();
        let cookie = line.trim_start_matches("set-cookie: ").split(';').next().unwrap();
        weights(1, 0);
        let request =
            format!("GET / HTTP/1.1\r\nHost: web\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n");
        for _ in 0..4 {
            let answer = bed.ask(&request).await;
            assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
            assert!(!answer.contains("set-cookie"), "it has it: {answer}");
            assert!(bed.ask(&get("/")).await.starts_with("HTTP/1.1 200 "));
        }
    });
}

#[test]
fn policies_do_not_read_what_a_client_claims_of_itself() {
    run(async |bed| {
        bed.answers("web-1", OK);
        *bed.world.denies.borrow_mut() = Some(|asked| {
            asked.head.fields.any("x-forwarded-client-cert", &mut |line| line.ends_with(b"/admin"))
        });
        let request = "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\
                       X-Forwarded-Client-Cert: URI=spiffe://t/ns/app/sa/admin\r\n\r\n";
        assert!(bed.ask(request).await.starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn a_rewrite_does_not_lead_out_of_its_prefix() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        bed.route(|rule| {
            let prefix = PathMatch::Prefix("/foo".into());
            rule.matches = vec![Match { path: Some(prefix), ..Match::default() }];
            let path = Some(PathChange::Prefix("/app/".into()));
            let rewrite = Rewrite { host: None, path };
            rule.action = Action::Forward { backends: vec![backend("web")], rewrite };
        });
        assert!(bed.ask(&get("/foo../secret")).await.starts_with("HTTP/1.1 500 "));
        assert_eq!(*heard.borrow(), "");
        assert!(bed.ask(&get("/foobar")).await.starts_with("HTTP/1.1 200 "));
        assert!(heard.borrow().starts_with("GET /app/bar HTTP/1.1\r\n"));
    });
}

#[test]
fn what_holds_where_a_request_is_sent_on_is_asked_too() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        *bed.world.denies.borrow_mut() = Some(|asked| asked.head.path == "/private");
        let lead = |namespace: &'static str| {
            bed.route(|rule| {
                rule.matches = path(&format!("/{namespace}"));
                let mut web = backend("web");
                let name = ServiceName::new(namespace, "web");
                web.destination = Destination::Service { name, port: 80, subset: None };
                let rewrite =
                    Rewrite { host: None, path: Some(PathChange::Full("/private".into())) };
                rule.action = Action::Forward { backends: vec![web], rewrite };
            });
        };
        lead("elsewhere");
        lead("app");
        let answer = bed.ask(&get("/elsewhere")).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert_eq!((bed.last().flags, heard.borrow().as_str()), (Flags::Denied, ""));
        assert!(bed.ask(&get("/app")).await.starts_with("HTTP/1.1 200 "));
        let copies_there = |rule: &mut ambit_model::http::rule::Rule| {
            rule.matches = path("/copied");
            let name = ServiceName::new("elsewhere", "copy");
            let destination = Destination::Service { name, port: 80, subset: None };
            rule.mirrors = vec![Mirror { destination, fraction: Fraction::ALL }];
            let rewrite = Rewrite { host: None, path: Some(PathChange::Full("/private".into())) };
            rule.action = Action::Forward { backends: vec![backend("web")], rewrite };
        };
        let copied = bed.hears("copy-1", OK);
        bed.route(copies_there);
        assert!(bed.ask(&get("/copied")).await.starts_with("HTTP/1.1 200 "));
        assert_eq!(*copied.borrow(), "", "nor is a copy sent where it is denied");
    });
}

#[test]
fn a_route_of_clients_is_judged_as_it_sends_and_says_nothing_for_proxies() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        *bed.world.denies.borrow_mut() = Some(|asked| asked.head.path == "/private");
        let lead = |from: &'static str, to: &'static str| {
            bed.route(|rule| {
                rule.origin.namespace = "shop".into();
                rule.matches = path(from);
                let rewrite = Rewrite { host: None, path: Some(PathChange::Full(to.into())) };
                rule.action = Action::Forward { backends: vec![backend("web")], rewrite };
                let names =
                    ["X-Forwarded-Client-Cert", "x-envoy-retry-on", "x-request-id", "x-own"];
                rule.request_headers.set = names.map(|it| (it.into(), "forged".into())).to_vec();
                rule.request_headers.add = vec![("x-forwarded-for".into(), "forged".into())];
                rule.request_headers.remove = vec!["x-forwarded-for".into()];
            });
        };
        lead("/hides", "/private");
        lead("/open", "/else");
        let answer = bed.ask(&get("/hides")).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert_eq!((bed.last().flags, heard.borrow().as_str()), (Flags::Denied, ""));
        assert!(bed.ask(&get("/open")).await.starts_with("HTTP/1.1 200 "));
        let heard = heard.borrow().to_ascii_lowercase();
        assert!(heard.starts_with("get /else ") && heard.contains("x-own: forged"), "{heard}");
        assert_eq!(heard.matches("forged").count(), 1, "{heard}");
        assert!(heard.contains("x-forwarded-for: 10.0.0.9\r\n"), "{heard}");
    });
}
