//! Calls to other services.

use std::collections::BTreeMap;

use http::Uri;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;

use super::answer::Answer;
use super::settings::{Settings, Upstream};
use crate::sample::client::{self, Answered, Client};

/// What `code` says when there was no response.
const NO_RESPONSE: i32 = -1;

/// The client of all upstreams.
#[derive(Debug)]
pub(super) struct Upstreams {
    client: Client,
    /// A request's own path and header are forwarded to the upstreams.
    append_request: bool,
}

impl Upstreams {
    /// A client with the connections that the settings allow.
    pub(super) fn new(settings: &Settings) -> Self {
        let client = Client::new(settings.request_timeout, settings.client_keep_alives);
        Self { client, append_request: settings.append_request }
    }

    /// Calls one for a request. What went wrong is in the answer, too.
    pub(super) async fn call(
        &self,
        upstream: &Upstream,
        path: &str,
        headers: &HeaderMap,
    ) -> Answer {
        let called = if self.append_request {
            let uri = with_path(&upstream.uri, path);
            self.client.get(&uri, client::end_to_end(headers)).await
        } else {
            self.client.get(&upstream.uri, HeaderMap::new()).await
        };
        let mut answer = match called {
            Ok(answered) => answer(&upstream.written, &answered),
            Err(error) => {
                Answer { code: NO_RESPONSE, error: Some(error.to_string()), ..Answer::default() }
            }
        };
        answer.uri = upstream.written.clone();
        answer
    }
}

fn answer(uri: &str, answered: &Answered) -> Answer {
    // A proxy's own answer is no JSON, and counts by its status alone.
    let mut answer: Answer = serde_json::from_slice(&answered.body).unwrap_or_default();
    answer.code = i32::from(answered.status.as_u16());
    answer.headers = headers(&answered.headers);
    if !answered.status.is_success() {
        let status = || format!("{uri} answered {}", answered.status.as_u16());
        answer.error.get_or_insert_with(status);
    }
    answer
}

/// The URI with a path after its own.
fn with_path(uri: &Uri, path: &str) -> Uri {
    let own = uri.path().trim_end_matches('/');
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut parts = uri.clone().into_parts();
    let appended = PathAndQuery::try_from(format!("{own}{path}{query}"));
    // Two paths that were read as such make one.
    if let Ok(appended) = appended {
        parts.path_and_query = Some(appended);
    }
    Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}

fn headers(headers: &HeaderMap) -> BTreeMap<String, String> {
    let shown = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (canonical(name), shown(value))).collect()
}

/// `content-type` as `Content-Type`.
fn canonical(name: &HeaderName) -> String {
    let mut upper = true;
    let letter = |letter: char| {
        let written = if upper { letter.to_ascii_uppercase() } else { letter };
        upper = letter == '-';
        written
    };
    name.as_str().chars().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use http::header;

    use super::*;

    #[test]
    fn header_names_are_written_with_capitals() {
        assert_eq!(canonical(&header::CONTENT_TYPE), "Content-Type");
        assert_eq!(canonical(&header::DATE), "Date");
    }

    #[test]
    fn a_path_goes_after_the_upstreams_own() {
        for (uri, path, expected) in [
            ("http://a:80", "/", "http://a:80/"),
            ("http://a", "/b/c", "http://a/b/c"),
            ("http://a/x/", "/b", "http://a/x/b"),
            ("http://a/x?y=1", "/", "http://a/x/?y=1"),
        ] {
            assert_eq!(with_path(&uri.parse().unwrap(), path).to_string(), expected);
        }
    }
}
