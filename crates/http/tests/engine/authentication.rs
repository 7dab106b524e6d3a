//! Tokens of requests.

use ambit_http::engine::record::Flags;
use ambit_model::http::authentication::{Authentication, JwtRule};
use ambit_model::http::matching::{ClaimMatch, Match, ValueMatch};

use crate::world::run;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
/// The key that has signed the tokens below.
const KEYS: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519",
    "x":"HefOdGXUcH85qk2k2UW8jR7_kLMTak9dsWkFSsdmcGo"}]}"#;
/// `{"iss":"https://login","sub":"ann","group":"admin"}`
pub(crate) const ANN: &str = "eyJhbGciOiJFZERTQSJ9.\
    eyJpc3MiOiJodHRwczovL2xvZ2luIiwic3ViIjoiYW5uIiwiZ3JvdXAiOiJhZG1pbiJ9.\
    IrqnkkEZGren0hOVwZND-RI8eqXs0sUPRYv52XmFKrc5JccnMApKZMDBEJZ_S_E-mR0XWNSvBZ8QIH1Y_DbICw";
/// `{"iss":"https://login","sub":"ann","exp":1000}`
const OLD: &str = "eyJhbGciOiJFZERTQSJ9.\
    eyJpc3MiOiJodHRwczovL2xvZ2luIiwic3ViIjoiYW5uIiwiZXhwIjoxMDAwfQ.\
    2D60lLOj8NjpdTN69Xio7empHHEAdA1r4emKqnDsgbMAKyumZHf9rSFDFFIySBj74GXxd6fjuH1vYqOwD0_LDw";

pub(crate) fn rule() -> JwtRule {
    JwtRule {
        issuer: "https://login".into(),
        audiences: Vec::new(),
        keys: Some(KEYS.into()),
        from_headers: vec![("authorization".into(), "Bearer ".into())],
        from_parameters: vec!["access_token".into()],
        from_cookies: vec!["session".into()],
        payload_header: None,
        claim_headers: vec![("x-group".into(), vec!["group".into()])],
        forwards_token: false,
        space_delimited: Vec::new(),
    }
}

fn trusting(rules: Vec<JwtRule>) -> Authentication {
    Authentication { rules, problem: None }
}

fn request(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: web.app\r\n{fields}Connection: close\r\n\r\n")
}

#[test]
fn a_token_names_the_client_for_policies_and_endpoints() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        *bed.world.authentication.borrow_mut() = trusting(vec![rule()]);
        // What a policy asks for.
        *bed.world.denies.borrow_mut() = Some(|asked| {
            asked.token.is_none_or(|token| token.principal() != Some("https://login/ann"))
        });
        let fields = format!("Authorization: bearer {ANN}\r\nX-Group: root\r\nX_Group: root\r\n");
        let answer = bed.ask(&request("/", &fields)).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let sent = heard.borrow().to_ascii_lowercase();
        assert!(sent.contains("x-group: admin\r\n") && !sent.contains("root"), "{sent}");
        assert!(!sent.contains("authorization"), "the token is not sent on: {sent}");
        let cookie = format!("Cookie: a=b; session={ANN}; c=d\r\n");
        let alone = format!("Cookie: session={ANN}\r\n");
        for (target, fields, left) in [
            (format!("/?a=b&access_token={ANN}&c"), "", "get /?a=b&c http/1.1\r\n"),
            (format!("/?access_token={ANN}"), "", "get / http/1.1\r\n"),
            ("/".into(), &*cookie, "cookie: a=b; c=d\r\n"),
            ("/".into(), &*alone, "get / http/1.1\r\n"),
        ] {
            heard.borrow_mut().clear();
            let answer = bed.ask(&request(&target, fields)).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{target} {fields}: {answer}");
            let sent = heard.borrow().to_ascii_lowercase();
            assert!(sent.contains(left), "{left}: {sent}");
            assert!(!sent.contains(&ANN.to_ascii_lowercase()), "it is not sent on: {sent}");
            assert_eq!(sent.contains("cookie:"), left.starts_with("cookie"), "{sent}");
        }
        let forwarding = JwtRule { forwards_token: true, ..rule() };
        *bed.world.authentication.borrow_mut() = trusting(vec![forwarding]);
        for (target, fields) in [(format!("/?access_token={ANN}"), ""), ("/".into(), &*cookie)] {
            heard.borrow_mut().clear();
            let answer = bed.ask(&request(&target, fields)).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{target} {fields}: {answer}");
            assert!(heard.borrow().contains(ANN), "it is sent on: {}", heard.borrow());
        }
        *bed.world.authentication.borrow_mut() = trusting(vec![rule()]);
        let answer = bed.ask(&request("/", "X-Group: admin\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "no token: {answer}");
    });
}

