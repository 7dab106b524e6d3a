//! The engine as a plain hop, without a mesh: TCP in, TCP out, on one thread.
//!
//! It does what a proxy of a mesh does with a request, and nothing else: one route, one ALLOW
//! policy, metrics with labels, one line of an access log. So it can stand beside another proxy
//! with the same job, and both can be measured by the same load. `docs/design/layer-7.md` says how.
//!
//! ```text
//! hop 127.0.0.1:18080 127.0.0.1:18000 [h1|h2] > /dev/null
//! ```

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use ambit_http::Scheme;
use ambit_http::engine::halves::BoxStream;
use ambit_http::engine::position::{
    Arrival, Endpoint, EndpointAsk, Goal, Position, Routed, Rules, Trial, Unreachable, Version,
};
use ambit_http::engine::rate_limit::buckets::Buckets;
use ambit_http::engine::record::{Flags, Record};
use ambit_http::engine::{Engine, Settings, Speaks, serve};
use ambit_model::Text;
use ambit_model::authorize::Source;
use ambit_model::http::authentication::Authentication;
use ambit_model::http::authorize::{Asked, RequestJudgement, authorize};
use ambit_model::http::authorizer::Authorizer;
use ambit_model::http::compression::Compressions;
use ambit_model::http::limits::Limits;
use ambit_model::http::policy::{Action, OperationMatch, RequestPolicy, RequestRule, Values};
use ambit_model::http::rate_limit::RateLimits;
use ambit_model::http::rule;
use ambit_model::http::table::RouteTable;
use ambit_model::http::telemetry::Spans;
use ambit_model::http::traffic::TrafficPolicy;
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::policy::TextMatch;
use ambit_net::drain::Drain;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, spawn_local};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// As labels of a metric.
type Labels = Vec<(&'static str, String)>;

/// The series of one status, its flags, and gRPC or not.
type Series = BTreeMap<(u16, Flags, bool), (Counter, Histogram)>;

/// What holds for all requests.
struct Configured {
    service: ServiceName,
    routes: RouteTable,
    authentication: Authentication,
    authorizers: BTreeMap<Text, Arc<Authorizer>>,
    limits: Limits,
    compression: Compressions,
    policy: Arc<RequestPolicy>,
    rate_limits: RateLimits,
    traffic: TrafficPolicy,
    version: Version,
}

#[derive(Clone)]
struct Holds(Rc<Configured>);

struct Hop {
    upstream: SocketAddr,
    configured: Rc<Configured>,
    buckets: Buckets,
    random: Cell<u64>,
    log: RefCell<std::io::BufWriter<std::io::Stdout>>,
    total: Family<Labels, Counter>,
    duration: Family<Labels, Histogram, fn() -> Histogram>,
    /// The series that were counted before, as the waypoint remembers them.
    remembered: RefCell<Series>,
}

impl Hop {
    fn series(&self, record: &Record) -> (Counter, Histogram) {
        let labels = vec![
            ("response_code", record.status.to_string()),
            ("response_flags", record.flags.letters().to_owned()),
            ("request_protocol", if record.is_grpc { "grpc" } else { "http" }.to_owned()),
            ("destination_service", "upstream".to_owned()),
        ];
        let total = self.total.get_or_create(&labels).clone();
        (total, self.duration.get_or_create(&labels).clone())
    }
}

impl Rules for Holds {
    fn route(&self, head: &ambit_model::http::head::RequestHead<'_>) -> Routed<'_> {
        Routed::by(Some(&self.0.routes), head)
    }

    fn authorizers(&self) -> &BTreeMap<Text, Arc<Authorizer>> {
        &self.0.authorizers
    }

    fn authentication(&self) -> &Authentication {
        &self.0.authentication
    }

    fn rate_limits(&self) -> (&ServiceName, &RateLimits) {
        (&self.0.service, &self.0.rate_limits)
    }

    fn limits(&self) -> &Limits {
        &self.0.limits
    }

    fn compression(&self) -> &Compressions {
        &self.0.compression
    }

    fn judge(&self, asked: &Asked<'_>) -> RequestJudgement {
        authorize([Ok(&self.0.policy)], asked)
    }

    fn is_own(&self, _: &rule::Origin) -> bool {
        true
    }

    fn judge_destination(
        &self,
        _to: &Goal<'_>,
        _by: &rule::Origin,
        _asked: &Asked<'_>,
    ) -> Option<RequestJudgement> {
        None
    }

    fn policies_version(&self) -> u64 {
        0
    }

    fn traffic(&self, _: &Goal<'_>) -> &TrafficPolicy {
        &self.0.traffic
    }

    fn version(&self, _: &Goal<'_>) -> Option<Version> {
        Some(self.0.version)
    }

    fn spans(&self) -> Option<&Arc<Spans>> {
        None
    }

    fn keeps_response(&self) -> bool {
        false
    }
}

impl Position for Hop {
    type Way = ();
    type Rules = Holds;

    async fn rules(&self, _: &Arrival) -> Option<Holds> {
        Some(Holds(self.configured.clone()))
    }

    async fn policies_changed(&self, _: u64) -> u64 {
        std::future::pending().await
    }

    async fn withdrawn(&self, _: &Arrival) {
        std::future::pending().await
    }

    async fn deserted(&self, _: &Arrival) {
        std::future::pending().await
    }

    fn choose(&self, _: &EndpointAsk<'_>) -> Result<Endpoint<()>, Unreachable> {
        let uid = "upstream".into();
        let (address, workload) = (self.upstream, None);
        Ok(Endpoint { uid, address, workload, kind: 0, alternatives: 1, way: () })
    }

    fn is_there(&self, _: &str) -> bool {
        true
    }

    async fn connect(
        &self,
        _: &Arrival,
        endpoint: &Endpoint<()>,
    ) -> Result<BoxStream, Unreachable> {
        let unreachable =
            |error: std::io::Error| Unreachable { reason: "connect", text: error.to_string() };
        let stream = TcpStream::connect(endpoint.address).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        Ok(Box::new(stream))
    }

    fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    fn random_below(&self, bound: u64) -> u64 {
        let next = self.random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.random.set(next);
        (next >> 33) % bound
    }

    fn own_name(&self) -> &str {
        "hop"
    }

    /// Its policy is not on trial.
    fn trial(&self, _: &Arrival, _: &Trial<'_>) {}

    fn cut(&self, arrival: &Arrival, why: &'static str) {
        eprintln!("{}: cut, {why}", arrival.client);
    }

    fn record(&self, arrival: &Rc<Arrival>, record: &Record) {
        let elapsed = record.started.elapsed();
        let mut remembered = self.remembered.borrow_mut();
        let key = (record.status, record.flags, record.is_grpc);
        let (total, duration) = remembered.entry(key).or_insert_with(|| self.series(record));
        total.inc();
        duration.observe(elapsed.as_secs_f64() * 1e3);
        let head = record.head.as_ref();
        let method = head.map_or("-", |it| it.method().as_str());
        let path = head.and_then(|it| it.path()).map_or("-", ambit_http::Path::as_str);
        let authority = head.map_or("-", |it| it.authority().as_str());
        let mut log = self.log.borrow_mut();
        // A log that cannot be written is no reason to refuse requests.
        drop(writeln!(
            log,
            r#"{{"method":"{method}","path":"{path}","authority":"{authority}","protocol":"{}","#,
            record.protocol.as_str(),
        ));
        drop(write!(
            log,
            r#""response_code":{},"response_flags":"{}","bytes_sent":{},"#,
            record.status,
            record.flags.letters(),
            record.sent_bytes,
        ));
        let milliseconds = elapsed.as_millis();
        drop(writeln!(log, r#""duration":{milliseconds},"from":"{}"}}"#, arrival.client));
    }
}

fn histogram() -> Histogram {
    Histogram::new([0.5, 1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0])
}

/// One rule that takes everything to the one upstream.
fn route() -> rule::Rule {
    let text = |text: &str| text.into();
    let backend = rule::Backend {
        weight: 1,
        destination: rule::Destination::Service {
            name: ServiceName::new("default", "upstream"),
            port: 80,
            subset: None,
        },
        request_headers: rule::HeaderChanges::default(),
        response_headers: rule::HeaderChanges::default(),
    };
    rule::Rule {
        origin: rule::Origin {
            kind: rule::RouteKind::HttpRoute,
            namespace: text("default"),
            name: text("all"),
            created_unix_s: 0,
            index: 0,
            rule_name: None,
        },
        matches: vec![],
        action: rule::Action::Forward {
            backends: vec![backend],
            rewrite: rule::Rewrite::default(),
        },
        request_headers: rule::HeaderChanges::default(),
        response_headers: rule::HeaderChanges::default(),
        mirrors: vec![],
        cors: None,
        faults: rule::Faults::default(),
        timeouts: rule::Timeouts::default(),
        retry: None,
        session: None,
    }
}

/// Allows GET.
fn policy() -> RequestPolicy {
    let methods = Values { any_of: vec![TextMatch::Exact("GET".into())], none_of: vec![] };
    let operation = OperationMatch { methods, ..OperationMatch::default() };
    let rule = RequestRule { to: vec![operation], ..RequestRule::default() };
    RequestPolicy {
        key: PolicyName::new("default", "get"),
        action: Action::Allow,
        is_dry_run: false,
        rules: vec![rule],
        condition: None,
    }
}

fn main() -> anyhow::Result<()> {
    let usage = "usage: hop LISTEN UPSTREAM [h1|h2]";
    let mut words = std::env::args().skip(1);
    let mut next = || words.next().ok_or_else(|| anyhow::anyhow!(usage));
    let (listen, upstream): (SocketAddr, SocketAddr) = (next()?.parse()?, next()?.parse()?);
    let version = match next().unwrap_or_default().as_str() {
        "h2" => Version::Http2,
        _ => Version::Http1,
    };
    let configured = Rc::new(Configured {
        service: ServiceName::new("default", "upstream"),
        routes: RouteTable::new([Arc::new(route())]),
        authentication: Authentication::default(),
        authorizers: BTreeMap::new(),
        limits: Limits::default(),
        compression: Compressions::default(),
        policy: Arc::new(policy()),
        rate_limits: RateLimits::default(),
        traffic: TrafficPolicy::default(),
        version,
    });
    let hop = Hop {
        upstream,
        configured,
        buckets: Buckets::default(),
        random: Cell::new(1),
        log: RefCell::new(std::io::BufWriter::with_capacity(64 << 10, std::io::stdout())),
        total: Family::default(),
        duration: Family::new_with_constructor(histogram as fn() -> Histogram),
        remembered: RefCell::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, run(listen, hop))
}

async fn run(listen: SocketAddr, hop: Hop) -> anyhow::Result<()> {
    let drain = Drain::new();
    let engine = Engine::new(hop, Settings::default(), drain.guard());
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (stream, client) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let arrival = Arrival {
            source: Source::new(None, client.ip()),
            workload: None,
            client,
            destination: listen,
            scheme: Scheme::Http,
            outside: None,
        };
        let (engine, guard) = (engine.clone(), drain.guard());
        spawn_local(async move {
            drop(serve(&engine, arrival, Box::new(stream), Speaks::Unknown, &guard).await);
        });
    }
}
