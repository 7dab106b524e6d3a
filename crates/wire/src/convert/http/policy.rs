//! Policies that read requests.

use ambit_model::Text;
use ambit_model::address::canonical_block;
use ambit_model::expression::Expression;
use ambit_model::http::condition::NAMES;
use ambit_model::http::policy::{
    Action, ClientMatch, Condition, HostMatch, IpAttribute, OperationMatch, PathPattern,
    RequestPolicy, RequestRule, Segment, TextAttribute, Values,
};
use ambit_model::names::PolicyName;
use ambit_model::policy::{ServiceAccountMatch, TextMatch};
use ipnet::IpNet;

use super::super::{
    ConvertError, Problem, each, ip_bytes, known, port, prefix_len, text, written_ip,
};
use super::{EMPTY, inner, required, strings, texts};
use crate::proto::ambit::http as proto;

impl TryFrom<proto::RequestPolicy> for RequestPolicy {
    type Error = ConvertError;

    fn try_from(message: proto::RequestPolicy) -> Result<Self, ConvertError> {
        use proto::request_policy::Action as Message;
        if message.name.is_empty() {
            return Err(ConvertError::new("name", Problem::Missing));
        }
        Ok(Self {
            key: PolicyName::new(message.namespace, message.name),
            action: match required("action", message.action)? {
                Message::Allow(_) => Action::Allow,
                Message::Deny(_) => Action::Deny,
                Message::Audit(_) => Action::Audit,
                Message::Custom(provider) => Action::Custom(text(&provider)),
            },
            is_dry_run: message.is_dry_run,
            rules: each("rules", message.rules, rule)?,
            condition: expression(&message.condition)?,
        })
    }
}

impl From<&RequestPolicy> for proto::RequestPolicy {
    fn from(policy: &RequestPolicy) -> Self {
        use proto::request_policy::Action as Message;
        Self {
            namespace: policy.key.namespace.to_string(),
            name: policy.key.name.to_string(),
            action: Some(match &policy.action {
                Action::Allow => Message::Allow(EMPTY),
                Action::Deny => Message::Deny(EMPTY),
                Action::Audit => Message::Audit(EMPTY),
                Action::Custom(provider) => Message::Custom(provider.to_string()),
            }),
            is_dry_run: policy.is_dry_run,
            rules: policy.rules.iter().map(rule_message).collect(),
            condition: policy
                .condition
                .as_ref()
                .map_or_else(String::new, |it| it.source().to_string()),
        }
    }
}

fn expression(source: &str) -> Result<Option<Expression>, ConvertError> {
    if source.is_empty() {
        return Ok(None);
    }
    let compiled = Expression::condition(source, &NAMES);
    compiled.map(Some).map_err(|error| ConvertError::new("condition", Problem::Expression(error)))
}

fn rule(message: proto::RequestRule) -> Result<RequestRule, ConvertError> {
    Ok(RequestRule {
        from: each("from", message.from, client)?,
        to: each("to", message.to, operation)?,
        when: each("when", message.when, condition)?,
    })
}

fn rule_message(rule: &RequestRule) -> proto::RequestRule {
    proto::RequestRule {
        from: rule.from.iter().map(client_message).collect(),
        to: rule.to.iter().map(operation_message).collect(),
        when: rule.when.iter().map(condition_message).collect(),
    }
}

fn client(message: proto::ClientMatch) -> Result<ClientMatch, ConvertError> {
    Ok(ClientMatch {
        principals: inner("principals", message.principals, text_values)?,
        namespaces: inner("namespaces", message.namespaces, text_values)?,
        service_accounts: inner("service_accounts", message.service_accounts, account_values)?,
        trust_domains: inner("trust_domains", message.trust_domains, text_values)?,
        request_principals: inner("request_principals", message.request_principals, text_values)?,
        ip_blocks: inner("ip_blocks", message.ip_blocks, block_values)?,
        remote_ip_blocks: inner("remote_ip_blocks", message.remote_ip_blocks, block_values)?,
    })
}

