//! Connections that are no HTTP: judged as bytes, and passed on to an endpoint.
//!
//! What a policy asks of requests cannot be known of bytes, so it is read strictly: such a rule of
//! an ALLOW policy never matches, and of a DENY policy what remains of it decides.

use std::time::Instant;

use ambit_http::engine::halves::BoxStream;
use ambit_http::engine::position::{Arrival, EndpointAsk, Goal, Position as _};
use tokio::io::copy_bidirectional;

use crate::position::Here;
use crate::telemetry;

/// Serves one connection to its end.
pub(crate) async fn serve(here: &Here, arrival: Arrival, mut client: BoxStream) {
    let started = Instant::now();
    if let Some(denial) = here.judge_bytes(&arrival).await {
        return telemetry::passage(&arrival, None, started, Err(&*denial));
    }
    let ask = EndpointAsk {
        arrival: &arrival,
        goal: Goal::Original,
        hash: None,
        pinned: None,
        tried: &[],
        is_ejected: &|_| false,
    };
    let endpoint = match here.choose(&ask) {
        Ok(endpoint) => endpoint,
        Err(none) => return telemetry::passage(&arrival, None, started, Err(&*none.text)),
    };
    let address = Some(endpoint.address);
    let mut server = match here.connect(&arrival, &endpoint).await {
        Ok(server) => server,
        Err(none) => return telemetry::passage(&arrival, address, started, Err(&*none.text)),
    };
    match copy_bidirectional(&mut client, &mut server).await {
        Ok(bytes) => telemetry::passage(&arrival, address, started, Ok(bytes)),
        Err(error) => telemetry::passage(&arrival, address, started, Err(&*error.to_string())),
    }
}
