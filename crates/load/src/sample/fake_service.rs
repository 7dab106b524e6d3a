//! The service of the tiered application: it calls others, and answers with what they answered.
//!
//! Set up by the environment variables of nicholasjackson/fake-service, and answers in its JSON, so
//! that manifests and tools made for that one work. HTTP only. Connections are used again where the
//! variables allow it.

mod answer;
mod settings;
mod upstream;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use ambit_net::drain::Guard;
use ambit_words::durations::write_duration;
use futures::StreamExt;
use futures::stream;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode, header};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep_until};

use self::answer::Answer;
use self::settings::{Settings, SettingsError};
use self::upstream::Upstreams;
use super::server::{self, Ends};

/// A service that is set up.
#[derive(Debug)]
pub(crate) struct FakeService {
    settings: Settings,
    upstreams: Upstreams,
    notices: Vec<String>,
    /// Requests so far; decides which of them take how long.
    served: Cell<u64>,
}

impl FakeService {
    /// Reads the environment.
    pub(crate) fn from_environment(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingsError> {
        let settings = Settings::read(&variable)?;
        let upstreams = Upstreams::new(&settings);
        let notices = settings::without_effect(variable);
        Ok(Self { settings, upstreams, notices, served: Cell::new(0) })
    }

    /// What of the environment has no effect.
    pub(crate) fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Where it is to listen.
    pub(crate) fn listen_address(&self) -> &str {
        &self.settings.listen_address
    }

    /// Serves until it is asked to end.
    pub(crate) async fn serve(self, listener: TcpListener, guard: Guard) {
        let keep_alive = self.settings.server_keep_alives;
        let service = Rc::new(self);
        let answer = move |request, ends| {
            let service = Rc::clone(&service);
            async move { service.answer(&request, ends).await }
        };
        server::serve_http(listener, guard, keep_alive, answer).await;
    }

    async fn answer(&self, request: &Request<Incoming>, ends: Ends) -> Response<Full<Bytes>> {
        if matches!(request.uri().path(), "/health" | "/ready") {
            return Response::new(Full::from("OK"));
        }
        let (start_time, start) = (SystemTime::now(), Instant::now());
        let calls = self.call_upstreams(request).await;
        let earliest = start + self.least_duration();
        // The runtime's clock counts in milliseconds: no delay must not become one of them.
        if Instant::now() < earliest {
            sleep_until(earliest).await;
        }
        let error = calls.values().find_map(|call| call.error.clone());
        let status = match &error {
            None => StatusCode::OK,
            Some(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let answer = Answer {
            name: self.settings.name.clone(),
            uri: request.uri().to_string(),
            kind: "HTTP".to_owned(),
            ip_addresses: vec![ends.local.ip().to_string()],
            start_time: answer::timestamp(start_time),
            end_time: answer::timestamp(SystemTime::now()),
            duration: write_duration(start.elapsed()),
            headers: BTreeMap::new(),
            body: self.settings.message.clone(),
            upstream_calls: calls,
            code: i32::from(status.as_u16()),
            error,
        };
        let mut response = Response::new(Full::from(answer.to_text()));
        *response.status_mut() = status;
        // The original names no type, and its library takes JSON for text.
        let text = header::HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, text);
        response
    }

    async fn call_upstreams(&self, request: &Request<Incoming>) -> BTreeMap<String, Answer> {
        let (path, headers) = (request.uri().path(), request.headers());
        stream::iter(&self.settings.upstreams)
            .map(async |upstream| {
                let answer = self.upstreams.call(upstream, path, headers).await;
                (upstream.written.clone(), answer)
            })
            .buffer_unordered(self.settings.workers)
            .collect()
            .await
    }

    /// How long the next answer takes at least: 90 in 100 as the 50th percentile says, 9 as the
    /// 90th, 1 as the 99th.
    fn least_duration(&self) -> Duration {
        let number = self.served.replace(self.served.get().wrapping_add(1));
        let [p50, p90, p99] = self.settings.timing;
        // 37 has no factor in common with 100: every value comes once per hundred, well spread.
        match number.wrapping_mul(37) % 100 {
            0..90 => p50,
            90..99 => p90,
            _ => p99,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::task::LocalSet;

    use super::*;
    use crate::sample::tests::start;

    async fn get(address: std::net::SocketAddr) -> (String, Value, String) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().to_owned();
        (status, serde_json::from_str(body).unwrap(), body.to_owned())
    }

    #[tokio::test]
    async fn three_tiers_answer_as_one() {
        let client = async {
            let tier = |name, upstreams: &[std::net::SocketAddr]| {
                let uris: Vec<String> = upstreams.iter().map(|ip| format!("http://{ip}")).collect();
                let uris = uris.join(",");
                let message = format!("Hello From {} !", name_of_service(name));
                let environment = [
                    ("HTTP_SERVER_KEEP_ALIVES", "true"),
                    ("HTTP_CLIENT_KEEP_ALIVES", "true"),
                    ("UPSTREAM_WORKERS", "2"),
                    ("NAME", name),
                    ("MESSAGE", &message),
                    ("UPSTREAM_URIS", &uris),
                ];
                start(&["fake-service"], &environment)
            };
            let (third, _third) = tier("tier-3-app-a-v1", &[]);
            let (second_a, _second_a) = tier("tier-2-app-a-v1", &[third]);
            let (second_b, _second_b) = tier("tier-2-app-b-v1", &[third]);
            let (first, _first) = tier("tier-1-app-a", &[second_a, second_b]);
            let (status, answer, mut text) = get(first).await;
            assert_eq!(status, "200");
            assert_eq!(answer["name"], "tier-1-app-a");
            assert_eq!(answer["uri"], "/");
            assert_eq!(answer["type"], "HTTP");
            assert_eq!(answer["ip_addresses"], serde_json::json!(["127.0.0.1"]));
            let second = &answer["upstream_calls"][format!("http://{second_b}")];
            assert_eq!(second["name"], "tier-2-app-b-v1");
            let fields: Vec<&str> =
                second["headers"].as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(fields, ["Content-Length", "Content-Type", "Date"]);
            assert_eq!(second["headers"]["Content-Type"], "text/plain; charset=utf-8");
            let uri = format!("http://{third}");
            let bottom = &second["upstream_calls"][&uri];
            assert_eq!(bottom["uri"], uri);
            assert_eq!(bottom["code"], 200);
            assert_eq!(bottom["body"], "Hello From tier-3-app-a !");
            // As long as published, with the names that the services have there.
            for (address, name) in
                [(third, "tier-3-app-a"), (second_a, "tier-2-app-a"), (second_b, "tier-2-app-b")]
            {
                text =
                    text.replace(&format!("http://{address}"), &format!("http://{name}.ns-1:8080"));
            }
            assert!(text.len().abs_diff(2726) < 54, "{} bytes, the original has 2726", text.len());
        };
        LocalSet::new().run_until(client).await;
    }

    fn name_of_service(deployment: &str) -> &str {
        deployment.trim_end_matches("-v1")
    }

    #[tokio::test]
    async fn a_request_goes_on_with_its_path_and_header() {
        let client = async {
            let upstream = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let uri = format!("http://{}/base", upstream.local_addr().unwrap());
            let (service, _service) = start(&["fake-service"], &[("UPSTREAM_URIS", &uri)]);
            let mut stream = TcpStream::connect(service).await.unwrap();
            let request = "GET /a HTTP/1.1\r\nHost: a\r\nX-Request-Id: 7\r\n\r\n";
            stream.write_all(request.as_bytes()).await.unwrap();
            let (mut called, _) = upstream.accept().await.unwrap();
            let mut head = vec![0; 1024];
            let count = called.read(&mut head).await.unwrap();
            let head = String::from_utf8_lossy(&head[..count]).into_owned();
            assert!(head.starts_with("GET /base/a HTTP/1.1\r\n"), "{head}");
            assert!(head.contains("\r\nX-Request-Id: 7\r\n"), "{head}");
            assert_eq!(head.matches("Host: ").count(), 1, "{head}");
        };
        LocalSet::new().run_until(client).await;
    }

    #[tokio::test]
    async fn an_upstream_that_fails_makes_the_answer_fail() {
        let client = async {
            let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let uri = format!("http://{gone}");
            let (address, _drain) = start(&["fake-service"], &[("UPSTREAM_URIS", &uri)]);
            let (status, answer, _) = get(address).await;
            assert_eq!(status, "500");
            assert_eq!(answer["code"], 500);
            assert!(answer["error"].as_str().unwrap().contains(&uri), "{answer}");
            assert_eq!(answer["upstream_calls"][&uri]["code"], -1);
        };
        LocalSet::new().run_until(client).await;
    }

    #[tokio::test]
    async fn of_a_hundred_answers_ten_are_slower() {
        let variable = |name: &str| match name {
            "TIMING_50_PERCENTILE" => Some("1ms".to_owned()),
            "TIMING_90_PERCENTILE" => Some("2ms".to_owned()),
            "TIMING_99_PERCENTILE" => Some("3ms".to_owned()),
            _ => None,
        };
        let service = FakeService::from_environment(variable).unwrap();
        let mut counts = [0; 4];
        for _ in 0..100 {
            counts[service.least_duration().as_millis() as usize] += 1;
        }
        assert_eq!(counts, [0, 90, 9, 1]);
    }
}
