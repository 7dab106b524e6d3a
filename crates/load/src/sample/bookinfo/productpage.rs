//! The front end of bookinfo: a page made from the answers of details and reviews.
//!
//! A page with a missing part has status 200 and an apology, as the original's. With
//! `FAIL_INCOMPLETE=true` it has status 500: a load generator must see that a call failed.

use std::rc::Rc;
use std::time::Duration;

use ambit_net::drain::Guard;
use http::header::HeaderMap;
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;

use super::page::{self, Details, Reviews};
use super::{Service, ServiceError, forwarded, json, not_found, product, response};
use crate::sample::client::{Answered, Client};
use crate::sample::server;

/// `true` has a page with a missing part fail. The original does not know the variable.
const FAIL_INCOMPLETE: &str = "FAIL_INCOMPLETE";
/// How long each service may take.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How often reviews is asked, as the original does.
const REVIEWS_ATTEMPTS: usize = 2;
/// The product that the page shows.
const PRODUCT: u32 = 0;
const HTML: &str = "text/html; charset=utf-8";
const PRODUCTS: &str = r#"[{"id": 0, "title": "The Comedy of Errors"}]"#;
const INDEX: &str = "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
    <title>Bookinfo</title></head>\n<body>\n<h1>Bookinfo</h1>\n\
    <p><a href=\"/productpage\">The Comedy of Errors</a></p>\n</body>\n</html>\n";

/// Which connections it ends.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Closing {
    /// End the client's connection after each answer, as the release of Istio 1.22.
    #[arg(long)]
    close: bool,
    /// Open a new connection for each call of another service.
    #[arg(long)]
    close_upstream: bool,
}

/// A front that is set up.
#[derive(Debug)]
pub(crate) struct Productpage {
    keep_alive: bool,
    fails_incomplete: bool,
    client: Client,
    details: Service,
    reviews: Service,
    ratings: Service,
}

impl Productpage {
    /// Reads the environment.
    pub(in crate::sample) fn from_environment(
        closing: Closing,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ServiceError> {
        Ok(Self {
            keep_alive: !closing.close,
            fails_incomplete: variable(FAIL_INCOMPLETE).is_some_and(|it| it == "true"),
            client: Client::new(TIMEOUT, !closing.close_upstream),
            details: Service::named("details", &variable)?,
            reviews: Service::named("reviews", &variable)?,
            ratings: Service::named("ratings", &variable)?,
        })
    }

    /// Serves until it is asked to end.
    pub(in crate::sample) async fn serve(self, listener: TcpListener, guard: Guard) {
        let keep_alive = self.keep_alive;
        let front = Rc::new(self);
        let answer = move |request: Request<Incoming>, _| {
            let front = Rc::clone(&front);
            async move { front.answer(&request).await }
        };
        server::serve_http(listener, guard, keep_alive, answer).await;
    }

    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let headers = forwarded(request.headers());
        match request.uri().path() {
            "/" | "/index.html" => response(StatusCode::OK, HTML, INDEX),
            "/health" => response(StatusCode::OK, HTML, "Product page is healthy"),
            "/productpage" => self.page(headers).await,
            "/api/v1/products" => json(StatusCode::OK, PRODUCTS),
            path => self.product(path, headers).await,
        }
    }

    async fn page(&self, headers: HeaderMap) -> Response<Full<Bytes>> {
        let details = self.ask(&self.details, PRODUCT, &headers).await;
        let mut reviews = None;
        for _ in 0..REVIEWS_ATTEMPTS {
            reviews = self.ask(&self.reviews, PRODUCT, &headers).await;
            if reviews.is_some() {
                break;
            }
        }
        let details: Option<Details> = details.and_then(|body| read(&body));
        let reviews: Option<Reviews> = reviews.and_then(|body| read(&body));
        let is_complete = details.is_some() && reviews.as_ref().is_some_and(Reviews::is_complete);
        let status = match self.fails_incomplete && !is_complete {
            true => StatusCode::INTERNAL_SERVER_ERROR,
            false => StatusCode::OK,
        };
        response(status, HTML, page::page(details.as_ref(), reviews.as_ref()))
    }

