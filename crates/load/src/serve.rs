//! Fortio's REST calls: run, status, stop, and the saved results.
//!
//! Any client that reaches it can make this machine send load. So by default it listens on loopback
//! only, it bounds the runs at the same time, and it refuses requests that another site's page
//! makes a browser send.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use ambit_net::drain::{Drain, Guard};
use ambit_net::sys::process::raise_open_files_limit;
use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;

use super::args::ServeArgs;
use super::engine::{Run, Stop};
use super::output::fortio::{self, Settings};
use super::plan::{self, Extent, Pace, Plan, Protocol, Target};
use crate::sample::{echo, server, streams};

/// Fortio's defaults.
pub(super) const DEFAULT_QPS: f64 = 8.0;
pub(super) const DEFAULT_CONNECTIONS: usize = 4;
const DEFAULT_TIME: Duration = Duration::from_secs(5);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3);
/// Runs at once.
const MAX_RUNS: usize = 8;
/// The largest body of a call.
const MAX_CALL_BYTES: usize = 1 << 20;

type Body = streams::Answered;

/// What a call, or `fortio load`, asks for.
#[derive(Clone, Debug, Default)]
pub(super) struct Wish {
    pub(super) url: String,
    /// 0 or less is as fast as they go.
    pub(super) qps: f64,
    pub(super) connections: usize,
    /// 0 means for a time.
    pub(super) count: u64,
    pub(super) time: Option<Duration>,
    pub(super) timeout: Option<Duration>,
    pub(super) close: bool,
    pub(super) h2: bool,
    pub(super) method: Option<String>,
    pub(super) payload: String,
    pub(super) headers: Vec<String>,
    pub(super) keep_going: bool,
}

impl Wish {
    /// The plan that it makes.
    pub(super) fn plan(self) -> Result<Plan> {
        if self.qps.is_nan() {
            bail!("qps: NaN is no rate; write 8, or 0 for as fast as they go");
        }
        let mut headers = Vec::new();
        for header in &self.headers {
            headers.push(plan::header(header)?);
        }
        let asks_to_close = |(name, value): &(String, String)| {
            name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close")
        };
        let close = self.close || headers.iter().any(asks_to_close);
        let target = Target::parse(&self.url, self.h2.then_some(Protocol::H2c))?;
        let mut body = self.payload.into_bytes();
        if target.protocol == Protocol::Tcp && body.is_empty() {
            body = vec![b'.'; super::args::TCP_REQUEST_BYTES];
        }
        let method = if body.is_empty() { "GET" } else { "POST" };
        let request = plan::Request {
            method: self.method.unwrap_or_else(|| method.to_owned()),
            headers,
            response_bytes: body.len(),
            body,
        };
        let plan = Plan {
            target,
            request,
            pace: if self.qps > 0.0 { Pace::Rate(self.qps.min(plan::MAX_RATE)) } else { Pace::Max },
            extent: match self.count {
                0 => Extent::until(self.time.unwrap_or(DEFAULT_TIME)),
                count => Extent::Count(count),
            },
            warm_up: Duration::ZERO,
            connections: self.connections,
            max_connections: self.connections,
            streams: 1,
            close,
            threads: 1,
            timeout: self.timeout.unwrap_or(DEFAULT_TIMEOUT),
            keep_going: self.keep_going,
        };
        Ok(plan.check()?)
    }
}

/// Reads `50,75,99.9`.
pub(super) fn percentiles(list: &str) -> Result<Vec<f64>> {
    let read = |text: &str| text.trim().parse().ok().filter(|p| (0.0..=100.0).contains(p));
    let all: Option<Vec<f64>> = list.split(',').map(read).collect();
    all.with_context(|| format!("{list:?} is no list of percentiles; write 50,75,90,99,99.9"))
}

/// The name of a result, as Fortio makes it.
pub(super) fn result_id(run_id: u64) -> String {
    let time = jiff::Timestamp::now().strftime("%Y-%m-%d-%H%M%S").to_string();
    if run_id == 0 { time } else { format!("{time}_{run_id}") }
}

/// A run that is under way.
#[derive(Debug)]
struct Running {
    stop: Stop,
    id: String,
    url: String,
    qps: f64,
}

#[derive(Debug)]
struct Service {
    data_dir: PathBuf,
    last_run: Cell<u64>,
    runs: RefCell<BTreeMap<u64, Running>>,
}

/// A run's place among [`MAX_RUNS`], which it leaves however it ends.
struct Listed {
    service: Rc<Service>,
    run_id: u64,
    result_id: String,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.service.runs.borrow_mut().remove(&self.run_id);
    }
}

