//! Every flag and variable, by table.

use clap::{Args as _, Command, FromArgMatches as _};
use zeroize::Zeroizing;

use super::*;

/// Parses flags as given and variables as clap would: each as its flag.
pub(crate) fn config(flags: &[&str], variables: &[(&str, &str)]) -> Result<Config, String> {
    let command = Args::augment_args(Command::new("proxy").no_binary_name(true));
    let mut words: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    for (name, value) in variables {
        let bound = command.get_arguments().find(|it| it.get_env().is_some_and(|env| env == *name));
        if let Some(argument) = bound {
            let flag = argument.get_long().expect("every argument is a flag");
            words.push(format!("--{flag}={value}"));
        }
    }
    if !words.iter().any(|word| word.starts_with("--node-name")) {
        words.push("--node-name=node-1".into());
    }
    // What the test's own environment holds does not count.
    let command = command.mut_args(|argument| argument.env(None::<&str>));
    let matches = command.try_get_matches_from(words).map_err(|error| error.to_string())?;
    let args = Args::from_arg_matches(&matches).map_err(|error| error.to_string())?;
    let environment = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    let config = Config::new(&args, &environment.collect());
    config.map_err(|error| format!("{:#}", anyhow::Error::new(error)))
}

fn check<T>(variables: &[(&str, &str)], read: impl Fn(&Config) -> T, expected: T)
where
    T: PartialEq + std::fmt::Debug,
{
    let config = config(&[], variables).unwrap_or_else(|error| panic!("{variables:?}: {error}"));
    assert_eq!(read(&config), expected, "{variables:?}");
}

#[test]
fn variables_of_ztunnel_mean_what_they_mean_there() {
    let seconds = Duration::from_secs;
    check(&[("NODE_NAME", "n")], |it| it.node.name.to_string(), "n".into());
    check(&[("NETWORK", "n2")], |it| it.node.network.to_string(), "n2".into());
    check(&[("PACKET_MARK", "7")], |it| it.sockets.mark, Some(7));
    check(&[("IPV6_ENABLED", "false")], |it| it.sockets.ipv6, false);
    check(&[("KEEPALIVE_ENABLED", "false")], |it| it.sockets.keepalive.is_none(), true);
    let keepalive = |it: &Config| it.sockets.keepalive.expect("switched on");
    check(&[("KEEPALIVE_TIME", "10s")], |it| keepalive(it).time, seconds(10));
    check(&[("KEEPALIVE_INTERVAL", "1m")], |it| keepalive(it).interval, seconds(60));
    check(&[("KEEPALIVE_RETRIES", "3")], |it| keepalive(it).retries, 3);
    let timeout = seconds(180 + 9 * 180);
    check(&[("USER_TIMEOUT_ENABLED", "true")], |it| it.sockets.user_timeout, Some(timeout));
    check(&[("INPOD_UDS", "/u")], |it| it.zds_socket.clone(), "/u".into());
    check(&[("CLUSTER_ID", "c")], |it| it.node.cluster_id.to_string(), "c".into());
    let both = [("CLUSTER_ID", "c"), ("ISTIO_META_CLUSTER_ID", "m")];
    check(&both, |it| it.node.cluster_id.to_string(), "m".into());
    check(&[("CLUSTER_DOMAIN", "d")], |it| it.node.cluster_domain.to_string(), "d".into());
    check(&[("TRUST_DOMAIN", "t")], |it| it.node.trust_domain.to_string(), "t".into());
    check(&[("XDS_ON_DEMAND", "true")], |it| it.on_demand, true);
    check(&[("SECRET_TTL", "1h")], |it| it.certificate_ttl, seconds(3600));
    check(&[("CRL_PATH", "/crl")], |it| it.crl_path.clone(), "/crl".into());
    check(&[("HTTP2_STREAM_WINDOW_SIZE", "70000")], |it| it.hbone.stream_window_bytes, 70_000);
    let window = [("HTTP2_CONNECTION_WINDOW_SIZE", "80000")];
    check(&window, |it| it.hbone.connection_window_bytes, 80_000);
    check(&[("HTTP2_FRAME_SIZE", "16384")], |it| it.hbone.frame_size_bytes, 16_384);
    let streams = [("POOL_MAX_STREAMS_PER_CONNECTION", "5")];
    check(&streams, |it| it.hbone.max_streams_per_connection, 5);
    check(&[("POOL_UNUSED_RELEASE_TIMEOUT", "9s")], |it| it.hbone.idle_timeout, seconds(9));
    check(&[("ENABLE_ORIG_SRC", "false")], |it| it.original_source, false);
    check(&[("LOCALHOST_APP_TUNNEL", "false")], |it| it.localhost_app_tunnel, false);
    check(&[("ENABLE_RESPONSE_BAGGAGE", "false")], |it| it.response_baggage, false);
    check(&[("AUTHZ_POLICY_INFO_LOGGING", "true")], |it| it.policy_info_logging, true);
}

