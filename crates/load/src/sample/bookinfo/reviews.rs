//! The reviews service of bookinfo in its three versions: without ratings, with black stars, with
//! red ones.

use std::rc::Rc;
use std::time::Duration;

use ambit_net::drain::Guard;
use clap::ValueEnum;
use http::header::HeaderMap;
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use serde::Deserialize;
use serde_json::{Value, json as value};
use tokio::net::TcpListener;

use super::{Service, ServiceError, forwarded, json, not_found, product};
use crate::sample::client::Client;
use crate::sample::server;

const REVIEWS: [(&str, &str); 2] = [
    (
        "Reviewer1",
        "An evening of quick wit and quicker exits. The confusion never lets up, and it is a joy!",
    ),
    (
        "Reviewer2",
        "Great fun from the first mistake to the last. Do not look for depth here, as there is \
         little next to the later plays.",
    ),
];

/// A version of reviews.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Version {
    /// Without ratings.
    V1,
    /// With ratings as black stars.
    V2,
    /// With ratings as red stars.
    V3,
}

impl Version {
    /// The colour of its stars, if it has any.
    fn color(self) -> Option<&'static str> {
        match self {
            Self::V1 => None,
            Self::V2 => Some("black"),
            Self::V3 => Some("red"),
        }
    }

    /// How long it waits for ratings, as the original's versions do.
    fn timeout(self) -> Duration {
        match self {
            Self::V1 | Self::V2 => Duration::from_secs(10),
            Self::V3 => Duration::from_millis(2500),
        }
    }
}

/// A reviews service that is set up.
#[derive(Debug)]
pub(crate) struct Reviews {
    version: Version,
    pod: String,
    ratings: Service,
    client: Client,
}

/// What ratings answers.
#[derive(Debug, Deserialize)]
struct Ratings {
    ratings: Stars,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Stars {
    reviewer1: u8,
    reviewer2: u8,
}

impl Reviews {
    /// Reads the environment.
    pub(in crate::sample) fn from_environment(
        version: Version,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ServiceError> {
        let pod = variable("HOSTNAME").unwrap_or_else(|| "null".to_owned());
        let ratings = Service::named("ratings", variable)?;
        Ok(Self { version, pod, ratings, client: Client::new(version.timeout(), true) })
    }

    /// Serves until it is asked to end.
    pub(in crate::sample) async fn serve(self, listener: TcpListener, guard: Guard) {
        let service = Rc::new(self);
        let answer = move |request: Request<Incoming>, _| {
            let service = Rc::clone(&service);
            async move { service.answer(&request).await }
        };
        server::serve_http(listener, guard, true, answer).await;
    }

    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        if path == "/health" {
            return json(StatusCode::OK, r#"{"status": "Reviews is healthy"}"#);
        }
        let Some(product) = product(path, "/reviews/") else { return not_found() };
        let ratings = match self.version.color() {
            None => [None, None],
            Some(color) => {
                let stars = self.stars(product, request.headers()).await;
                stars.map(|stars| Some(rating(stars, color)))
            }
        };
        let reviews: Vec<Value> = REVIEWS
            .iter()
            .zip(ratings)
            .map(|((reviewer, text), rating)| {
                let mut review = value!({"reviewer": reviewer, "text": text});
                if let Some(rating) = rating {
                    review["rating"] = rating;
                }
                review
            })
            .collect();
        let all = value!({
            "id": product.to_string(),
            "podname": self.pod,
            "clustername": "null",
            "reviews": reviews,
        });
        json(StatusCode::OK, all.to_string())
    }

    async fn stars(&self, product: u32, headers: &HeaderMap) -> [Option<u8>; 2] {
        let uri = self.ratings.of_product(product);
        let answered = match self.client.get(&uri, forwarded(headers)).await {
            Ok(answered) if answered.status == StatusCode::OK => answered,
            Ok(answered) => {
                eprintln!("{uri} answered {}", answered.status.as_u16());
                return [None; 2];
            }
            Err(error) => {
                eprintln!("{error}");
                return [None; 2];
            }
        };
        let ratings = serde_json::from_slice::<Ratings>(&answered.body);
        ratings.map_or([None; 2], |it| [Some(it.ratings.reviewer1), Some(it.ratings.reviewer2)])
    }
}

fn rating(stars: Option<u8>, color: &str) -> Value {
    match stars {
        Some(stars) => value!({"stars": stars, "color": color}),
        None => value!({"error": "Ratings service is currently unavailable"}),
    }
}
