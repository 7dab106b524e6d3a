//! Keys of annotations.

/// On a pod: [`ENABLED`] if it is captured. The agent writes it.
pub const REDIRECTION: &str = "ambient.istio.io/redirection";
/// The value of [`REDIRECTION`] of a captured pod.
pub const ENABLED: &str = "enabled";
/// On a pod: `true` leaves connections to it alone.
pub const BYPASS_INBOUND_CAPTURE: &str = "ambient.istio.io/bypass-inbound-capture";
/// On a pod: how many open connections are older than its capture. The agent writes it.
pub const OLDER_CONNECTIONS: &str = "ambit.io/older-connections";
/// On a pod: the kernel parameter that its capture lacks. The agent writes it.
pub const CAPTURE_LACKS: &str = "ambit.io/capture-lacks";
/// On a pod: why it is not captured, although it is enrolled. The agent writes it.
pub const NOT_CAPTURED: &str = "ambit.io/not-captured";
/// On the agents' DaemonSet: the order to leave; on an agent's pod: its answer.
pub const DEPARTURE: &str = "ambit.io/departure";
/// On what has a canary waypoint: how many of a hundred new connections go there.
pub const USE_WAYPOINT_CANARY_WEIGHT: &str = "istio.io/use-waypoint-canary-weight";
/// On a Gateway: how the objects that are made for it are called.
pub const GATEWAY_NAME_OVERRIDE: &str = "gateway.istio.io/name-override";
/// On a Gateway: the account that its pods run as.
pub const GATEWAY_SERVICE_ACCOUNT: &str = "gateway.istio.io/service-account";
/// On a Gateway: the URL of the directory from which it has its certificates (RFC 8555, 7.1.1).
pub const ACME_DIRECTORY: &str = "ambit.io/acme-directory";
/// On a Gateway: the address to which the directory's operator may write.
pub const ACME_EMAIL: &str = "ambit.io/acme-email";
/// On a Gateway: the ConfigMap with the roots by which the directory itself is verified.
pub const ACME_DIRECTORY_CA: &str = "ambit.io/acme-directory-ca";
/// On a Gateway's Service: what the gateway answers to a directory. Control writes it.
pub const ACME_CHALLENGES: &str = "ambit.io/acme-challenges";
/// On an AuthorizationPolicy: `true` puts it on trial.
pub const DRY_RUN: &str = "istio.io/dry-run";
/// On an AuthorizationPolicy: a CEL expression that must be true for one of its rules to match.
pub const CONDITION: &str = "ambit.io/condition";

/// Where kubectl keeps the whole object as it was applied.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