#[test]
fn without_a_token_a_request_passes_and_names_nobody() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        *bed.world.authentication.borrow_mut() = trusting(vec![rule()]);
        let fields = "X-Group: admin\r\nAuthorization: Basic eA==\r\n";
        let answer = bed.ask(&request("/", fields)).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let sent = heard.borrow().to_ascii_lowercase();
        assert!(!sent.contains("x-group") && sent.contains("authorization: basic"), "{sent}");
    });
}

#[test]
fn a_wrong_token_is_refused_with_the_reason() {
    run(async |bed| {
        bed.answers("web-1", OK);
        let other = JwtRule { issuer: "https://other".into(), ..rule() };
        let without_keys = JwtRule { keys: None, ..rule() };
        let bad_keys = JwtRule { keys: Some("{}".into()), ..rule() };
        let strict = JwtRule { audiences: vec!["shop".into()], ..rule() };
        let damaged = ANN.replace("IrqnkkEZ", "IrqnkkEY");
        for (rules, token, status, text) in [
            (vec![rule()], OLD, 401, "Jwt is expired"),
            (vec![rule()], &*damaged, 401, "Jwt verification fails"),
            (vec![rule()], "abc", 401, "Jwt is not in the form"),
            (vec![other.clone()], ANN, 401, "Jwt issuer is not configured"),
            (vec![rule(), other.clone()], OLD, 401, "Jwt is expired"),
            (vec![other.clone(), rule()], OLD, 401, "Jwt is expired"),
            (vec![without_keys], ANN, 401, "Jwks of the issuer is not available"),
            (vec![bad_keys], ANN, 401, "Jwks of the issuer is not available"),
            (vec![strict], ANN, 403, "Audiences in Jwt are not allowed"),
            (vec![other, rule()], ANN, 200, ""),
        ] {
            *bed.world.authentication.borrow_mut() = trusting(rules);
            let fields = format!("Authorization: Bearer {token}\r\n");
            let answer = bed.ask(&request("/a?b=c", &fields)).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{text}: {answer}");
            if status == 200 {
                continue;
            }
            assert!(answer.contains(&format!("\r\n\r\n{text}")), "{answer}");
            let challenge = "Bearer realm=\"http://web.app/a\", error=\"invalid_token\"\r\n";
            assert!(answer.contains(challenge), "{answer}");
            assert!(answer.contains("x-ambit-reason: jwt\r\n"), "{answer}");
            let record = bed.last();
            assert_eq!(record.flags, Flags::Unauthorized);
            assert!(!record.details.contains(token), "a token is a secret");
        }
    });
}

#[test]
fn of_several_tokens_in_one_request_all_must_hold() {
    run(async |bed| {
        bed.answers("web-1", OK);
        *bed.world.authentication.borrow_mut() = trusting(vec![rule()]);
        let fields = format!("Authorization: Bearer {ANN}\r\n");
        let answer = bed.ask(&request(&format!("/?access_token={OLD}"), &fields)).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    });
}

#[test]
fn what_cannot_be_honoured_refuses_every_request() {
    run(async |bed| {
        bed.answers("web-1", OK);
        let problem = Some("RequestAuthentication app/jwt: spec: unreadable".into());
        *bed.world.authentication.borrow_mut() = Authentication { rules: Vec::new(), problem };
        let answer = bed.ask(&request("/", "")).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(bed.last().details.contains("app/jwt"));
    });
}

#[test]
fn a_claim_of_the_verified_token_chooses_the_route() {
    run(async |bed| {
        bed.answers("web-1", OK);
        *bed.world.authentication.borrow_mut() = trusting(vec![rule()]);
        let claim = ClaimMatch {
            keys: vec!["group".into()],
            value: ValueMatch::Exact("admin".into()),
            is_inverted: false,
        };
        bed.route(|rule| rule.matches = vec![Match { claims: vec![claim], ..Match::default() }]);
        let bearer = format!("Authorization: Bearer {ANN}\r\n");
        let spoofed = "group: admin\r\nx-group: admin\r\n";
        for (fields, status) in [(&*bearer, 200), ("", 404), (spoofed, 404)] {
            let answer = bed.ask(&request("/", fields)).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{fields}: {answer}");
        }
        // No field can have the name that a route gives to claims.
        let answer = bed.ask(&request("/", "@request.auth.claims.group: admin\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    });
}
