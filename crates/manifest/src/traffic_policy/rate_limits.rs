//! `rateLimits`: how many requests may come.
//!
//! The names are those of Envoy Gateway's BackendTrafficPolicy, where that has them. A limit of
//! which something is wrong takes all limits of its policy with it: requests are answered with 500,
//! since nobody can say how many of them were meant to pass.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ambit_model::Text;
use ambit_model::http::matching::{NamedMatch, Pattern, ValueMatch};
use ambit_model::http::rate_limit::bucket::{FILLING_MAX, Quota, Unit};
use ambit_model::http::rate_limit::{
    Attribute, Condition, Cost, Counter, GlobalCounter, RateLimit as Limit, RateLimitPolicy,
};
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::policy::TextMatch;
use serde::{Deserialize, Serialize};

use crate::FieldPath;
use crate::remarks::{Remark, Remarks};
use crate::routes::PathMatch;
use crate::routing;
use crate::validate::names;

/// Most limits of one policy.
const LIMITS_MAX: usize = 64;
/// Most selectors of one limit.
const SELECTORS_MAX: usize = 8;
/// Most entries before those of a descriptor's selectors.
const ENTRIES_MAX: usize = 16;
/// How long a service that counts may take, where nothing is said. Envoy's default of 20 ms is less
/// than a new connection with its handshake may take, and here a request without an answer is
/// refused.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(250);
/// The longest time that a request may wait for it.
const TIMEOUT_MAX: Duration = Duration::from_secs(10);
/// The entry of a descriptor that names the limit: Envoy's name for it.
const GENERIC_KEY: &str = "generic_key";

/// One limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RateLimit {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// All must hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    client_selectors: Vec<Selector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    global: Option<Global>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<Costs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shadow_mode: Option<bool>,
}

/// How many in which time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Value {
    requests: i64,
    unit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<i64>,
}

/// Which requests; all that is set must hold.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Selector {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    headers: Vec<Named>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    methods: Vec<Method>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathMatch>,
    #[serde(rename = "sourceCIDR", skip_serializing_if = "Option::is_none")]
    source: Option<Compared>,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<Compared>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<Compared>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    claims: Vec<Named>,
}

/// A field or a claim.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Named {
    name: String,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    invert: Option<bool>,
}

/// How a value is compared.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Compared {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
}

/// A method.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Method {
    value: String,
}

/// What requests and responses cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Costs {
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<WrittenCost>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<WrittenCost>,
}

/// What one of them costs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenCost {
    from: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    header: Option<CostHeader>,
}

/// A field that says what something costs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CostHeader {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    maximum: Option<i64>,
}

/// A service that counts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Global {
    backend_ref: BackendRef,
    domain: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    descriptor: Vec<Entry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure_mode: Option<String>,
}

/// A port of a Service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BackendRef {
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    port: i64,
}

/// An entry of a descriptor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Entry {
    key: String,
    value: String,
}

/// What is known around the limits.
pub(super) struct About<'a> {
    pub(super) policy: PolicyName,
    /// Which fields of responses say what is left.
    pub(super) headers: Option<&'a str>,
    /// What the Service of a namespace is called in the mesh.
    pub(super) service_name: &'a dyn Fn(&str, &str) -> ServiceName,
    /// What of the policy cannot be read.
    pub(super) unreadable: Option<&'a str>,
}