fn client_message(it: &ClientMatch) -> proto::ClientMatch {
    proto::ClientMatch {
        principals: Some(text_values_message(&it.principals)),
        namespaces: Some(text_values_message(&it.namespaces)),
        service_accounts: Some(account_values_message(&it.service_accounts)),
        trust_domains: Some(text_values_message(&it.trust_domains)),
        request_principals: Some(text_values_message(&it.request_principals)),
        ip_blocks: Some(block_values_message(&it.ip_blocks)),
        remote_ip_blocks: Some(block_values_message(&it.remote_ip_blocks)),
    }
}

fn operation(message: proto::OperationMatch) -> Result<OperationMatch, ConvertError> {
    Ok(OperationMatch {
        hosts: inner("hosts", message.hosts, |it| values(it.any_of, it.none_of, host))?,
        ports: inner("ports", message.ports, port_values)?,
        methods: inner("methods", message.methods, text_values)?,
        paths: inner("paths", message.paths, |it| values(it.any_of, it.none_of, path))?,
    })
}

fn operation_message(it: &OperationMatch) -> proto::OperationMatch {
    let (any_of, none_of) = messages(&it.hosts, host_message);
    let hosts = proto::HostValues { any_of, none_of };
    let (any_of, none_of) = messages(&it.paths, path_message);
    let paths = proto::PathValues { any_of, none_of };
    proto::OperationMatch {
        hosts: Some(hosts),
        ports: Some(port_values_message(&it.ports)),
        methods: Some(text_values_message(&it.methods)),
        paths: Some(paths),
    }
}

fn condition(message: proto::Condition) -> Result<Condition, ConvertError> {
    use proto::condition::Kind;
    let at = |field: &str, it: ConvertError| it.within(field);
    Ok(match required("kind", message.kind)? {
        Kind::Header(it) => Condition::Header {
            name: text(&it.name),
            values: inner("values", it.values, text_values).map_err(|it| at("header", it))?,
        },
        Kind::Claim(it) => Condition::Claim {
            keys: texts(&it.keys),
            values: inner("values", it.values, text_values).map_err(|it| at("claim", it))?,
        },
        Kind::Text(it) => text_condition(it).map_err(|it| at("text", it))?,
        Kind::ServiceAccount(it) => {
            Condition::ServiceAccount(account_values(it).map_err(|it| at("service_account", it))?)
        }
        Kind::Ip(it) => ip_condition(it).map_err(|it| at("ip", it))?,
        Kind::DestinationPort(it) => {
            Condition::DestinationPort(port_values(it).map_err(|it| at("destination_port", it))?)
        }
    })
}

fn condition_message(condition: &Condition) -> proto::Condition {
    use proto::condition::Kind;
    let kind = match condition {
        Condition::Header { name, values } => Kind::Header(proto::HeaderCondition {
            name: name.to_string(),
            values: Some(text_values_message(values)),
        }),
        Condition::Claim { keys, values } => Kind::Claim(proto::ClaimCondition {
            keys: strings(keys),
            values: Some(text_values_message(values)),
        }),
        Condition::Text(attribute, values) => Kind::Text(proto::TextCondition {
            attribute: text_attribute_message(*attribute).into(),
            values: Some(text_values_message(values)),
        }),
        Condition::ServiceAccount(values) => Kind::ServiceAccount(account_values_message(values)),
        Condition::Ip(attribute, values) => Kind::Ip(proto::IpCondition {
            attribute: ip_attribute_message(*attribute).into(),
            values: Some(block_values_message(values)),
        }),
        Condition::DestinationPort(values) => Kind::DestinationPort(port_values_message(values)),
    };
    proto::Condition { kind: Some(kind) }
}

