//! Whether a client may do something, before it does it: `SelfSubjectAccessReview`.
//!
//! Whoever is known to the server may do all that it does. What nobody can do is denied, with what
//! to do instead.

use serde_json::{Value, json};

use crate::call::Api;
use crate::discovery;
use crate::status::Status;

impl Api {
    /// Answers a review with what it asks about.
    ///
    /// # Errors
    /// It asks about nothing, or is something else.
    pub fn review(&self, body: Option<Value>) -> Result<Value, Status> {
        let wrong = |what| Status::bad_request(format!("the body of the request: {what}"));
        let mut review = body.ok_or_else(|| wrong("it is empty"))?;
        if review["kind"] != "SelfSubjectAccessReview" {
            return Err(wrong("it is no SelfSubjectAccessReview"));
        }
        let spec = &review["spec"];
        let denied = match (&spec["resourceAttributes"], &spec["nonResourceAttributes"]) {
            (Value::Object(_), _) => self.denial(&spec["resourceAttributes"]),
            (_, Value::Object(_)) => None,
            _ => return Err(wrong("its spec says neither resourceAttributes nor others")),
        };
        review["apiVersion"] = json!("authorization.k8s.io/v1");
        review["status"] = match denied {
            None => json!({"allowed": true}),
            Some(reason) => json!({"allowed": false, "reason": reason}),
        };
        Ok(review)
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
        api().review(Some(json!({"kind": "SelfSubjectAccessReview", "spec": spec})))
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
        assert!(api().review(None).is_err());
        assert!(api().review(Some(json!({"kind": "Pod"}))).is_err());
    }
}