/// What the limits of a policy mean.
pub(super) fn read(
    written: &[RateLimit],
    about: &About<'_>,
    spec: &FieldPath,
    remarks: &mut Remarks,
) -> RateLimitPolicy {
    let (at, mut own) = (spec.field("rateLimits"), Remarks::default());
    if written.len() > LIMITS_MAX || (written.is_empty() && about.unreadable.is_none()) {
        let what = format!("1 to {LIMITS_MAX} limits are allowed, here are {}", written.len());
        own.wrong(&at, what, "add a limit, or make several policies");
    }
    let mut limits: Vec<Limit> = Vec::new();
    for (index, limit) in written.iter().enumerate().take(LIMITS_MAX) {
        let at = at.index(index);
        let name = limit.name.clone().unwrap_or_else(|| index.to_string());
        if let Some(what) = names::dns_label(&name) {
            own.wrong(&at.field("name"), what, "correct the name");
        }
        if limits.iter().any(|it| *it.name == *name) {
            let what = format!("another limit is called `{name}`");
            own.wrong(&at.field("name"), what, "rename one of the two");
        }
        limits.extend(Reader { about, at: &at, name: &name }.limit(limit, &mut own));
    }
    let says_what_is_left = match about.headers.unwrap_or("DraftVersion03") {
        "DraftVersion03" => true,
        "Off" => false,
        other => {
            let what = format!("`{other}` is no form of these fields");
            own.wrong(&spec.field("rateLimitHeaders"), what, "use DraftVersion03 or Off");
            false
        }
    };
    let said = |it: &Remark| format!("{}: {}", it.at.as_str(), it.what);
    let problem = about.unreadable.map(|why| format!("it cannot be read: {why}"));
    let problem = problem.or_else(|| own.0.first().map(said)).map(Text::from);
    remarks.0.extend(own.0);
    RateLimitPolicy { name: about.policy.clone(), limits, says_what_is_left, problem }
}

/// Reads one limit.
struct Reader<'a> {
    about: &'a About<'a>,
    at: &'a FieldPath,
    name: &'a str,
}

impl Reader<'_> {
    fn limit(&self, written: &RateLimit, remarks: &mut Remarks) -> Option<Limit> {
        let (mut conditions, mut distinct) = (Vec::new(), Vec::new());
        let at = self.at.field("clientSelectors");
        if written.client_selectors.len() > SELECTORS_MAX {
            let what = format!("at most {SELECTORS_MAX} selectors are allowed");
            remarks.wrong(&at, what, "put conditions that must hold together into one");
        }
        for (index, selector) in written.client_selectors.iter().enumerate().take(SELECTORS_MAX) {
            let at = at.index(index);
            if *selector == Selector::default() {
                remarks.wrong(&at, "a selector of nothing", "say what requests must be");
            }
            let mut into = Selected { conditions: &mut conditions, distinct: &mut distinct };
            selector.read(&at, &mut into, remarks);
        }
        let at_limit = self.at.field("limit");
        let quota = written.limit.as_ref().and_then(|it| quota(it, &at_limit, remarks));
        let counter = match &written.global {
            Some(global) => {
                let at = self.at.field("global");
                self.global(global, quota, &at, remarks).map(|it| Counter::Global(Arc::new(it)))
            }
            None if written.limit.is_none() => {
                let what = "the limit says neither how many requests may come nor who counts";
                remarks.wrong(self.at, what, "add `limit`, as in {requests: 10, unit: Second}");
                None
            }
            None => quota.map(Counter::Local),
        };
        let most = quota.map_or(u32::MAX, |quota| quota.burst);
        let at = self.at.field("cost");
        let costs = written.cost.as_ref();
        let request = costs.and_then(|it| it.request.as_ref());
        let response = costs.and_then(|it| it.response.as_ref());
        let request = request.map(|it| cost(it, most, &at.field("request"), remarks));
        let response = response.map(|it| cost(it, most, &at.field("response"), remarks));
        Some(Limit {
            name: self.name.into(),
            conditions,
            distinct,
            counter: counter?,
            request_cost: request.unwrap_or(Some(Cost::Number(1)))?,
            response_cost: response.map_or(Some(None), |it| it.map(Some))?,
            is_shared: written.shared.unwrap_or_default(),
            is_shadow: written.shadow_mode.unwrap_or_default(),
        })
    }

    fn global(
        &self,
        written: &Global,
        quota: Option<Quota>,
        at: &FieldPath,
        remarks: &mut Remarks,
    ) -> Option<GlobalCounter> {
        let (backend, at_backend) = (&written.backend_ref, at.field("backendRef"));
        let is_service = backend.group.as_deref().unwrap_or_default().is_empty()
            && backend.kind.as_deref().unwrap_or("Service") == "Service";
        let own = &self.about.policy.namespace;
        if !is_service {
            remarks.wrong(&at_backend, "only a Service can count", "name a Service");
        }
        if backend.namespace.as_deref().is_some_and(|it| *it != **own) {
            let what = "the service that counts is in another namespace";
            let at = at_backend.field("namespace");
            remarks.wrong(&at, what, format!("use a Service of `{own}`"));
        }
        if let Some(what) = names::dns_label(&backend.name) {
            remarks.wrong(&at_backend.field("name"), what, "write the name of the Service");
        }
        let port = u16::try_from(backend.port).ok().filter(|port| *port > 0);
        if port.is_none() {
            let what = format!("{} is not a port", backend.port);
            remarks.wrong(&at_backend.field("port"), what, "write the port that speaks gRPC");
        }
        if written.domain.is_empty() {
            let remedy = "write the domain that the service is configured with";
            remarks.wrong(&at.field("domain"), "the domain is missing", remedy);
        }
        let at_descriptor = at.field("descriptor");
        let is_wrong = |it: &Entry| it.key.is_empty() || it.value.is_empty();
        if written.descriptor.len() > ENTRIES_MAX || written.descriptor.iter().any(is_wrong) {
            let what = format!(
                "a descriptor has at most {ENTRIES_MAX} entries, each with a key \
                                and a value"
            );
            remarks.wrong(&at_descriptor, what, "correct the entries");
        }
        let timeout = remarks.duration(written.timeout.as_deref(), &at.field("timeout"));
        let timeout = timeout.unwrap_or(DEFAULT_TIMEOUT);
        if timeout.is_zero() || timeout > TIMEOUT_MAX {
            let what = "no request waits so long, or not at all";
            remarks.wrong(&at.field("timeout"), what, "use 1ms to 10s");
        }
        let denies_without_answer = match written.failure_mode.as_deref().unwrap_or("Deny") {
            "Allow" => false,
            "Deny" => true,
            other => {
                let what = format!("`{other}` is no way to go on without an answer");
                remarks.wrong(&at.field("failureMode"), what, "use Allow or Deny");
                true
            }
        };
        let written_entries = written.descriptor.iter().map(|it| (&*it.key, &*it.value));
        let entries: Vec<_> = match written.descriptor.is_empty() {
            true => vec![(GENERIC_KEY.into(), self.name.into())],
            false => written_entries.map(|(key, value)| (key.into(), value.into())).collect(),
        };
        Some(GlobalCounter {
            service: (self.about.service_name)(own, &backend.name),
            port: port?,
            domain: written.domain.as_str().into(),
            descriptor: entries,
            quota,
            timeout,
            denies_without_answer,
        })
    }
}

