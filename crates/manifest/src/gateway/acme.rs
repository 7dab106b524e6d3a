//! Certificates that a Gateway at the edge gets by ACME (RFC 8555): what it asks for, and what is
//! in the way.
//!
//! Annotations of the Gateway name the directory. A certificate is for a Secret of the Gateway's
//! own namespace that a listener names alone, and for the hosts of all such listeners. Hosts are
//! proven by HTTP-01, so a wildcard cannot be. Nothing here knows whether the Secret is there or
//! whose it is: who writes it must ask that first.

use std::collections::BTreeMap;

use ambit_model::http::gateway::Challenge;
use ambit_words::annotations::{ACME_CHALLENGES, ACME_DIRECTORY, ACME_DIRECTORY_CA, ACME_EMAIL};

use super::Gateway;
use super::listeners::{Judged, Protocol};

/// The port at which a directory asks (RFC 8555, 8.3).
const PORT: u16 = 80;

/// From where a Gateway has its certificates.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Acme {
    /// The URL of the directory.
    pub directory: String,
    /// To whom its operator may write.
    pub email: Option<String>,
    /// The ConfigMap, in the Gateway's namespace, with the roots by which it is verified; those of
    /// the system where none is named.
    pub directory_ca: Option<String>,
}

/// What a Gateway asks for: the hosts of each Secret, or why there will be no certificate.
pub type Wanted = BTreeMap<String, Result<Vec<String>, String>>;

impl Acme {
    /// From where a Gateway has its certificates, or what is wrong with what it says; nothing if it
    /// does not ask for any.
    pub fn of(gateway: &Gateway) -> Option<Result<Self, String>> {
        let all = gateway.metadata.annotations.as_ref()?;
        let directory = all.get(ACME_DIRECTORY)?;
        Some(check_directory(directory).map(|()| {
            let said = |key: &str| all.get(key).filter(|it| !it.is_empty()).cloned();
            Self {
                directory: directory.clone(),
                email: said(ACME_EMAIL),
                directory_ca: said(ACME_DIRECTORY_CA),
            }
        }))
    }
}

/// What a Gateway at the edge with these listeners asks for.
pub fn wanted(gateway: &Gateway, judged: &[Judged<'_>]) -> Wanted {
    let mut wanted = Wanted::new();
    let Some(acme) = Acme::of(gateway) else { return wanted };
    for listener in judged.iter().filter(|it| it.set.is_none() && it.is_served()) {
        let Some(secret) = secret(gateway, listener) else { continue };
        let hosts = wanted.entry(secret.to_owned()).or_insert_with(|| Ok(Vec::new()));
        match provable(listener) {
            Ok(host) => {
                if let Ok(hosts) = hosts
                    && !hosts.contains(&host)
                {
                    hosts.push(host);
                }
            }
            Err(why) => *hosts = Err(why),
        }
    }
    let answers = |it: &Judged<'_>| {
        it.is_served() && it.protocol() == Some(Protocol::Http) && it.port() == Some(PORT)
    };
    let problem = match acme {
        Err(what) => Some(what),
        Ok(_) if judged.iter().any(answers) => None,
        Ok(_) => Some(format!(
            "the directory asks at port {PORT}, and the Gateway has no HTTP listener there"
        )),
    };
    if let Some(problem) = problem {
        wanted.values_mut().for_each(|it| *it = Err(problem.clone()));
    }
    wanted
}

/// The Secret that a listener names alone, if it is one of the Gateway's namespace.
pub fn secret<'a>(gateway: &Gateway, judged: &Judged<'a>) -> Option<&'a str> {
    let [named] = *judged.certificates().collect::<Vec<_>>() else { return None };
    let is_alone = judged.listener.tls.as_ref().is_some_and(|it| it.certificate_refs.len() == 1);
    let is_own = named.namespace.is_none() || named.namespace == gateway.metadata.namespace;
    (is_alone && is_own).then_some(named.name.as_str())
}

/// The host of a listener, in lower case, if HTTP-01 can prove it.
fn provable(judged: &Judged<'_>) -> Result<String, String> {
    let name = &judged.listener.name;
    match judged.listener.hostname.as_deref().unwrap_or_default() {
        "" => Err(format!("listener `{name}` has no hostname to prove")),
        host if host.contains('*') => {
            Err(format!("HTTP-01 cannot prove the wildcard `{host}` of listener `{name}`"))
        }
        host => Ok(host.to_ascii_lowercase()),
    }
}

/// The name of the Secret of a Gateway's account.
pub fn account_secret(gateway: &str) -> String {
    format!("{gateway}-acme-account")
}

