//! The variables of a waypoint's pod that begin with `AMBIT_`.
//!
//! The waypoint reads them, and control reads them in the patches of its Deployment. One that is
//! misspelt would have no effect, and some of them are settings of security: so neither takes it.

use crate::spelling::nearest;

/// How the names of all begin.
const PREFIX: &str = "AMBIT_";
/// Where the pod is in the path of traffic: a waypoint unless it says otherwise.
pub const POSITION: &str = "AMBIT_POSITION";
/// What that says of a gateway at the edge.
pub const POSITION_GATEWAY: &str = "gateway";
/// Those of a waypoint.
pub const WAYPOINT: [&str; 29] = [
    "AMBIT_ACCESS_LOG",
    "AMBIT_ACCESS_LOG_FORMAT",
    "AMBIT_BODY_TIMEOUT",
    "AMBIT_DETECT_TIMEOUT",
    "AMBIT_HALF_CLOSE_TIMEOUT",
    "AMBIT_HBONE_ADDRESS",
    "AMBIT_HEAD_TIMEOUT",
    "AMBIT_HIDE_REASON",
    "AMBIT_IDLE_TIMEOUT",
    "AMBIT_MAX_BODY_BYTES",
    "AMBIT_MAX_BUFFERED_BYTES",
    "AMBIT_MAX_CLIENT_CONNECTIONS",
    "AMBIT_MAX_CONNECTION_AGE",
    "AMBIT_MAX_FIELDS",
    "AMBIT_MAX_HEAD_BYTES",
    "AMBIT_MAX_REQUESTS",
    "AMBIT_MAX_STREAMS",
    "AMBIT_METRICS_ADDRESS",
    "AMBIT_OTLP_LOGS",
    "AMBIT_OTLP_TIMEOUT",
    "AMBIT_OVERLOAD_LAG",
    "AMBIT_PATH_NORMALIZATION",
    POSITION,
    "AMBIT_PROXY_PROTOCOL",
    "AMBIT_READINESS_ADDRESS",
    "AMBIT_STREAM_IDLE_TIMEOUT",
    "AMBIT_TRACE_SAMPLING",
    "AMBIT_TRUSTED_PROXIES",
    "AMBIT_WAYPOINT_THREADS",
];
/// Where a machine's state is: of the user's commands, and so perhaps of a waypoint they start.
const STATE: &str = "AMBIT_STATE";

/// What is wrong with a variable of this name in a waypoint's environment.
pub fn waypoint_problem(name: &str) -> Option<String> {
    let is_other = !name.starts_with(PREFIX) || name == STATE || is_of_service(name);
    if is_other || WAYPOINT.contains(&name) {
        return None;
    }
    let meant = match nearest(name, WAYPOINT.into_iter()) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("it reads {}", WAYPOINT.join(", ")),
    };
    Some(format!("a waypoint has no variable {name}; {meant}"))
}

/// Whether Kubernetes sets it for a Service of the namespace: `NAME_SERVICE_HOST`, `NAME_PORT` and
/// longer ones.
fn is_of_service(name: &str) -> bool {
    let is_number = |rest: &str| rest.starts_with(|it: char| it.is_ascii_digit());
    ["_SERVICE_HOST", "_PORT"].iter().any(|end| name.ends_with(end))
        || name.contains("_SERVICE_PORT")
        || name.split("_PORT_").skip(1).any(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_variable_is_told_with_the_one_that_is_meant() {
        for name in [
            "AMBIT_PATH_NORMALIZATION",
            "AMBIT_STATE",
            "PATH",
            "RUST_LOG",
            "AMBIT_WAY_SERVICE_HOST",
            "AMBIT_WAY_SERVICE_PORT",
            "AMBIT_WAY_SERVICE_PORT_MESH",
            "AMBIT_WAY_PORT",
            "AMBIT_WAY_PORT_15008_TCP",
            "AMBIT_WAY_PORT_15008_TCP_ADDR",
        ] {
            assert_eq!(waypoint_problem(name), None, "{name}");
        }
        for (name, meant) in [
            ("AMBIT_PATH_NORMALISATION", "did you mean AMBIT_PATH_NORMALIZATION?"),
            ("AMBIT_WAYPOINT_THREAD", "did you mean AMBIT_WAYPOINT_THREADS?"),
            ("AMBIT_NOTHING_THAT_ANYBODY_KNOWS", "it reads AMBIT_ACCESS_LOG, "),
        ] {
            let problem = waypoint_problem(name).unwrap_or_default();
            assert!(problem.contains(name) && problem.contains(meant), "{name}: {problem}");
        }
    }
}