fn quota(written: &Value, at: &FieldPath, remarks: &mut Remarks) -> Option<Quota> {
    let number = |number: i64, field: &str, remarks: &mut Remarks| {
        let converted = u32::try_from(number).ok().filter(|it| *it > 0);
        if converted.is_none() {
            let what = format!("{number} is out of range");
            remarks.wrong(&at.field(field), what, format!("use 1 to {}", u32::MAX));
        }
        converted
    };
    let requests = number(written.requests, "requests", remarks);
    let burst = written.burst.map(|burst| number(burst, "burst", remarks));
    let unit = match &*written.unit {
        "Second" => Unit::Second,
        "Minute" => Unit::Minute,
        "Hour" => Unit::Hour,
        "Day" => Unit::Day,
        other => {
            let what = format!("`{other}` is no unit of time");
            remarks.wrong(&at.field("unit"), what, "use Second, Minute, Hour or Day");
            return None;
        }
    };
    let requests = requests?;
    let quota = Quota { requests, unit, burst: burst.unwrap_or(Some(requests))? };
    if quota.filling() > FILLING_MAX {
        let what = format!("a burst of {} takes longer than a year to come together", quota.burst);
        remarks.wrong(&at.field("burst"), what, "use a smaller burst, or more requests");
        return None;
    }
    Some(quota)
}