#[test]
fn what_may_wait_for_slow_readers_follows_the_memory_limit() {
    const MIB: usize = 1 << 20;
    let budget = |flags: &[&str], limit: Option<usize>| {
        let matches = Args::augment_args(Command::new("proxy").no_binary_name(true));
        let words = ["--node-name=n"].iter().chain(flags);
        let args = Args::from_arg_matches(&matches.get_matches_from(words)).expect("valid");
        let environment = Environment::default();
        let environment = match limit {
            Some(bytes) => environment.limited_to(bytes),
            None => environment,
        };
        let config = Config::new(&args, &environment).map_err(|error| error.to_string())?;
        Ok::<_, String>((config.memory.worker_bytes, config.memory.pod_bytes))
    };
    assert_eq!(budget(&[], None), Ok((512 * MIB, 128 * MIB)));
    assert_eq!(budget(&[], Some(1024 * MIB)), Ok((256 * MIB, 64 * MIB)));
    assert_eq!(budget(&[], Some(64 * MIB)), Ok((16 * MIB, 16 * MIB)));
    let given = budget(&["--memory-budget=100000000"], Some(1024 * MIB));
    assert_eq!(given, Ok((100_000_000, 25_000_000)));
    let both = ["--memory-budget=100000000", "--pod-memory-budget=50000000"];
    assert_eq!(budget(&both, None), Ok((100_000_000, 50_000_000)));
    let refused = budget(&["--memory-budget=1000"], None).expect_err("too little");
    assert!(refused.contains("1000 is not between 16777216 and"), "{refused}");
    let refused = budget(&["--pod-memory-budget=1000000000"], None).expect_err("too much");
    assert!(refused.contains("and 536870912 bytes"), "{refused}");
}

#[test]
fn the_control_plane_is_found_in_every_form() {
    let uri = |it: &Config| it.discovery.uri.to_string();
    check(&[], uri, "https://localhost:15012/".into());
    let in_cluster = [("KUBERNETES_SERVICE_HOST", "10.96.0.1")];
    check(&in_cluster, uri, "https://istiod.istio-system.svc:15012/".into());
    check(&[("XDS_ADDRESS", "http://c:15010")], uri, "http://c:15010/".into());
    check(&[("XDS_ADDRESS", "c:15012")], uri, "https://c:15012/".into());
    let ca = [("CA_ADDRESS", "https://[fd00::1]:15012")];
    check(&ca, |it| it.authority.uri.to_string(), "https://[fd00::1]:15012/".into());
    check(&ca, |it| it.authority.server_name.clone(), "fd00::1".into());
    let alternative = [("ALT_XDS_HOSTNAME", "a"), ("ALT_CA_HOSTNAME", "b")];
    let names = |it: &Config| (it.discovery.server_name.clone(), it.authority.server_name.clone());
    check(&alternative, names, ("a".into(), "b".into()));
    let file = |path: &str| RootCertificate::File(path.into());
    check(&[("XDS_ROOT_CA", "/r.pem")], |it| it.discovery.root.clone(), file("/r.pem"));
    check(&[("CA_ROOT_CA", "SYSTEM")], |it| it.authority.root.clone(), RootCertificate::System);
    let pem = "-----BEGIN CERTIFICATE-----\nx";
    let inline = RootCertificate::Pem(pem.into());
    check(&[("CA_ROOT_CA", pem)], |it| it.authority.root.clone(), inline);
    check(&[("CA_ROOT_CA", "/r/root.pem")], |it| it.crl_path.clone(), "/r/ca-crl.pem".into());
    let token = |it: &Config| it.token.clone();
    check(&[("AUTH_TOKEN", "/t")], token, Token::File("/t".into()));
    let literal = Token::Literal(Zeroizing::new("a.b.c".into()));
    check(&[("AUTH_TOKEN", "a.b.c")], token, literal);
    let headers = [("XDS_HEADER_X-One", "1"), ("CA_HEADER_x-two", "2")];
    let names = |it: &Config| {
        let name = |of: &ControlPlane| of.headers[0].0.as_str().to_owned();
        (name(&it.discovery), name(&it.authority))
    };
    check(&headers, names, ("x-one".into(), "x-two".into()));
}