/// What is wrong with the URL of a directory.
pub(crate) fn check_directory(url: &str) -> Result<(), String> {
    let Some(rest) = url.strip_prefix("https://") else {
        return Err(format!("`{url}` does not begin with https://"));
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let is_plain = url.bytes().all(|it| it.is_ascii_graphic());
    if host.is_empty() || host.starts_with(':') || host.contains('@') || !is_plain {
        return Err(format!("`{url}` is no URL of a directory"));
    }
    Ok(())
}

/// What a gateway answers to directories, by the annotations of its Service. A line that cannot be
/// read is left out: it proves nothing.
pub fn challenges(of_service: Option<&BTreeMap<String, String>>) -> Vec<Challenge> {
    let written = of_service.and_then(|it| it.get(ACME_CHALLENGES));
    let lines = written.into_iter().flat_map(|it| it.lines());
    let challenges = lines.filter_map(|line| {
        let [host, token, answer] = *line.split(' ').collect::<Vec<_>>() else { return None };
        let is_answer = answer.strip_prefix(token).is_some_and(|it| it.starts_with('.'));
        let is_whole = is_answer && !host.is_empty() && !token.is_empty();
        let challenge = Challenge { host: host.into(), token: token.into(), answer: answer.into() };
        is_whole.then_some(challenge)
    });
    challenges.collect()
}

/// The value of that annotation.
pub fn written<'a>(challenges: impl IntoIterator<Item = &'a Challenge>) -> String {
    let line = |it: &Challenge| format!("{} {} {}\n", it.host, it.token, it.answer);
    challenges.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::listeners::judge;
    use super::*;

    const DIRECTORY: &str = "https://acme.example/dir";

    fn gateway(annotations: Value, listeners: Value) -> Gateway {
        let gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "in", "namespace": "edge", "annotations": annotations},
            "spec": {"gatewayClassName": "ambit", "listeners": listeners},
        });
        serde_json::from_value(gateway).expect("a Gateway")
    }

    fn https(name: &str, host: Value, secrets: Value) -> Value {
        json!({"name": name, "protocol": "HTTPS", "port": 443, "hostname": host,
            "tls": {"certificateRefs": secrets}})
    }

    fn web(port: u16) -> Value {
        json!({"name": "web", "protocol": "HTTP", "port": port})
    }

    #[test]
    fn a_secret_of_its_own_is_wanted_for_the_hosts_of_its_listeners() {
        let check = |listeners: Value, expected: &[(&str, Result<&str, &str>)]| {
            let gateway = gateway(json!({ACME_DIRECTORY: DIRECTORY}), listeners.clone());
            let wanted = wanted(&gateway, &judge(&gateway.spec));
            let said: Vec<(String, Result<String, String>)> = wanted
                .into_iter()
                .map(|(secret, hosts)| (secret, hosts.map(|it| it.join(","))))
                .collect();
            assert_eq!(said.len(), expected.len(), "{listeners}: {said:?}");
            for ((secret, hosts), (wanted, expected)) in said.iter().zip(expected) {
                assert_eq!(secret, wanted, "{listeners}");
                match (hosts, expected) {
                    (Ok(hosts), Ok(expected)) => assert_eq!(hosts, expected, "{listeners}"),
                    (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                    _ => panic!("{listeners}: {hosts:?}"),
                }
            }
        };
        let a = || https("a", json!("A.example"), json!([{"name": "one"}]));
        check(json!([web(80), a()]), &[("one", Ok("a.example"))]);
        let b = https("b", json!("b.example"), json!([{"name": "one", "namespace": "edge"}]));
        check(json!([web(80), a(), b]), &[("one", Ok("a.example,b.example"))]);
        check(json!([a()]), &[("one", Err("port 80"))]);
        check(json!([web(8080), a()]), &[("one", Err("port 80"))]);
        let wide = https("w", json!("*.example"), json!([{"name": "two"}]));
        check(json!([web(80), wide]), &[("two", Err("wildcard `*.example`"))]);
        check(
            json!([web(80), https("n", Value::Null, json!([{"name": "n"}]))]),
            &[("n", Err("no hostname"))],
        );
        let of_others = [
            json!([{"name": "x", "namespace": "other"}]),
            json!([{"name": "x"}, {"name": "y"}]),
            json!([{"name": "x"}, {"name": "y", "kind": "ConfigMap"}]),
            json!([]),
        ];
        for secrets in of_others {
            check(json!([web(80), https("o", json!("o.example"), secrets)]), &[]);
        }
        check(json!([web(80)]), &[]);
    }

    #[test]
    fn a_gateway_names_a_directory() {
        let check = |annotations: Value, expected: Option<Result<Acme, &str>>| {
            let said = Acme::of(&gateway(annotations.clone(), json!([])));
            match (said, expected) {
                (Some(Err(what)), Some(Err(part))) => assert!(what.contains(part), "{what}"),
                (said, expected) => {
                    let expected = expected.map(|it| it.map_err(str::to_owned));
                    assert_eq!(said, expected, "{annotations}");
                }
            }
        };
        let acme = Acme { directory: DIRECTORY.to_owned(), email: None, directory_ca: None };
        check(json!({}), None);
        check(json!({ACME_EMAIL: "a@example.com"}), None);
        check(json!({ACME_DIRECTORY: DIRECTORY}), Some(Ok(acme.clone())));
        let email = Some("a@example.com".to_owned());
        let whole = Acme { email, directory_ca: Some("ca".to_owned()), ..acme };
        let said = json!({ACME_DIRECTORY: DIRECTORY, ACME_EMAIL: "a@example.com",
            ACME_DIRECTORY_CA: "ca"});
        check(said, Some(Ok(whole)));
        for wrong in ["http://acme.example/dir", "acme.example", ""] {
            check(json!({ACME_DIRECTORY: wrong}), Some(Err("https://")));
        }
        for wrong in ["https://", "https://:1/", "https://me@acme.example", "https://a b"] {
            check(json!({ACME_DIRECTORY: wrong}), Some(Err("no URL")));
        }
    }

    #[test]
    fn challenges_are_read_as_they_are_written() {
        let challenge = |host: &str, token: &str| Challenge {
            host: host.into(),
            token: token.into(),
            answer: format!("{token}.thumb").into(),
        };
        let all = vec![challenge("a.example", "one"), challenge("b.example", "two")];
        let of = |text: &str| {
            challenges(Some(&BTreeMap::from([(ACME_CHALLENGES.to_owned(), text.to_owned())])))
        };
        assert_eq!(of(&written(&all)), all);
        assert_eq!(challenges(None), []);
        for wrong in ["", "a.example", "a.example one", "a.example one two.thumb", "a one one.x y"]
        {
            assert_eq!(of(wrong), [], "{wrong}");
        }
    }
}