    /// `/api/v1/products/ID`, `/api/v1/products/ID/reviews`, `/api/v1/products/ID/ratings`.
    async fn product(&self, path: &str, headers: HeaderMap) -> Response<Full<Bytes>> {
        let (path, service) = if let Some(path) = path.strip_suffix("/reviews") {
            (path, &self.reviews)
        } else if let Some(path) = path.strip_suffix("/ratings") {
            (path, &self.ratings)
        } else {
            (path, &self.details)
        };
        let Some(product) = product(path, "/api/v1/products/") else { return not_found() };
        match self.ask(service, product, &headers).await {
            Some(body) => json(StatusCode::OK, body),
            None => json(StatusCode::INTERNAL_SERVER_ERROR, r#"{"error":"currently unavailable"}"#),
        }
    }

    /// The answer of a service, if it has a good one.
    async fn ask(&self, service: &Service, product: u32, headers: &HeaderMap) -> Option<Bytes> {
        let uri = service.of_product(product);
        match self.client.get(&uri, headers.clone()).await {
            Ok(Answered { status: StatusCode::OK, body, .. }) => Some(body),
            Ok(answered) => {
                eprintln!("{uri} answered {}", answered.status.as_u16());
                None
            }
            Err(error) => {
                eprintln!("{error}");
                None
            }
        }
    }
}

fn read<T: DeserializeOwned>(body: &Bytes) -> Option<T> {
    let read = serde_json::from_slice(body);
    read.map_err(|error| eprintln!("an answer that is not of the known form: {error}")).ok()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::task::LocalSet;

    use crate::sample::tests::start;

    /// Sends two requests on one connection; the last one asks to close it.
    async fn exchange(address: SocketAddr, path: &str) -> Vec<String> {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let first = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
        let last = format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        stream.write_all((first + &last).as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text.split("HTTP/1.1 ").skip(1).map(str::to_owned).collect()
    }

    fn port(address: SocketAddr) -> String {
        address.port().to_string()
    }

    #[tokio::test]
    async fn four_services_make_one_page() {
        let client = async {
            let (ratings, _ratings) = start(&["ratings"], &[]);
            let (details, _details) = start(&["details"], &[]);
            let ratings_port = port(ratings);
            let here = |port: &'static str| (port, "127.0.0.1");
            let environment = [
                here("RATINGS_HOSTNAME"),
                ("RATINGS_SERVICE_PORT", &ratings_port),
                ("HOSTNAME", "reviews-pod"),
            ];
            let (reviews, _reviews) = start(&["reviews", "--version", "v3"], &environment);
            let (reviews_port, details_port) = (port(reviews), port(details));
            let environment = [
                here("RATINGS_HOSTNAME"),
                here("REVIEWS_HOSTNAME"),
                here("DETAILS_HOSTNAME"),
                ("RATINGS_SERVICE_PORT", &*ratings_port),
                ("REVIEWS_SERVICE_PORT", &reviews_port),
                ("DETAILS_SERVICE_PORT", &details_port),
            ];
            for (words, answers) in
                [(&["productpage"][..], 2), (&["productpage", "--close", "--close-upstream"], 1)]
            {
                let (front, _front) = start(words, &environment);
                let pages = exchange(front, "/productpage").await;
                assert_eq!(pages.len(), answers, "{words:?}: {pages:?}");
                for page in pages {
                    assert!(page.starts_with("200 OK\r\n"), "{page}");
                    assert!(page.contains("\r\nContent-Type: text/html; charset=utf-8\r\n"));
                    for part in ["<td>William Shakespeare</td>", "reviews-pod", "color: red"] {
                        assert!(page.contains(part), "{part}: {page}");
                    }
                }
                let ratings = exchange(front, "/api/v1/products/0/ratings").await;
                assert!(ratings[0].ends_with(r#""ratings":{"Reviewer1":5,"Reviewer2":4}}"#));
                let unknown = exchange(front, "/nothing").await;
                assert!(unknown[0].starts_with("404 "), "{unknown:?}");
            }
        };
        LocalSet::new().run_until(client).await;
    }

    #[tokio::test]
    async fn a_page_on_which_something_is_missing_says_so_and_may_fail() {
        let client = async {
            let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let (details, _details) = start(&["details", "--two-writes"], &[]);
            let (gone_port, details_port) = (port(gone), port(details));
            let environment = [
                ("RATINGS_HOSTNAME", "127.0.0.1"),
                ("RATINGS_SERVICE_PORT", &*gone_port),
                ("DETAILS_HOSTNAME", "127.0.0.1"),
                ("DETAILS_SERVICE_PORT", &details_port),
                ("REVIEWS_HOSTNAME", "127.0.0.1"),
            ];
            let (reviews, _reviews) = start(&["reviews", "--version", "v2"], &environment);
            for (reviews_port, part) in [
                (port(reviews), "Ratings service is currently unavailable"),
                (gone_port.clone(), "Error fetching product reviews!"),
                (gone_port.clone(), "Sorry, product reviews are currently unavailable"),
            ] {
                let all = [&environment[..], &[("REVIEWS_SERVICE_PORT", &*reviews_port)]].concat();
                for (fails, status) in [("true", "500 "), ("false", "200 ")] {
                    let all = [&all[..], &[("FAIL_INCOMPLETE", fails)]].concat();
                    let (front, _front) = start(&["productpage"], &all);
                    let page = exchange(front, "/productpage").await.remove(0);
                    assert!(page.starts_with(status), "{page}");
                    assert!(page.contains(part) && page.contains("<td>William Shakespeare</td>"));
                }
            }
        };
        LocalSet::new().run_until(client).await;
    }
}
