//! From the kernel's listing back to something that can be compared.
//!
//! Rules are compared by a digest of their expressions. It leaves out what changes by itself
//! (counters, the numbers of unnamed maps) and what the kernel adds (attributes that are zero). It
//! uses the content of an unnamed map instead of its name.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::abi::{self, attribute, expression};
use super::{Difference, RuleInfo};
use crate::netlink::message::{self, attributes, attributes_after, find};

/// How the names of unnamed sets begin.
const ANONYMOUS_PREFIX: &str = "__";

/// The parts of a table that can be tampered with.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// By name.
    pub(super) chains: BTreeMap<String, Option<BaseInfo>>,
    /// In order.
    pub(super) rules: Vec<RuleInfo>,
    /// Named sets with a digest of their elements.
    pub(super) sets: BTreeMap<String, u64>,
}

/// Where a base chain is attached.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BaseInfo {
    pub(super) kind: String,
    pub(super) hook: u32,
    pub(super) priority: i32,
    pub(super) policy: u32,
    pub(super) device: Option<String>,
}

/// What differs between a wanted table and the kernel's.
pub(super) fn differences(wanted: &Listing, found: &Listing) -> Vec<Difference> {
    let mut differences = Vec::new();
    for (chain, base) in &wanted.chains {
        if found.chains.get(chain) != Some(base) {
            differences.push(Difference::Chain { chain: clone(chain) });
        }
    }
    for chain in found.chains.keys().filter(|chain| !wanted.chains.contains_key(*chain)) {
        differences.push(Difference::ExtraChain { chain: clone(chain) });
    }
    for chain in wanted.chains.keys() {
        let of_chain = |listing: &Listing| -> Vec<(u64, String)> {
            let rules = listing.rules.iter().filter(|rule| rule.chain == *chain);
            rules.map(|rule| (rule.digest, rule.comment.clone())).collect()
        };
        let (want, have) = (of_chain(wanted), of_chain(found));
        let longer = want.len().max(have.len());
        let first = (0..longer).find(|position| want.get(*position) != have.get(*position));
        if let Some(position) = first {
            let comment = want.get(position).or(have.get(position)).map(|rule| rule.1.clone());
            let comment = comment.unwrap_or_default();
            differences.push(Difference::Rules { chain: clone(chain), position, comment });
        }
    }
    for (set, digest) in &wanted.sets {
        if found.sets.get(set) != Some(digest) {
            differences.push(Difference::Set { set: clone(set) });
        }
    }
    differences
}

fn clone(name: &str) -> String {
    name.to_owned()
}

/// Name and attachment of a chain message.
pub(super) fn read_chain(payload: &[u8]) -> Option<(String, Option<BaseInfo>)> {
    let attributes = payload.get(abi::GENERIC_BYTES..)?;
    let name = message::read_text(find(attributes, attribute::CHAIN_NAME)?);
    let base = find(attributes, attribute::CHAIN_HOOK).map(|hook| {
        let number = |bytes, kind| find(bytes, kind).map_or(0, message::read_network_u32);
        let kind = find(attributes, attribute::CHAIN_TYPE).map(message::read_text);
        BaseInfo {
            kind: kind.unwrap_or_default(),
            hook: number(hook, attribute::HOOK_NUMBER),
            priority: number(hook, attribute::HOOK_PRIORITY).cast_signed(),
            policy: number(attributes, attribute::CHAIN_POLICY),
            device: find(hook, attribute::HOOK_DEVICE).map(message::read_text),
        }
    });
    Some((name, base))
}

/// The name of the table that a chain or rule message is about.
pub(super) fn read_table(payload: &[u8]) -> Option<String> {
    let attributes = payload.get(abi::GENERIC_BYTES..)?;
    find(attributes, attribute::CHAIN_TABLE).map(message::read_text)
}

/// Names of the unnamed maps that a rule looks up.
pub(super) fn anonymous_sets(payload: &[u8]) -> BTreeSet<String> {
    expressions(payload)
        .filter(|(name, _)| name == "lookup")
        .filter_map(|(_, data)| find(data, expression::LOOKUP_SET).map(message::read_text))
        .filter(|name| name.starts_with(ANONYMOUS_PREFIX))
        .collect()
}

/// The chains that a rule goes to.
pub(super) fn jumps(payload: &[u8]) -> impl Iterator<Item = String> {
    let verdicts = expressions(payload).filter(|(name, _)| name == "immediate");
    verdicts.filter_map(|(_, data)| {
        let data = find(data, expression::IMMEDIATE_DATA)?;
        let verdict = find(data, attribute::DATA_VERDICT)?;
        find(verdict, attribute::VERDICT_CHAIN).map(message::read_text)
    })
}

/// The chain of a rule message, and the kernel's number for the rule.
pub(super) fn place(payload: &[u8]) -> Option<(String, u64)> {
    let attributes = payload.get(abi::GENERIC_BYTES..)?;
    let chain = message::read_text(find(attributes, attribute::RULE_CHAIN)?);
    Some((chain, be64(find(attributes, attribute::RULE_HANDLE)?.first_chunk()?)))
}