/// Serves until it is ended.
pub(super) async fn serve(args: ServeArgs) -> Result<ExitCode> {
    raise_open_files_limit().context("raise the limit of open files")?;
    let listener = server::listen(&args.listen.to_string())?;
    eprintln!("listening on {}", listener.local_addr().context("read its own address")?);
    let service = Rc::new(Service::new(args.data_dir));
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let drain = Drain::new();
    let own = drain.guard();
    let answer = move |request, ends| {
        let (service, guard) = (service.clone(), own.clone());
        async move { service.answer(request, ends, &guard).await }
    };
    let serving = server::serve_http(listener, drain.guard(), true, answer);
    LocalSet::new()
        .run_until(async {
            tokio::select! {
                () = serving => {}
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        })
        .await;
    Ok(ExitCode::SUCCESS)
}

/// What a call says: its query first, then the part of its body that `jsonPath` names.
#[derive(Debug)]
struct Call {
    query: Vec<(String, String)>,
    body: Value,
    host: String,
}

impl Service {
    fn new(data_dir: PathBuf) -> Self {
        Self { data_dir, last_run: Cell::new(0), runs: RefCell::default() }
    }

    async fn answer(
        self: Rc<Self>,
        request: Request<Incoming>,
        ends: server::Ends,
        guard: &Guard,
    ) -> Response<Body> {
        let path = request.uri().path().to_owned();
        if path.starts_with("/fortio/") && is_of_another_site(request.headers()) {
            return reply(
                StatusCode::FORBIDDEN,
                &failure("pages of other sites may not call this"),
            );
        }
        let outcome = match path.strip_prefix("/fortio/") {
            Some("rest/run") => match Call::read(request).await {
                Ok(call) => self.run(&call).await,
                Err(error) => Err(error),
            },
            Some("rest/status") => Ok(self.status()),
            Some("rest/stop") => Call::read(request).await.map(|call| self.stop(&call)),
            Some(file) if file.starts_with("data/") => self.saved(&file[5..]),
            Some(_) => return reply(StatusCode::NOT_FOUND, &failure("there is no such call")),
            // Everything else is answered as Fortio's server does: an echo.
            None => return echo::answer(request, ends, guard).await,
        };
        match outcome {
            Ok(value) => reply(StatusCode::OK, &value),
            Err(error) => reply(StatusCode::BAD_REQUEST, &failure(&format!("{error:#}"))),
        }
    }

    async fn run(self: Rc<Self>, call: &Call) -> Result<Value> {
        let (plan, mut settings) = (call.wish()?.plan()?, call.settings()?);
        let stop = Stop::default();
        let listed = self.list(&plan, &stop)?;
        let run_id = listed.run_id;
        (settings.run_id, settings.id) = (run_id, listed.result_id.clone());
        let (is_async, save) = (call.is_on("async"), call.is_on("save"));
        let url = format!("http://{}/fortio/data/{}.json", call.host, settings.id);
        let started = json!({
            "message": "started", "RunID": run_id, "Count": 1,
            "ResultID": settings.id, "ResultURL": url,
        });
        let running = async move { self.measure(plan, stop, listed, settings, save).await };
        if !is_async {
            return running.await;
        }
        tokio::task::spawn_local(async move {
            if let Err(error) = running.await {
                eprintln!("run {run_id}: {error:#}");
            }
        });
        Ok(started)
    }

    /// Takes a place for a run, before anything is awaited, so that calls at the same time cannot
    /// all find the same one free.
    fn list(self: &Rc<Self>, plan: &Plan, stop: &Stop) -> Result<Listed> {
        if self.runs.borrow().len() >= MAX_RUNS {
            bail!("{MAX_RUNS} runs are under way; wait, or end one with /fortio/rest/stop?runid=N");
        }
        let run_id = self.last_run.get() + 1;
        self.last_run.set(run_id);
        let result_id = result_id(run_id);
        let running = Running {
            stop: stop.clone(),
            id: result_id.clone(),
            url: plan.target.url.clone(),
            qps: plan.pace.rate().unwrap_or_default(),
        };
        self.runs.borrow_mut().insert(run_id, running);
        Ok(Listed { service: Rc::clone(self), run_id, result_id })
    }

    async fn measure(
        &self,
        plan: Plan,
        stop: Stop,
        _listed: Listed,
        settings: Settings,
        save: bool,
    ) -> Result<Value> {
        let mut run = Run::start(plan, stop, false).await?;
        let result = fortio::json(&run.finish().await?, &settings);
        if save {
            let path = self.data_dir.join(format!("{}.json", settings.id));
            let text = serde_json::to_string_pretty(&result)?;
            std::fs::write(&path, text).with_context(|| {
                let path = path.display();
                format!("the result could not be saved to {path}; make room or set --data-dir")
            })?;
        }
        Ok(result)
    }

    fn status(&self) -> Value {
        let runs = self.runs.borrow();
        let statuses = runs.iter().map(|(id, run)| {
            let options = json!({"URL": run.url, "QPS": run.qps, "ID": run.id, "RunID": id});
            (id.to_string(), json!({"RunID": id, "State": 2, "RunnerOptions": options}))
        });
        json!({"Statuses": statuses.collect::<serde_json::Map<_, _>>()})
    }

    fn stop(&self, call: &Call) -> Value {
        let wanted: u64 = call.text("runid").and_then(|id| id.parse().ok()).unwrap_or(0);
        let runs = self.runs.borrow();
        let stopped: Vec<_> = runs.iter().filter(|(id, _)| wanted == 0 || **id == wanted).collect();
        stopped.iter().for_each(|(_, run)| run.stop.now());
        let id = if let [(_, run)] = stopped[..] { run.id.as_str() } else { "" };
        json!({"message": "stopping", "RunID": wanted, "Count": stopped.len(), "ResultID": id})
    }

    fn saved(&self, file: &str) -> Result<Value> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let id = file.strip_suffix(".json").filter(|id| id.bytes().all(is_name));
        let id = id.context("results are named ID.json")?;
        let path: &Path = &self.data_dir.join(format!("{id}.json"));
        let text = std::fs::read(path).with_context(|| format!("there is no result {id}"))?;
        Ok(serde_json::from_slice(&text)?)
    }
}

