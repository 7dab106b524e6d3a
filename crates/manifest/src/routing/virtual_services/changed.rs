//! The fields that a route of a VirtualService changes, and its CORS.

use ambit_model::Text;
use ambit_model::http::matching::ValueMatch;
use ambit_model::http::rule::{Cors, HeaderChanges};

use super::Reader;
use crate::FieldPath;
use crate::validate::names;
use crate::virtual_service as written;

impl Reader<'_> {
    pub(super) fn cors(&mut self, written: &written::CorsPolicy, at: &FieldPath) -> Cors {
        let older = written.allow_origin.iter().map(|origin| match origin.as_str() {
            "*" => ValueMatch::Present,
            origin => ValueMatch::Exact(origin.into()),
        });
        let mut allow_origins: Vec<ValueMatch> = older.collect();
        for (index, origin) in written.allow_origins.iter().enumerate() {
            let origin = match origin.exact.as_deref() {
                Some("*") => ValueMatch::Present,
                _ => self.value(origin, &at.field("allowOrigins").index(index)),
            };
            allow_origins.push(origin);
        }
        let unmatched = written.unmatched_preflights.as_deref().unwrap_or("UNSPECIFIED");
        if !["UNSPECIFIED", "FORWARD", "IGNORE"].contains(&unmatched) {
            let what = format!("`{unmatched}` is nothing that can be done with them");
            self.remarks.wrong(&at.field("unmatchedPreflights"), what, "use FORWARD or IGNORE");
        }
        let texts = |all: &[String]| all.iter().map(|it| it.as_str().into()).collect();
        Cors {
            allow_origins,
            allow_methods: texts(&written.allow_methods),
            allow_headers: texts(&written.allow_headers),
            expose_headers: texts(&written.expose_headers),
            allow_credentials: written.allow_credentials.unwrap_or_default(),
            forwards_unmatched: unmatched != "IGNORE",
            max_age: self.remarks.duration(written.max_age.as_deref(), &at.field("maxAge")),
        }
    }

    /// Changes of requests, of responses, and the new host of requests.
    pub(super) fn headers(
        &mut self,
        written: Option<&written::Headers>,
        at: &FieldPath,
    ) -> (HeaderChanges, HeaderChanges, Option<Text>) {
        let Some(written) = written else { return Default::default() };
        let mut request = self.changes(written.request.as_ref(), &at.field("request"));
        let response = self.changes(written.response.as_ref(), &at.field("response"));
        let is_host = |(name, _): &(Text, Text)| ["host", ":authority"].contains(&&**name);
        let host = request.set.iter().find(|it| is_host(it)).map(|(_, value)| value.clone());
        request.set.retain(|it| !is_host(it));
        let (one, other) = (&request, &response);
        let named = [one, other]
            .into_iter()
            .flat_map(|it| it.set.iter().chain(&it.add).map(|(name, _)| name).chain(&it.remove));
        let fixed: Vec<Text> = named.filter(|name| names::is_fixed_field(name)).cloned().collect();
        for name in fixed {
            let what = format!("`{name}` says how a message travels, and cannot be changed");
            self.remarks.wrong(at, what, "remove it");
        }
        (request, response, host)
    }

    fn changes(
        &mut self,
        written: Option<&written::HeaderOperations>,
        at: &FieldPath,
    ) -> HeaderChanges {
        let Some(written) = written else { return HeaderChanges::default() };
        let names = written.set.keys().chain(written.add.keys()).chain(&written.remove);
        for name in names.filter(|name| *name != ":authority") {
            if let Some(what) = names::field_name(name) {
                self.remarks.wrong(at, what, "correct the name");
            }
        }
        let lower = |name: &String| Text::from(name.to_ascii_lowercase());
        for (field, all) in [("set", &written.set), ("add", &written.add)] {
            for (name, value) in all.iter().filter(|(_, value)| sent(value).1) {
                let what = format!(
                    "nothing is filled into `{value}`: what is between percent signs is sent as it \
                     is written"
                );
                let remedy = "write `%%` for a percent sign, or a text without variables";
                self.remarks.unhonoured(true, &at.field(field).field(name), what, remedy);
            }
        }
        let pair = |(name, value): (&String, &String)| (lower(name), sent(value).0.into());
        HeaderChanges {
            remove: written.remove.iter().map(lower).collect(),
            set: written.set.iter().map(pair).collect(),
            add: written.add.iter().map(pair).collect(),
        }
    }
}

/// The value of a field as it is sent, and whether it has one of Envoy's variables, as in
/// `%PROTOCOL%`. `%%` is how Envoy writes one percent sign.
fn sent(value: &str) -> (String, bool) {
    let (mut sent, mut has_variable) = (String::new(), false);
    let mut rest = value;
    while let Some((before, after)) = rest.split_once('%') {
        sent.push_str(before);
        sent.push('%');
        if let Some(after) = after.strip_prefix('%') {
            rest = after;
            continue;
        }
        let Some((variable, after)) = after.split_once('%') else {
            rest = after;
            continue;
        };
        has_variable = true;
        sent.push_str(variable);
        sent.push('%');
        rest = after;
    }
    sent.push_str(rest);
    (sent, has_variable)
}