/// A rule message; `map_digest` gives the digest of an unnamed map by its name or identifier.
pub(super) fn read_rule(
    payload: &[u8],
    map_digest: &dyn Fn(&str, Option<u32>) -> u64,
) -> Option<RuleInfo> {
    let mut info = RuleInfo { chain: String::new(), handle: 0, comment: String::new(), digest: 0 };
    for (kind, value) in attributes_after(payload, abi::GENERIC_BYTES) {
        match kind {
            attribute::RULE_CHAIN => info.chain = message::read_text(value),
            attribute::RULE_HANDLE => info.handle = value.first_chunk().map_or(0, be64),
            attribute::RULE_USERDATA => info.comment = read_comment(value),
            _ => {}
        }
    }
    let mut digest = DefaultHasher::new();
    for (name, data) in expressions(payload) {
        name.hash(&mut digest);
        normalised(&name, data, map_digest).hash(&mut digest);
    }
    info.digest = digest.finish();
    (!info.chain.is_empty()).then_some(info)
}

fn be64(bytes: &[u8; 8]) -> u64 {
    u64::from_be_bytes(*bytes)
}

/// Name and data of each expression of a rule message.
fn expressions(payload: &[u8]) -> impl Iterator<Item = (String, &[u8])> {
    let attributes_of_rule = payload.get(abi::GENERIC_BYTES..).unwrap_or_default();
    let list = find(attributes_of_rule, attribute::RULE_EXPRESSIONS).unwrap_or_default();
    attributes(list).filter_map(|(_, element)| {
        let name = message::read_text(find(element, attribute::EXPRESSION_NAME)?);
        Some((name, find(element, attribute::EXPRESSION_DATA).unwrap_or_default()))
    })
}

/// The attributes of an expression in a form that is equal when they mean the same.
fn normalised(
    name: &str,
    data: &[u8],
    map_digest: &dyn Fn(&str, Option<u32>) -> u64,
) -> BTreeMap<u16, Vec<u8>> {
    if name == "counter" {
        return BTreeMap::new();
    }
    let mut meaning: BTreeMap<u16, Vec<u8>> = attributes(data)
        .filter(|(_, value)| value.iter().any(|byte| *byte != 0))
        .map(|(kind, value)| (kind, normalised_value(name, kind, value)))
        .collect();
    if name == "lookup" {
        let id = meaning.remove(&expression::LOOKUP_SET_ID);
        let id = id.map(|bytes| message::read_network_u32(&bytes));
        let set = meaning.get(&expression::LOOKUP_SET).map(|name| message::read_text(name));
        if let Some(set) = set.filter(|set| set.starts_with(ANONYMOUS_PREFIX)) {
            let digest = map_digest(&set, id).to_ne_bytes().to_vec();
            meaning.insert(expression::LOOKUP_SET, digest);
        }
    }
    meaning
}

fn normalised_value(name: &str, kind: u16, value: &[u8]) -> Vec<u8> {
    let is_data = matches!(
        (name, kind),
        ("cmp", expression::COMPARE_DATA)
            | ("bitwise", expression::BITWISE_MASK | expression::BITWISE_XOR)
            | ("immediate", expression::IMMEDIATE_DATA)
    );
    if is_data { normalised_data(value) } else { value.to_vec() }
}

/// A value or verdict, without the flags that attributes may or may not have.
fn normalised_data(data: &[u8]) -> Vec<u8> {
    let mut meaning = Vec::new();
    for (kind, value) in attributes(data) {
        meaning.extend(kind.to_ne_bytes());
        if kind == attribute::DATA_VERDICT {
            for (kind, value) in attributes(value) {
                meaning.extend(kind.to_ne_bytes());
                meaning.extend(value);
            }
        } else {
            meaning.extend(value);
        }
    }
    meaning
}

fn read_comment(userdata: &[u8]) -> String {
    match userdata {
        [0, length, text @ ..] => {
            message::read_text(text.get(..usize::from(*length)).unwrap_or(text))
        }
        _ => String::new(),
    }
}

/// Digests of the elements in an element message.
pub(super) fn element_digests(payload: &[u8]) -> Vec<u64> {
    elements(payload)
        .map(|element| {
            let part = |kind| find(element, kind).map(normalised_data);
            let mut digest = DefaultHasher::new();
            (part(attribute::ELEMENT_KEY), part(attribute::ELEMENT_DATA)).hash(&mut digest);
            digest.finish()
        })
        .collect()
}

/// The keys of the elements in an element message.
pub(super) fn element_keys(payload: &[u8]) -> Vec<Vec<u8>> {
    elements(payload)
        .filter_map(|element| find(element, attribute::ELEMENT_KEY))
        .filter_map(|key| find(key, attribute::DATA_VALUE))
        .map(<[u8]>::to_vec)
        .collect()
}

fn elements(payload: &[u8]) -> impl Iterator<Item = &[u8]> {
    let attributes_of_message = payload.get(abi::GENERIC_BYTES..).unwrap_or_default();
    let list = find(attributes_of_message, attribute::ELEMENTS_LIST).unwrap_or_default();
    attributes(list).map(|(_, element)| element)
}

/// One digest for a set: that of its elements in any order.
pub(super) fn set_digest(mut elements: Vec<u64>) -> u64 {
    elements.sort_unstable();
    let mut digest = DefaultHasher::new();
    elements.hash(&mut digest);
    digest.finish()
}

/// Name and, within a transaction, identifier of the set that an element message is about.
pub(super) fn read_set(payload: &[u8]) -> Option<(String, Option<u32>)> {
    let attributes = payload.get(abi::GENERIC_BYTES..)?;
    let name = message::read_text(find(attributes, attribute::ELEMENTS_SET)?);
    let id = find(attributes, attribute::ELEMENTS_SET_ID).map(message::read_network_u32);
    Some((name, id))
}