#[test]
fn one_alternative_hostname_serves_both() {
    let config = config(&["--alt-hostname", "istiod"], &[("ALT_CA_HOSTNAME", "ca")]);
    let config = config.expect("valid");
    assert_eq!(config.discovery.server_name, "istiod");
    assert_eq!(config.authority.server_name, "ca");
}

#[test]
fn threads_follow_ztunnels_rules() {
    let check = |variables: &[(&str, &str)], expected| {
        check(variables, |it| it.worker_threads, expected);
    };
    let sixteen = ("ZTUNNEL_CPU_LIMIT", "16");
    check(&[("ZTUNNEL_WORKER_THREADS", "7"), sixteen], 7);
    check(&[("ZTUNNEL_WORKER_THREADS", "0"), sixteen], 16);
    check(&[("ZTUNNEL_WORKER_THREADS", "10%"), sixteen], 2);
    check(&[sixteen], 4);
    check(&[("ZTUNNEL_CPU_LIMIT", "1")], 2);
    check(&[("ZTUNNEL_RESOURCE_CPU_LIMIT", "500m")], 1);
    check(&[("ZTUNNEL_RESOURCE_CPU_LIMIT", "1.5"), sixteen], 2);
    check(&[("ZTUNNEL_RESOURCE_CPU_REQUEST", "6"), sixteen], 6);
    check(&[("PROXY_CONFIG", "concurrency: 3")], 3);
    check(&[("PROXY_CONFIG", "concurrency: 0"), sixteen], 16);
    check(&[("ZTUNNEL_WORKER_THREADS", "5000")], 64);
}

#[test]
fn deadlines_come_from_whoever_names_one() {
    let check = |variables: &[(&str, &str)], ending, draining| {
        let deadlines = |it: &Config| (it.termination_deadline, it.drain_deadline);
        let seconds = Duration::from_secs;
        check(variables, deadlines, (seconds(ending), seconds(draining)));
    };
    check(&[], 1800, 5);
    check(&[("CONNECTION_TERMINATION_DEADLINE", "20s")], 20, 20);
    check(&[("TERMINATION_GRACE_PERIOD_SECONDS", "30")], 25, 25);
    check(&[("TERMINATION_GRACE_PERIOD_SECONDS", "5")], 4, 4);
    check(&[("TERMINATION_GRACE_PERIOD_SECONDS", "0")], 1, 1);
}

#[test]
fn the_proxy_configuration_is_read_in_both_forms() {
    let bare = "discoveryAddress: istiod.other:15012\nproxyMetadata: {DNS_CAPTURE: 'false'}\n\
                statsPort: 9999\nproxyAdminPort: 9998\nholdApplicationUntilProxyStarts: true";
    let nested = format!("defaultConfig:\n  {}", bare.replace('\n', "\n  "));
    for text in [bare, nested.as_str()] {
        let variables = [("PROXY_CONFIG", text)];
        check(&variables, |it| it.discovery.uri.to_string(), "https://istiod.other:15012/".into());
        check(&variables, |it| it.dns.enabled, false);
        check(&variables, |it| it.operator.metrics.port(), 9999);
        check(&variables, |it| it.operator.admin.port(), 9998);
    }
    check(&[("ISTIO_META_DNS_CAPTURE", "false")], |it| it.dns.enabled, false);
    check(&[("PROXY_CONFIG", "")], |it| it.dns.enabled, true);
}