impl Call {
    async fn read(request: Request<Incoming>) -> Result<Self> {
        let query = query(request.uri().query().unwrap_or_default());
        let host = request.headers().get("host").and_then(|host| host.to_str().ok());
        let host = host.unwrap_or("localhost").to_owned();
        let limited = Limited::new(request.into_body(), MAX_CALL_BYTES).collect().await;
        let bytes =
            limited.map_err(|error| anyhow::anyhow!("body read error: {error}"))?.to_bytes();
        let mut call = Self { query, body: Value::Null, host };
        if !bytes.is_empty() {
            let body: Value =
                serde_json::from_slice(&bytes).context("body json deserialization error")?;
            let path = call.text("jsonPath").unwrap_or_default();
            let mut part = &body;
            for name in path.split('.').filter(|name| !name.is_empty()) {
                part = part.get(name).with_context(|| format!("{name:?} not found in json"))?;
            }
            call.body = part.clone();
        }
        Ok(call)
    }

    fn text(&self, name: &str) -> Option<String> {
        let queried = self.query.iter().find(|(key, value)| key == name && !value.is_empty());
        match (queried, self.body.get(name)) {
            (Some((_, value)), _) => Some(value.clone()),
            (None, Some(Value::String(text))) => Some(text.clone()),
            (None, Some(Value::Number(number))) => Some(number.to_string()),
            _ => None,
        }
    }

    fn is_on(&self, name: &str) -> bool {
        self.text(name).is_some_and(|text| text == "on")
    }

    fn parsed<T: std::str::FromStr>(&self, name: &str, default: T) -> Result<T> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.trim().parse().map_err(|_| anyhow::anyhow!("{name}: {text:?} is no number"))
    }

    fn wish(&self) -> Result<Wish> {
        let time = |name: &str| -> Result<Option<Duration>> {
            Ok(self.text(name).map(|text| plan::duration(text.trim())).transpose()?)
        };
        let mut headers: Vec<String> =
            self.query.iter().filter(|(key, _)| key == "H").map(|(_, v)| v.clone()).collect();
        for header in self.body.get("headers").and_then(Value::as_array).into_iter().flatten() {
            headers.push(header.as_str().context("headers must be texts")?.to_owned());
        }
        let url = self.text("url").context("URL is required")?;
        Ok(Wish {
            url: url.trim().to_owned(),
            qps: self.parsed("qps", DEFAULT_QPS)?,
            connections: self.parsed("c", DEFAULT_CONNECTIONS)?,
            count: self.parsed("n", 0)?,
            time: if self.is_on("t") { Some(Duration::ZERO) } else { time("t")? },
            timeout: time("timeout")?,
            h2: self.is_on("h2"),
            method: self.text("X"),
            payload: self.text("payload").unwrap_or_default(),
            headers,
            keep_going: true,
            ..Wish::default()
        })
    }

    fn settings(&self) -> Result<Settings> {
        let default = Settings::default();
        let resolution_s = self.parsed("r", default.resolution_s)?;
        if !(1e-9..=10.0).contains(&resolution_s) {
            bail!("r: {resolution_s} is no width of a bucket in seconds; write 0.0001");
        }
        Ok(Settings {
            resolution_s,
            percentiles: match self.text("p") {
                Some(list) => percentiles(&list)?,
                None => default.percentiles,
            },
            labels: self.text("labels").unwrap_or_default(),
            ..default
        })
    }
}

