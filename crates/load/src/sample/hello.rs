//! Istio's helloworld: says which version and which instance answers.

use std::rc::Rc;

use ambit_net::drain::Guard;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use tokio::net::TcpListener;

use super::server;

/// What it says, read from `SERVICE_VERSION` and `HOSTNAME` as the original does.
#[derive(Debug)]
pub(crate) struct Hello(String);

impl Hello {
    /// The version of the environment goes before that of the image.
    pub(super) fn from_environment(
        version: String,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let version = variable("SERVICE_VERSION").unwrap_or(version);
        let instance = variable("HOSTNAME").unwrap_or_default();
        Self(format!("Hello version: {version}, instance: {instance}\n"))
    }

    /// Serves until it is asked to end.
    pub(super) async fn serve(self, listener: TcpListener, guard: Guard) {
        let own = Rc::new(self);
        let answer = move |request: Request<Incoming>, _| {
            let own = own.clone();
            async move { own.answer(request.uri().path()) }
        };
        server::serve_http(listener, guard, true, answer).await;
    }

    fn answer(&self, path: &str) -> Response<Full<Bytes>> {
        let (code, text) = match path {
            "/hello" => (StatusCode::OK, self.0.clone()),
            "/health" => (StatusCode::OK, "Helloworld is healthy".to_owned()),
            _ => (StatusCode::NOT_FOUND, "there is: /hello /health\n".to_owned()),
        };
        let mut answer = Response::new(Full::from(text));
        *answer.status_mut() = code;
        let kind = HeaderValue::from_static("text/html; charset=utf-8");
        answer.headers_mut().insert(CONTENT_TYPE, kind);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_version_and_the_instance_are_said() {
        let check = async |environment: &[(&str, &str)], path, expected| {
            let variable = |name: &str| {
                let found = environment.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let answer = Hello::from_environment("v1".to_owned(), variable).answer(path);
            let code = answer.status().as_u16();
            let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap();
            let body = String::from_utf8(body.to_bytes().into()).unwrap();
            assert_eq!((code, body.as_str()), expected);
        };
        let pod = [("HOSTNAME", "helloworld-v1-a")];
        check(&pod, "/hello", (200, "Hello version: v1, instance: helloworld-v1-a\n")).await;
        let set = [("SERVICE_VERSION", "v7")];
        check(&set, "/hello", (200, "Hello version: v7, instance: \n")).await;
        check(&[], "/health", (200, "Helloworld is healthy")).await;
        check(&[], "/", (404, "there is: /hello /health\n")).await;
    }
}