/// `most` is what a bucket can hold: a request that costs more would never pass.
fn cost(written: &WrittenCost, most: u32, at: &FieldPath, remarks: &mut Remarks) -> Option<Cost> {
    let mut number = |number: i64, at: &FieldPath| {
        let converted = u32::try_from(number).ok().filter(|it| *it <= most);
        if converted.is_none() {
            let what = format!("a cost of {number} is out of range");
            remarks.wrong(at, what, format!("use 0 to {most}, which is all that may be left"));
        }
        converted
    };
    match (&*written.from, written.number, &written.header) {
        ("Number", Some(it), None) => number(it, &at.field("number")).map(Cost::Number),
        ("Header", None, Some(header)) => {
            let at = at.field("header");
            let max = header.maximum.map(|max| number(max, &at.field("maximum")));
            if let Some(what) = names::field_name(&header.name) {
                remarks.wrong(&at.field("name"), what, "correct the name");
            }
            let max = max.unwrap_or(Some(most))?;
            Some(Cost::Header { name: header.name.to_ascii_lowercase().into(), max })
        }
        _ => {
            let what = format!("a cost cannot be taken from `{}` so", written.from);
            let remedy = "write {from: Number, number: 1}, or {from: Header, header: {name: ...}}";
            remarks.wrong(at, what, remedy);
            None
        }
    }
}

/// What selectors have come to.
struct Selected<'a> {
    conditions: &'a mut Vec<Condition>,
    distinct: &'a mut Vec<Attribute>,
}

impl Selector {
    fn read(&self, at: &FieldPath, into: &mut Selected<'_>, remarks: &mut Remarks) {
        let mut seen = BTreeSet::new();
        for (index, header) in self.headers.iter().enumerate() {
            let at = at.field("headers").index(index);
            if !seen.insert(header.name.to_ascii_lowercase()) {
                remarks.wrong(&at, "the same field is there twice", "remove one of the two");
            }
            header.read_header(&at, into, remarks);
        }
        for (index, claim) in self.claims.iter().enumerate() {
            claim.read_claim(&at.field("claims").index(index), into, remarks);
        }
        if !self.methods.is_empty() {
            for (index, method) in self.methods.iter().enumerate() {
                if let Some(what) = names::field_name(&method.value) {
                    let at = at.field("methods").index(index).field("value");
                    remarks.wrong(&at, what, "write a method, as in GET");
                }
            }
            let any_of = self.methods.iter().map(|it| Text::from(&*it.value));
            into.conditions.push(Condition::Method(any_of.collect()));
        }
        if let Some(path) = &self.path {
            let path = routing::path(path, &at.field("path"), remarks);
            into.conditions.push(Condition::Path(path));
        }
        if let Some(source) = &self.source {
            source.read_source(&at.field("sourceCIDR"), into, remarks);
        }
        if let Some(principal) = &self.principal {
            let at = at.field("principal");
            let wanted = principal.text(&at, &["Exact", "Prefix", "Distinct"], remarks);
            into.take(wanted, Condition::Principal, Attribute::Principal);
        }
        if let Some(namespace) = &self.namespace {
            let wanted = namespace.text(&at.field("namespace"), &["Exact", "Distinct"], remarks);
            into.take(wanted, Condition::Namespace, Attribute::Namespace);
        }
    }
}

impl Selected<'_> {
    fn take(
        &mut self,
        wanted: Option<Wanted>,
        condition: impl FnOnce(TextMatch) -> Condition,
        attribute: Attribute,
    ) {
        match wanted {
            Some(Wanted::Exact(text)) => self.conditions.push(condition(TextMatch::Exact(text))),
            Some(Wanted::Prefix(text)) => self.conditions.push(condition(TextMatch::Prefix(text))),
            Some(Wanted::Distinct) => self.distinct.push(attribute),
            None => {}
        }
    }
}

/// What is asked of a text.
enum Wanted {
    Exact(Text),
    Prefix(Text),
    Distinct,
}

impl Compared {
    fn text(&self, at: &FieldPath, kinds: &[&str], remarks: &mut Remarks) -> Option<Wanted> {
        compared(self.kind.as_deref(), self.value.as_deref(), at, kinds, remarks)
    }

    fn read_source(&self, at: &FieldPath, into: &mut Selected<'_>, remarks: &mut Remarks) {
        let block = self.value.as_deref().map(names::address_block);
        if block == Some(None) {
            let what = format!("`{}` is no block", self.value.as_deref().unwrap_or_default());
            remarks.wrong(&at.field("value"), what, "write for example 10.0.0.0/8");
        }
        let block = block.flatten();
        into.conditions.extend(block.map(Condition::Source));
        match self.kind.as_deref().unwrap_or("Exact") {
            "Exact" if self.value.is_none() => {
                remarks.wrong(at, "the block is missing", "add `value`, as in 10.0.0.0/8");
            }
            "Exact" => {}
            "Distinct" => into.distinct.push(Attribute::Source),
            other => no_kind(other, &["Exact", "Distinct"], at, remarks),
        }
    }
}

