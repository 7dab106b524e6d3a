//! What users type instead of the plural of a kind, as Kubernetes, Istio and the Gateway API define
//! it, and words of single kinds.

/// A kind of Kubernetes.
pub const HORIZONTAL_POD_AUTOSCALER: &str = "HorizontalPodAutoscaler";
/// The one thing that its older version `autoscaling/v1` aims at.
pub const TARGET_CPU_PERCENTAGE: &str = "targetCPUUtilizationPercentage";

/// Short names, each with its plural.
pub const SHORT_NAMES: [(&str, &str); 29] = [
    ("ap", "authorizationpolicies"),
    ("btlspolicy", "backendtlspolicies"),
    ("cj", "cronjobs"),
    ("cm", "configmaps"),
    ("crd", "customresourcedefinitions"),
    ("deploy", "deployments"),
    ("dr", "destinationrules"),
    ("ds", "daemonsets"),
    ("ep", "endpoints"),
    ("ev", "events"),
    ("gc", "gatewayclasses"),
    ("gtw", "gateways"),
    ("hpa", "horizontalpodautoscalers"),
    ("lset", "listenersets"),
    ("no", "nodes"),
    ("ns", "namespaces"),
    ("pa", "peerauthentications"),
    ("pdb", "poddisruptionbudgets"),
    ("po", "pods"),
    ("pvc", "persistentvolumeclaims"),
    ("ra", "requestauthentications"),
    ("refgrant", "referencegrants"),
    ("sa", "serviceaccounts"),
    ("se", "serviceentries"),
    ("sts", "statefulsets"),
    ("svc", "services"),
    ("telemetry", "telemetries"),
    ("vs", "virtualservices"),
    ("we", "workloadentries"),
];
