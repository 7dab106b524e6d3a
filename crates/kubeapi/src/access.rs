//! What a client may do, before it does it, and who it is: `SelfSubjectAccessReview`,
//! `SelfSubjectRulesReview` and `SelfSubjectReview`.
//!
//! Whoever is known to the server may do all that it does. What nobody can do is denied, with what
//! to do instead.

use serde_json::{Value, json};

use crate::call::Api;
use crate::discovery;
use crate::review::Review;
use crate::status::Status;

/// Who asks: the user of the kubeconfig, who may do everything.
const USER: &str = "ambit";
const GROUPS: [&str; 2] = ["system:masters", "system:authenticated"];
/// Paths that are read without naming objects.
const PATHS: [&str; 10] = [
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/healthz",
    "/livez",
    "/openapi",
    "/openapi/*",
    "/readyz",
    "/version",
];

impl Api {
    /// Answers a review with what it asks about.
    ///
    /// # Errors
    /// It asks about nothing, or is something else.
    pub fn review(&self, of: Review, body: Option<Value>) -> Result<Value, Status> {
        let wrong = |what: String| Status::bad_request(format!("the body of the request: {what}"));
        let mut review = body.ok_or_else(|| wrong("it is empty".to_owned()))?;
        if review["kind"] != of.kind() {
            return Err(wrong(format!("it is no {}", of.kind())));
        }
        let answer = match of {
            Review::Access => self.access(&review["spec"])?,
            Review::Rules => self.rules(),
            Review::Identity => json!({"userInfo": {"username": USER, "groups": GROUPS}}),
        };
        review["apiVersion"] = json!(format!("{}/v1", of.group()));
        review["status"] = answer;
        Ok(review)
    }

    fn access(&self, spec: &Value) -> Result<Value, Status> {
        let denied = match (&spec["resourceAttributes"], &spec["nonResourceAttributes"]) {
            (Value::Object(_), _) => self.denial(&spec["resourceAttributes"]),
            (_, Value::Object(_)) => None,
            _ => {
                let message = "its spec says neither resourceAttributes nor others";
                return Err(Status::bad_request(format!("the body of the request: {message}")));
            }
        };
        Ok(match denied {
            None => json!({"allowed": true}),
            Some(reason) => json!({"allowed": false, "reason": reason}),
        })
    }

    /// All that the server does with objects.
    fn rules(&self) -> Value {
        let mut rules = Vec::new();
        for resource in &self.resources {
            let group = resource.group();
            rules.push(rule(group, resource.plural, &discovery::verbs(resource)));
            for (part, verbs) in discovery::verbs_of_parts(resource) {
                rules.push(rule(group, &format!("{}/{part}", resource.plural), verbs));
            }
        }
        rules.extend(Review::ALL.map(|it| rule(it.group(), it.plural(), &["create"])));
        json!({
            "resourceRules": rules,
            "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": PATHS}],
            "incomplete": false,
        })
    }

    /// Why nobody can do this to objects, if so. What the server does not have is nothing that a
    /// client would have to be granted.
    fn denial(&self, asked: &Value) -> Option<String> {
        let text = |field: &str| asked[field].as_str().unwrap_or_default();
        if !text("subresource").is_empty() {
            return None;
        }
        let is_meant = |it: &&crate::Resource| {
            it.plural == text("resource") && (text("group") == "*" || it.group() == text("group"))
        };
        let resource = self.resources.iter().find(is_meant)?;
        let verb = text("verb");
        if verb == "*" || discovery::verbs(resource).contains(&verb) {
            return None;
        }
        let why = resource.only_read.unwrap_or("the server does not do this to them");
        Some(format!("{}: {why}", resource.plural))
    }
}

fn rule(group: &str, plural: &str, verbs: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": [group], "resources": [plural]})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Resource;

    fn api() -> Api {
        let resource = |kind, plural, only_read| Resource {
            kind,
            plural,
            namespaced: true,
            api_versions: &["v1"],
            only_read,
        };
        let resources = vec![
            resource("Pod", "pods", None),
            resource("Node", "nodes", None),
            resource("Event", "events", Some("events are the server's own")),
        ];
        Api { resources, server: "test".to_owned() }
    }

    fn review(spec: Value) -> Result<Value, Status> {
        let body = json!({"kind": "SelfSubjectAccessReview", "spec": spec});
        api().review(Review::Access, Some(body))
    }

    #[test]
    fn what_the_server_does_is_allowed() {
        for (resource, verb, allowed) in [
            ("pods", "list", true),
            ("pods", "delete", true),
            ("pods", "*", true),
            ("nodes", "patch", true),
            ("nodes", "delete", false),
            ("events", "watch", true),
            ("events", "create", false),
            ("widgets", "create", true),
        ] {
            let spec = json!({"resourceAttributes": {"resource": resource, "verb": verb}});
            let answer = review(spec).expect("a review");
            assert_eq!(answer["status"]["allowed"], allowed, "{verb} {resource}: {answer}");
            let has_reason = answer["status"]["reason"].is_string();
            assert_eq!(has_reason, !allowed, "{answer}");
        }
        let path = json!({"nonResourceAttributes": {"path": "/version", "verb": "get"}});
        assert_eq!(review(path).expect("a review")["status"]["allowed"], true);
    }

    #[test]
    fn what_asks_about_nothing_is_refused() {
        assert!(review(json!({})).is_err());
        for review in Review::ALL {
            assert!(api().review(review, None).is_err());
            assert!(api().review(review, Some(json!({"kind": "Pod"}))).is_err());
        }
    }

    #[test]
    fn a_client_learns_who_it_is_and_all_that_it_may_do() {
        let ask = |review: Review| {
            let answer = api().review(review, Some(json!({"kind": review.kind()})));
            answer.expect("a review")
        };
        let identity = ask(Review::Identity);
        assert_eq!(identity["apiVersion"], "authentication.k8s.io/v1");
        assert_eq!(identity["status"]["userInfo"]["username"], USER);
        let rules = ask(Review::Rules);
        assert_eq!(rules["apiVersion"], "authorization.k8s.io/v1");
        let check = |resource: &str, verb: &str, expected: bool| {
            let rules = rules["status"]["resourceRules"].as_array().expect("rules");
            let mut rules = rules.iter().filter(|it| it["resources"] == json!([resource]));
            let verbs = rules.next().expect(resource)["verbs"].as_array().expect("verbs");
            assert_eq!(verbs.contains(&json!(verb)), expected, "{verb} {resource}");
        };
        check("pods", "delete", true);
        check("pods/log", "get", true);
        check("pods/log", "create", false);
        check("nodes", "delete", false);
        check("events", "create", false);
        check("selfsubjectreviews", "create", true);
    }
}