impl Named {
    fn read_header(&self, at: &FieldPath, into: &mut Selected<'_>, remarks: &mut Remarks) {
        if let Some(what) = names::field_name(&self.name) {
            remarks.wrong(&at.field("name"), what, "correct the name");
        }
        let name: Text = self.name.to_ascii_lowercase().into();
        let is_inverted = self.invert.unwrap_or_default();
        if self.kind.as_deref() == Some("RegularExpression") {
            let pattern = Pattern::new(self.value.as_deref().unwrap_or_default());
            match pattern {
                Ok(pattern) => {
                    let value = ValueMatch::Regex(pattern);
                    into.conditions.push(Condition::Header(NamedMatch {
                        name,
                        value,
                        is_inverted,
                    }));
                }
                Err(error) => {
                    let at = at.field("value");
                    remarks.wrong(&at, error.to_string(), "correct the expression");
                }
            }
            return;
        }
        let kinds = ["Exact", "Prefix", "RegularExpression", "Distinct"];
        let wanted = compared(self.kind.as_deref(), self.value.as_deref(), at, &kinds, remarks);
        let value = match wanted {
            None => return,
            Some(Wanted::Distinct) => {
                if is_inverted {
                    let what = "values cannot be told apart and inverted";
                    remarks.wrong(&at.field("invert"), what, "remove it");
                }
                return into.distinct.push(Attribute::Header(name));
            }
            Some(Wanted::Prefix(text)) => ValueMatch::Prefix(text),
            Some(Wanted::Exact(text)) => ValueMatch::Exact(text),
        };
        into.conditions.push(Condition::Header(NamedMatch { name, value, is_inverted }));
    }

    fn read_claim(&self, at: &FieldPath, into: &mut Selected<'_>, remarks: &mut Remarks) {
        if self.name.is_empty() || self.name.split('.').any(str::is_empty) {
            let what = format!("`{}` names no claim", self.name);
            remarks.wrong(&at.field("name"), what, "write its name; dots lead into objects");
        }
        if self.invert.is_some() {
            remarks.wrong(&at.field("invert"), "a claim cannot be inverted", "remove it");
        }
        let keys: Vec<Text> = self.name.split('.').map(Text::from).collect();
        let kinds = ["Exact", "Distinct"];
        let wanted = compared(self.kind.as_deref(), self.value.as_deref(), at, &kinds, remarks);
        let claim = Attribute::Claim(keys.clone());
        into.take(wanted, |value| Condition::Claim { keys, value }, claim);
    }
}

/// Reads how a text is compared. Without a kind it is `Exact`.
fn compared(
    kind: Option<&str>,
    value: Option<&str>,
    at: &FieldPath,
    kinds: &[&str],
    remarks: &mut Remarks,
) -> Option<Wanted> {
    let kind = kind.unwrap_or("Exact");
    if !kinds.contains(&kind) {
        no_kind(kind, kinds, at, remarks);
        return None;
    }
    match (kind, value) {
        ("Distinct", None) => Some(Wanted::Distinct),
        ("Distinct", Some(_)) => {
            let what = "where values are told apart, none is named";
            remarks.wrong(&at.field("value"), what, "remove it, or use `type: Exact`");
            None
        }
        (_, None | Some("")) => {
            remarks.wrong(at, "the value is missing", "add `value`, or use `type: Distinct`");
            None
        }
        ("Prefix", Some(value)) => Some(Wanted::Prefix(value.into())),
        (_, Some(value)) => Some(Wanted::Exact(value.into())),
    }
}

fn no_kind(kind: &str, kinds: &[&str], at: &FieldPath, remarks: &mut Remarks) {
    let what = format!("values cannot be compared by `{kind}` here");
    remarks.wrong(&at.field("type"), what, format!("use {}", kinds.join(" or ")));
}