fn text_condition(message: proto::TextCondition) -> Result<Condition, ConvertError> {
    use proto::TextAttribute as Message;
    let attribute = match known("attribute", message.attribute)? {
        Message::Unspecified => {
            return Err(ConvertError::new("attribute", Problem::Unspecified));
        }
        Message::Principal => TextAttribute::Principal,
        Message::Namespace => TextAttribute::Namespace,
        Message::TrustDomain => TextAttribute::TrustDomain,
        Message::RequestPrincipal => TextAttribute::RequestPrincipal,
        Message::Audience => TextAttribute::Audience,
        Message::Presenter => TextAttribute::Presenter,
        Message::ServerName => TextAttribute::ServerName,
    };
    Ok(Condition::Text(attribute, inner("values", message.values, text_values)?))
}

fn text_attribute_message(attribute: TextAttribute) -> proto::TextAttribute {
    use proto::TextAttribute as Message;
    match attribute {
        TextAttribute::Principal => Message::Principal,
        TextAttribute::Namespace => Message::Namespace,
        TextAttribute::TrustDomain => Message::TrustDomain,
        TextAttribute::RequestPrincipal => Message::RequestPrincipal,
        TextAttribute::Audience => Message::Audience,
        TextAttribute::Presenter => Message::Presenter,
        TextAttribute::ServerName => Message::ServerName,
    }
}

fn ip_condition(message: proto::IpCondition) -> Result<Condition, ConvertError> {
    let attribute = match known("attribute", message.attribute)? {
        proto::IpAttribute::Unspecified => {
            return Err(ConvertError::new("attribute", Problem::Unspecified));
        }
        proto::IpAttribute::Source => IpAttribute::Source,
        proto::IpAttribute::Remote => IpAttribute::Remote,
        proto::IpAttribute::Destination => IpAttribute::Destination,
    };
    Ok(Condition::Ip(attribute, inner("values", message.values, block_values)?))
}

fn ip_attribute_message(attribute: IpAttribute) -> proto::IpAttribute {
    match attribute {
        IpAttribute::Source => proto::IpAttribute::Source,
        IpAttribute::Remote => proto::IpAttribute::Remote,
        IpAttribute::Destination => proto::IpAttribute::Destination,
    }
}

fn values<W, T>(
    any_of: Vec<W>,
    none_of: Vec<W>,
    convert: impl Fn(W) -> Result<T, ConvertError>,
) -> Result<Values<T>, ConvertError> {
    let any_of = each("any_of", any_of, &convert)?;
    Ok(Values { any_of, none_of: each("none_of", none_of, &convert)? })
}

fn messages<T, W>(values: &Values<T>, message: impl Fn(&T) -> W) -> (Vec<W>, Vec<W>) {
    let any_of = values.any_of.iter().map(&message).collect();
    (any_of, values.none_of.iter().map(&message).collect())
}

fn text_values(message: proto::TextValues) -> Result<Values<TextMatch>, ConvertError> {
    values(message.any_of, message.none_of, words)
}

fn text_values_message(values: &Values<TextMatch>) -> proto::TextValues {
    let (any_of, none_of) = messages(values, words_message);
    proto::TextValues { any_of, none_of }
}

pub(super) fn words(message: proto::TextMatch) -> Result<TextMatch, ConvertError> {
    use proto::text_match::Kind;
    Ok(match required("kind", message.kind)? {
        Kind::Exact(it) => TextMatch::Exact(text(&it)),
        Kind::Prefix(it) => TextMatch::Prefix(text(&it)),
        Kind::Suffix(it) => TextMatch::Suffix(text(&it)),
        Kind::Presence(_) => TextMatch::Presence,
    })
}

pub(super) fn words_message(words: &TextMatch) -> proto::TextMatch {
    use proto::text_match::Kind;
    let kind = match words {
        TextMatch::Exact(it) => Kind::Exact(it.to_string()),
        TextMatch::Prefix(it) => Kind::Prefix(it.to_string()),
        TextMatch::Suffix(it) => Kind::Suffix(it.to_string()),
        TextMatch::Presence => Kind::Presence(EMPTY),
    };
    proto::TextMatch { kind: Some(kind) }
}