/// Whether a browser sends it for a page of another site. Browsers say so in `Origin`, and where
/// they leave that out, as for a picture, in `Sec-Fetch-Site`; other clients send neither.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    let host = headers.get("host").map(HeaderValue::as_bytes).unwrap_or_default();
    let is_foreign = |origin: &HeaderValue| {
        let origin = origin.as_bytes();
        let named = origin.strip_prefix(b"http://").or(origin.strip_prefix(b"https://"));
        !named.is_some_and(|named| named.eq_ignore_ascii_case(host))
    };
    let is_cross = |site: &HeaderValue| !matches!(site.as_bytes(), b"same-origin" | b"none");
    headers.get_all("origin").iter().any(is_foreign)
        || headers.get_all("sec-fetch-site").iter().any(is_cross)
}

fn query(text: &str) -> Vec<(String, String)> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(key), decoded(value))
    };
    text.split('&').filter(|part| !part.is_empty()).map(pair).collect()
}

/// Undoes percent-encoding; what is encoded wrongly stays as it is.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
                continue;
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(*first),
        }
        rest = tail;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn failure(message: &str) -> Value {
    json!({"error": true, "message": message})
}

fn reply(status: StatusCode, value: &Value) -> Response<Body> {
    Response::builder()
        .status(status)
        .header("Content-Type", "application/json")
        .body(Either::Left(Full::from(format!("{value}\n"))))
        .expect("the header is a constant")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(text: &str, body: Value) -> Call {
        Call { query: query(text), body, host: "h".to_owned() }
    }

    #[test]
    fn the_call_of_the_experiments() {
        let body = json!({"url": "http://details:9080/details/0", "c": "10", "qps": "100",
            "n": "2000", "async": "on", "save": "on"});
        let call = call("jsonPath=.metadata", body);
        let plan = call.wish().unwrap().plan().unwrap();
        assert_eq!((plan.pace, plan.connections), (Pace::Rate(100.0), 10));
        assert_eq!(plan.extent, Extent::Count(2000));
        assert!(call.is_on("async") && call.is_on("save"));
    }

    #[test]
    fn the_query_counts_more_and_is_decoded() {
        let call = call("url=http%3A%2F%2Fa%2Fb&c=3&H=Connection:+close&t=10s", json!({"c": "9"}));
        let plan = call.wish().unwrap().plan().unwrap();
        assert_eq!((plan.target.url.as_str(), plan.connections), ("http://a/b", 3));
        assert!(plan.close && plan.extent == Extent::Time(Duration::from_secs(10)));
        assert_eq!(decoded("100%+%zz%4"), "100% %zz%4");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, part) in [
            ("", "URL is required"),
            ("url=a&c=x", "is no number"),
            ("url=https://a", "write http://"),
            ("url=a&t=soon", "write for example 500ms"),
            ("url=a&qps=NaN", "NaN is no rate"),
            ("url=a&X=GET%0d%0aFoo:", "is not a method"),
        ] {
            let error =
                call(text, Value::Null).wish().and_then(Wish::plan).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let service = Service::new(PathBuf::from("/nonexistent"));
        assert!(service.saved("../../etc/passwd").is_err() && service.saved("x.json").is_err());
    }

    #[tokio::test]
    async fn calls_at_the_same_time_make_no_more_runs_than_there_may_be() {
        let service = Rc::new(Service::new(PathBuf::from("/nonexistent")));
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let call = call(&format!("url=http://{gone}/&t=10s&async=on"), Value::Null);
        let calling = async {
            let calls = (0..40).map(|_| service.clone().run(&call));
            let outcomes = futures::future::join_all(calls).await;
            assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), MAX_RUNS);
            assert_eq!(service.runs.borrow().len(), MAX_RUNS);
            service.stop(&call);
            while !service.runs.borrow().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        LocalSet::new().run_until(calling).await;
    }

    #[test]
    fn pages_of_other_sites_are_told_apart() {
        let check = |fields: &[(&'static str, &'static str)], expected| {
            let mut headers = HeaderMap::new();
            headers.insert("host", HeaderValue::from_static("a:8080"));
            for (name, value) in fields {
                headers.append(*name, HeaderValue::from_static(value));
            }
            assert_eq!(is_of_another_site(&headers), expected, "{fields:?}");
        };
        check(&[], false);
        check(&[("origin", "http://a:8080")], false);
        check(&[("origin", "http://A:8080"), ("sec-fetch-site", "same-origin")], false);
        check(&[("sec-fetch-site", "none")], false);
        check(&[("origin", "http://b:8080")], true);
        check(&[("origin", "http://a")], true);
        check(&[("origin", "null")], true);
        check(&[("sec-fetch-site", "cross-site")], true);
    }
}