#[test]
fn the_node_tells_who_it_is() {
    let variables = [
        ("POD_NAME", "ztunnel-x"),
        ("POD_NAMESPACE", "istio-system"),
        ("INSTANCE_IP", "10.0.0.9"),
        ("NODE_NAME", "node-7"),
        ("ISTIO_META_NETWORK", "n"),
        ("ISTIO_METAJSON_LABELS", "{\"a\":1}"),
    ];
    let metadata = |it: &Config| it.node.metadata.clone();
    let config = config(&[], &variables).expect("valid");
    let metadata = metadata(&config);
    let id = "ztunnel~10.0.0.9~ztunnel-x.istio-system~istio-system.svc.cluster.local";
    assert_eq!(metadata.id, id);
    let field = |name: &str| metadata.fields[name].clone();
    assert_eq!(field("NAME"), "ztunnel-x");
    assert_eq!(field("NAMESPACE"), "istio-system");
    assert_eq!(field("INSTANCE_IPS"), "10.0.0.9");
    assert_eq!(field("NODE_NAME"), "node-7");
    assert_eq!(field("NETWORK"), "n");
    assert_eq!(field("LABELS"), serde_json::json!({ "a": 1 }));
}

#[test]
fn flags_of_our_own() {
    let flags = [
        "--snapshot=/s",
        "--snapshot-max-age=1h",
        "--same-node=encrypt",
        "--dns-upstream=10.96.0.10,[fd00::a]:5353",
        "--admin-socket=/a",
        "--readiness-address=127.0.0.1:1",
        "--ipv6=false",
    ];
    let config = config(&flags, &[]).expect("valid");
    let max_age = Duration::from_secs(3600);
    assert_eq!(config.snapshot, Snapshot::File { path: "/s".into(), max_age });
    assert_eq!(config.same_node, SameNode::Encrypt);
    let upstream: Vec<String> = config.dns.upstream.iter().map(ToString::to_string).collect();
    assert_eq!(upstream, ["10.96.0.10:53", "[fd00::a]:5353"]);
    assert_eq!(config.dns.lookups, config.dns.upstream);
    assert_eq!(config.operator.admin_socket, Some("/a".into()));
    assert_eq!(config.operator.readiness.to_string(), "127.0.0.1:1");
    assert_eq!(config.operator.metrics.to_string(), "0.0.0.0:15020");
}