fn account_values(
    message: proto::AccountValues,
) -> Result<Values<ServiceAccountMatch>, ConvertError> {
    let account = |it: proto::Account| {
        let (namespace, service_account) = (text(&it.namespace), text(&it.service_account));
        Ok(ServiceAccountMatch { namespace, service_account })
    };
    values(message.any_of, message.none_of, account)
}

fn account_values_message(values: &Values<ServiceAccountMatch>) -> proto::AccountValues {
    let account = |it: &ServiceAccountMatch| proto::Account {
        namespace: it.namespace.to_string(),
        service_account: it.service_account.to_string(),
    };
    let (any_of, none_of) = messages(values, account);
    proto::AccountValues { any_of, none_of }
}

fn block_values(message: proto::BlockValues) -> Result<Values<IpNet>, ConvertError> {
    values(message.any_of, message.none_of, block)
}

fn block_values_message(values: &Values<IpNet>) -> proto::BlockValues {
    let (any_of, none_of) = messages(values, block_message);
    proto::BlockValues { any_of, none_of }
}

pub(super) fn block_message(it: &IpNet) -> proto::Block {
    proto::Block { address: ip_bytes(it.addr()), length: it.prefix_len().into() }
}

pub(super) fn block(message: proto::Block) -> Result<IpNet, ConvertError> {
    let ip = written_ip(&message.address)?;
    let block = IpNet::new(ip, prefix_len(ip, message.length)?);
    let block = canonical_block(block.expect("the length fits the address"));
    block.ok_or_else(|| ConvertError::new("length", Problem::MixedBlock))
}

fn port_values(message: proto::PortValues) -> Result<Values<u16>, ConvertError> {
    // A number has no fields of its own, so the list is the field.
    let ports = |field: &str, all: Vec<u32>| {
        all.into_iter().map(|it| port(field, it)).collect::<Result<Vec<u16>, _>>()
    };
    let any_of = ports("any_of", message.any_of)?;
    Ok(Values { any_of, none_of: ports("none_of", message.none_of)? })
}

fn port_values_message(values: &Values<u16>) -> proto::PortValues {
    let (any_of, none_of) = messages(values, |it| u32::from(*it));
    proto::PortValues { any_of, none_of }
}

fn host(message: proto::HostMatch) -> Result<HostMatch, ConvertError> {
    Ok(HostMatch {
        host: inner("host", message.host, words)?,
        port: message.port.map(|it| port("port", it)).transpose()?,
    })
}

fn host_message(host: &HostMatch) -> proto::HostMatch {
    proto::HostMatch { host: Some(words_message(&host.host)), port: host.port.map(u32::from) }
}

fn path(message: proto::PathPattern) -> Result<PathPattern, ConvertError> {
    use proto::path_pattern::Kind;
    match required("kind", message.kind)? {
        Kind::Text(it) => words(it).map(PathPattern::Text).map_err(|error| error.within("text")),
        Kind::Template(it) => PathPattern::template(&it)
            .map_err(|error| ConvertError::new("template", Problem::Template(error))),
    }
}

fn path_message(path: &PathPattern) -> proto::PathPattern {
    use proto::path_pattern::Kind;
    let kind = match path {
        PathPattern::Text(it) => Kind::Text(words_message(it)),
        PathPattern::Template(segments) => Kind::Template(template(segments)),
    };
    proto::PathPattern { kind: Some(kind) }
}

/// A template as it is written.
fn template(segments: &[Segment]) -> String {
    let segment = |it: &Segment| match it {
        Segment::Literal(text) => text.clone(),
        Segment::One => Text::from("{*}"),
        Segment::Rest => Text::from("{**}"),
    };
    segments.iter().fold(String::new(), |all, it| all + "/" + &segment(it))
}