#[test]
fn what_would_change_security_or_behaviour_is_refused() {
    let check = |name: &str, value: &str, part: &str| {
        let error = config(&[], &[(name, value)]).expect_err(name);
        assert!(error.contains(name) && error.contains(part), "{name}: {error}");
    };
    check("FAKE_CA", "true", "always real");
    check("TLS12_ENABLED", "true", "TLS 1.3 only");
    check("UNSTABLE_ENABLE_SOCKS5", "true", "no SOCKS5");
    check("PROXY_MODE", "dedicated", "shared");
    check("PROXY_WORKLOAD_INFO", "a/b/c", "dedicated");
    check("ENABLE_PROXY", "false", "unset it");
    check("INPOD_PORT_REUSE", "false", "share their ports");
    check("COMPLIANCE_POLICY", "fips-140-2", "TLS 1.3");
    check("LOCAL_XDS", "workloads: []", "ambit control");
    check("LOCAL_XDS_PATH", "/x", "ambit control");
    check("PREFERED_SERVICE_NAMESPACE", "a", "own namespace");
    let address = [("PROXY_CONFIG", "proxyMetadata: {DNS_PROXY_ADDR: '0.0.0.0:53'}")];
    let error = config(&[], &address).expect_err("another address");
    assert!(error.contains("DNS_PROXY_ADDR"), "{error}");
    for (name, value) in [("FAKE_CA", "false"), ("PROXY_MODE", "shared"), ("ENABLE_PROXY", "true")]
    {
        config(&[], &[(name, value)]).expect("what changes nothing is accepted");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_the_remedy() {
    let check = |variables: &[(&str, &str)], part: &str| {
        let error = config(&[], variables).expect_err(part);
        assert!(error.contains(part), "{variables:?}: {error}");
    };
    check(&[("NODE_NAME", "")], "name of this node's Node object");
    check(&[("XDS_ADDRESS", "")], "is empty");
    check(&[("XDS_ADDRESS", "ftp://c")], "unknown scheme");
    check(&[("CA_ADDRESS", "https://")], "https://");
    check(&[("SECRET_TTL", "1y")], "1h30m");
    check(&[("SECRET_TTL", "0s")], "lifetime of nothing");
    check(&[("KEEPALIVE_TIME", "")], "1h30m");
    check(&[("HTTP2_FRAME_SIZE", "100")], "16384");
    check(&[("HTTP2_STREAM_WINDOW_SIZE", "1")], "65535");
    check(&[("POOL_MAX_STREAMS_PER_CONNECTION", "0")], "at least 1");
    check(&[("ZTUNNEL_WORKER_THREADS", "101%")], "percentage");
    check(&[("ZTUNNEL_RESOURCE_CPU_LIMIT", "-1")], "500m");
    check(&[("TRUST_DOMAIN", "a/b")], "trust domain");
    check(&[("XDS_HEADER_x y", "1")], "HTTP header");
    check(&[("ISTIO_METAJSON_A", "{")], "no JSON");
    check(&[("PROXY_CONFIG", "concurrency: [")], "PROXY_CONFIG");
    check(&[("AMBIT_ADMIN_ADDRESS", "0.0.0.0:15000")], "loopback");
    check(&[("AMBIT_DNS_UPSTREAM", "dns.example")], "IP address");
}

#[test]
fn durations_have_istios_forms() {
    let check = |text: &str, expected_ms: Option<u64>| {
        let got = parse::duration(text).ok();
        assert_eq!(got, expected_ms.map(Duration::from_millis), "{text}");
    };
    check("90s", Some(90_000));
    check("1h30m", Some(5_400_000));
    check("500ms", Some(500));
    check("1.5s", Some(1_500));
    check("2d", Some(172_800_000));
    check("30", Some(30_000));
    check("1m 5s", Some(65_000));
    check("", None);
    check("s", None);
    check("5 parsecs", None);
    check("-5s", None);
    check("99999999d", None);
}

#[test]
fn every_variable_of_the_wire_document_is_known() {
    let known = "NETWORK NODE_NAME PACKET_MARK KEEPALIVE_TIME KEEPALIVE_INTERVAL \
        KEEPALIVE_RETRIES KEEPALIVE_ENABLED USER_TIMEOUT_ENABLED INPOD_UDS CLUSTER_ID \
        CLUSTER_DOMAIN XDS_ON_DEMAND XDS_ADDRESS CA_ADDRESS SECRET_TTL ZTUNNEL_WORKER_THREADS \
        ZTUNNEL_CPU_LIMIT ZTUNNEL_RESOURCE_CPU_LIMIT ZTUNNEL_RESOURCE_CPU_REQUEST \
        POOL_MAX_STREAMS_PER_CONNECTION POOL_UNUSED_RELEASE_TIMEOUT \
        CONNECTION_TERMINATION_DEADLINE TERMINATION_GRACE_PERIOD_SECONDS ENABLE_ORIG_SRC \
        IPV6_ENABLED HTTP2_STREAM_WINDOW_SIZE HTTP2_CONNECTION_WINDOW_SIZE HTTP2_FRAME_SIZE \
        CRL_PATH XDS_ROOT_CA CA_ROOT_CA ALT_XDS_HOSTNAME ALT_CA_HOSTNAME AUTH_TOKEN \
        LOCALHOST_APP_TUNNEL ENABLE_RESPONSE_BAGGAGE AUTHZ_POLICY_INFO_LOGGING LOG_FORMAT \
        RUST_LOG TRUST_DOMAIN";
    let command = Args::augment_args(Command::new("proxy"));
    for name in known.split_whitespace() {
        let bound = command.get_arguments().any(|it| it.get_env().is_some_and(|env| env == name));
        assert!(bound, "{name} stands for no flag");
    }
}

#[test]
fn settings_are_shown_without_secrets() {
    let variables = [("AUTH_TOKEN", "a.hush.token"), ("XDS_HEADER_x-key", "hidden")];
    let config = config(&[], &variables).expect("valid");
    let shown = serde_json::to_string(&config).expect("JSON") + &format!("{:?}", config.token);
    assert!(!shown.contains("hush") && !shown.contains("hidden"), "{shown}");
    assert!(shown.contains("redacted"));
}
