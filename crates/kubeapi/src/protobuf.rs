//! Bodies in protobuf, which typed clients of client-go send for built-in kinds.
//!
//! They are read into the same JSON that the client would have sent. What is not in the table of
//! types is passed over, as an API server passes over what a newer client sends.

mod types;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use self::types::{Form, Type, fields};

/// What each such body begins with.
const MAGIC: &[u8] = b"k8s\0";
/// Most values of one body.
const VALUES_MAX: usize = 200_000;

/// Why a body is not read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// It is something else, or ends too early.
    #[error("it is not Kubernetes' protobuf")]
    Malformed,
    /// It is compressed.
    #[error("it has the encoding {0:?}; send it without")]
    Encoding(String),
    /// It is of another kind.
    #[error("a {0:?} is not read from protobuf; send JSON")]
    Kind(String),
    /// It has too many values.
    #[error("it has more than {VALUES_MAX} values; split it")]
    TooMany,
}

/// Reads a body.
///
/// # Errors
/// It is malformed, or of a kind that is not built in.
pub fn protobuf(body: &[u8]) -> Result<Value, ProtobufError> {
    let mut unknown = Reader(body.strip_prefix(MAGIC).ok_or(ProtobufError::Malformed)?);
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    while let Some((number, value)) = unknown.field()? {
        match (number, value) {
            (1, Wire::Bytes(meta)) => {
                let mut meta = Reader(meta);
                while let Some((number, value)) = meta.field()? {
                    match number {
                        1 => api_version = text(value)?,
                        2 => kind = text(value)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            (3, Wire::Bytes(encoding)) if !encoding.is_empty() => {
                let encoding = String::from_utf8_lossy(encoding).into_owned();
                return Err(ProtobufError::Encoding(encoding));
            }
            _ => {}
        }
    }
    if fields(&kind).is_none() || !api_version.contains('v') {
        return Err(ProtobufError::Kind(kind));
    }
    let mut left = VALUES_MAX;
    let mut object = Map::new();
    // A type has one form, but for what an older version has another one of.
    let older = format!("{api_version}/{kind}");
    let of = if fields(&older).is_some() { &older } else { &kind };
    message(of, raw, &mut object, &mut left)?;
    object.insert("apiVersion".to_owned(), Value::String(api_version));
    object.insert("kind".to_owned(), Value::String(kind));
    Ok(Value::Object(object))
}

/// Reads the fields of a message. Types do not hold themselves, so that this ends.
fn message(
    of: &str,
    bytes: &[u8],
    object: &mut Map<String, Value>,
    left: &mut usize,
) -> Result<(), ProtobufError> {
    let fields = fields(of).unwrap_or_default();
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.field()? {
        let Some(field) = fields.iter().find(|it| it.number == number) else { continue };
        *left = left.checked_sub(1).ok_or(ProtobufError::TooMany)?;
        match (field.form, field.of) {
            (Form::Embedded, Type::Message(of)) => message(of, wire.bytes()?, object, left)?,
            (Form::List, Type::Number) if matches!(wire, Wire::Bytes(_)) => {
                let mut packed = Reader(wire.bytes()?);
                while !packed.0.is_empty() {
                    *left = left.checked_sub(1).ok_or(ProtobufError::TooMany)?;
                    push(object, field.name, json!(packed.varint()?.cast_signed()));
                }
            }
            (Form::List, of) => push(object, field.name, value(of, wire, left)?),
            (Form::Map, of) => {
                let (key, value) = entry(of, wire, left)?;
                let map = object.entry(field.name).or_insert_with(|| json!({}));
                map[key] = value;
            }
            (form, of) => {
                let value = value(of, wire, left)?;
                if form == Form::Optional || !is_zero(&value) {
                    object.insert(field.name.to_owned(), value);
                }
            }
        }
    }
    Ok(())
}

fn push(object: &mut Map<String, Value>, name: &str, value: Value) {
    let list = object.entry(name).or_insert_with(|| json!([]));
    list.as_array_mut().into_iter().for_each(|list| list.push(value.clone()));
}

fn entry(of: Type, wire: Wire<'_>, left: &mut usize) -> Result<(String, Value), ProtobufError> {
    let mut reader = Reader(wire.bytes()?);
    let (mut key, mut found) = (String::new(), value(of, Wire::Bytes(&[]), left)?);
    while let Some((number, wire)) = reader.field()? {
        match number {
            1 => key = text(wire)?,
            2 => found = value(of, wire, left)?,
            _ => {}
        }
    }
    Ok((key, found))
}

fn value(of: Type, wire: Wire<'_>, left: &mut usize) -> Result<Value, ProtobufError> {
    Ok(match of {
        Type::Text => Value::String(text(wire)?),
        Type::Number => json!(wire.number()?.cast_signed()),
        Type::Flag => json!(wire.number()? != 0),
        Type::Bytes => json!(STANDARD.encode(wire.bytes()?)),
        Type::Message(of) => {
            let mut object = Map::new();
            message(of, wire.bytes()?, &mut object, left)?;
            Value::Object(object)
        }
        Type::Time => {
            let [seconds, nanos] = numbers(wire, [1, 2])?;
            let nanos = i32::try_from(nanos).unwrap_or_default();
            let time = Timestamp::new(seconds, nanos).map_err(|_| ProtobufError::Malformed)?;
            // Go's zero is the year 1.
            match time.as_second() {
                ..=0 => Value::Null,
                _ => json!(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
            }
        }
        Type::NumberOrText => match numbers(wire, [1, 2])? {
            [0, number] => json!(number),
            _ => Value::String(text_of(wire, 3)?),
        },
        Type::Quantity => Value::String(text_of(wire, 1)?),
    })
}

/// Two numbers of a message, 0 for one that is not there.
fn numbers(wire: Wire<'_>, wanted: [u64; 2]) -> Result<[i64; 2], ProtobufError> {
    let (mut reader, mut found) = (Reader(wire.bytes()?), [0; 2]);
    while let Some((number, wire)) = reader.field()? {
        if let Some(at) = wanted.iter().position(|it| *it == number) {
            found[at] = wire.number()?.cast_signed();
        }
    }
    Ok(found)
}

/// A text of a message.
fn text_of(wire: Wire<'_>, wanted: u64) -> Result<String, ProtobufError> {
    let (mut reader, mut found) = (Reader(wire.bytes()?), String::new());
    while let Some((number, wire)) = reader.field()? {
        if number == wanted {
            found = text(wire)?;
        }
    }
    Ok(found)
}

fn text(wire: Wire<'_>) -> Result<String, ProtobufError> {
    let text = std::str::from_utf8(wire.bytes()?);
    text.map(str::to_owned).map_err(|_| ProtobufError::Malformed)
}

/// Whether a value that is always sent means that it is not set.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// What a field has on the wire.
#[derive(Clone, Copy, Debug)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Wire<'a> {
    fn bytes(self) -> Result<&'a [u8], ProtobufError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Number(_) => Err(ProtobufError::Malformed),
        }
    }

    fn number(self) -> Result<u64, ProtobufError> {
        match self {
            Self::Number(number) => Ok(number),
            Self::Bytes([]) => Ok(0),
            Self::Bytes(_) => Err(ProtobufError::Malformed),
        }
    }
}

/// The fields of a message, one after the other.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn field(&mut self) -> Result<Option<(u64, Wire<'a>)>, ProtobufError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            1 => Wire::Bytes(self.take(8)?),
            2 => {
                let length = self.varint()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Bytes(self.take(4)?),
            _ => return Err(ProtobufError::Malformed),
        };
        Ok(Some((tag >> 3, wire)))
    }

    fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.0.split_first().ok_or(ProtobufError::Malformed)?;
            self.0 = rest;
            number |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(ProtobufError::Malformed)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], ProtobufError> {
        let length = usize::try_from(length).map_err(|_| ProtobufError::Malformed)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(ProtobufError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn varint(mut number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number > 0x7f {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }

    fn number(at: u64, number: i64) -> Vec<u8> {
        [varint(at << 3), varint(number.cast_unsigned())].concat()
    }

    fn bytes(at: u64, bytes: impl AsRef<[u8]>) -> Vec<u8> {
        let bytes = bytes.as_ref();
        [varint(at << 3 | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
    }

    fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [bytes(1, api_version), bytes(2, kind)].concat();
        [MAGIC.to_vec(), bytes(1, meta), bytes(2, raw), bytes(3, ""), bytes(4, "")].concat()
    }

    #[test]
    fn an_object_is_the_json_that_the_client_would_have_sent() {
        let zero_time = number(1, -62_135_596_800);
        let label = bytes(11, [bytes(1, "app"), bytes(2, "web")].concat());
        let metadata =
            [bytes(1, "web"), bytes(2, ""), number(7, 0), bytes(8, &zero_time), label].concat();
        let port = [
            bytes(1, "http"),
            bytes(2, ""),
            number(3, 80),
            bytes(4, [number(1, 1), number(2, 0), bytes(3, "web")].concat()),
            number(5, 0),
        ];
        let newer = bytes(999, "not known here");
        let spec = [bytes(1, port.concat()), bytes(3, ""), bytes(10, ""), newer].concat();
        let raw = [bytes(1, metadata), bytes(2, spec), bytes(3, bytes(1, ""))].concat();
        let expected = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "labels": {"app": "web"}},
            "spec": {
                "ports": [{"name": "http", "port": 80, "targetPort": "web"}],
            },
        });
        assert_eq!(protobuf(&body("v1", "Service", &raw)), Ok(expected));
    }

    #[test]
    fn what_is_set_to_zero_stays() {
        let container = [bytes(1, "m"), bytes(2, "i"), bytes(8, "")].concat();
        let volume = [bytes(1, "v"), bytes(2, bytes(2, ""))].concat();
        let pod = [bytes(2, container), bytes(1, volume), number(4, 0)].concat();
        let template = bytes(2, pod);
        let spec = [number(1, 0), bytes(3, template), number(5, 0), number(7, 0)].concat();
        let found = protobuf(&body("apps/v1", "Deployment", &bytes(2, spec))).expect("it is whole");
        let expected = json!({"replicas": 0, "template": {"spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "m", "image": "i"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
        }}});
        assert_eq!(found["spec"], expected);
        let found =
            protobuf(&body("v1", "Secret", &bytes(2, [bytes(1, "k"), bytes(2, "v")].concat())));
        assert_eq!(found.expect("it is whole")["data"], json!({"k": "dg=="}));
        let options = [number(1, 0), bytes(2, bytes(1, "u")), bytes(5, "All")].concat();
        let found = protobuf(&body("apps/v1", "DeleteOptions", &options)).expect("it is whole");
        let expected = json!({"apiVersion": "apps/v1", "kind": "DeleteOptions",
            "gracePeriodSeconds": 0, "preconditions": {"uid": "u"}, "dryRun": ["All"]});
        assert_eq!(found, expected);
        let asked = [bytes(1, "app"), bytes(2, "list"), bytes(5, "pods")].concat();
        let review = bytes(2, bytes(1, asked));
        let review = body("authorization.k8s.io/v1", "SelfSubjectAccessReview", &review);
        let asked = json!({"namespace": "app", "verb": "list", "resource": "pods"});
        let found = protobuf(&review).expect("it is whole");
        assert_eq!(found["spec"]["resourceAttributes"], asked);
    }

    #[test]
    fn an_autoscaler_keeps_all_of_its_parts() {
        let target = [bytes(1, "Utilization"), number(4, 50)].concat();
        let cpu = [bytes(1, "cpu"), bytes(2, target)].concat();
        let queue = bytes(2, [bytes(1, "AverageValue"), bytes(3, bytes(1, "5"))].concat());
        let queue = [bytes(1, bytes(1, "queue")), queue].concat();
        let policy = [bytes(1, "Pods"), number(2, 4), number(3, 60)].concat();
        let up = [bytes(1, "Min"), bytes(2, policy), number(3, 0)].concat();
        let spec = [
            bytes(1, [bytes(1, "Deployment"), bytes(2, "web"), bytes(3, "apps/v1")].concat()),
            number(2, 2),
            number(3, 5),
            bytes(4, [bytes(1, "Resource"), bytes(4, cpu)].concat()),
            bytes(4, [bytes(1, "External"), bytes(5, queue)].concat()),
            bytes(5, bytes(1, up)),
        ];
        let body = body("autoscaling/v2", "HorizontalPodAutoscaler", &bytes(2, spec.concat()));
        let expected = json!({
            "scaleTargetRef": {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"},
            "minReplicas": 2, "maxReplicas": 5,
            "metrics": [
                {"type": "Resource", "resource": {"name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 50}}},
                {"type": "External", "external": {"metric": {"name": "queue"},
                    "target": {"type": "AverageValue", "averageValue": "5"}}},
            ],
            "behavior": {"scaleUp": {"selectPolicy": "Min", "stabilizationWindowSeconds": 0,
                "policies": [{"type": "Pods", "value": 4, "periodSeconds": 60}]}},
        });
        assert_eq!(protobuf(&body).expect("it is whole")["spec"], expected);
        let spec = [number(3, 5), number(4, 50)].concat();
        let older = self::body("autoscaling/v1", "HorizontalPodAutoscaler", &bytes(2, spec));
        let expected = json!({"maxReplicas": 5, "targetCPUUtilizationPercentage": 50});
        assert_eq!(protobuf(&older).expect("it is whole")["spec"], expected);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(raw in proptest::collection::vec(0_u8.., 0..200)) {
            drop(protobuf(&[MAGIC, &raw].concat()));
            drop(protobuf(&body("batch/v1", "CronJob", &raw)));
        }
    }

    #[test]
    fn what_is_not_read_is_refused() {
        let check = |body: &[u8], expected: ProtobufError| {
            assert_eq!(protobuf(body), Err(expected), "{body:?}");
        };
        check(b"", ProtobufError::Malformed);
        check(b"{}", ProtobufError::Malformed);
        check(&body("example/v1", "Gizmo", &[]), ProtobufError::Kind("Gizmo".to_owned()));
        let gzip = [MAGIC.to_vec(), bytes(3, "gzip")].concat();
        check(&gzip, ProtobufError::Encoding("gzip".to_owned()));
        let whole = body("v1", "Pod", &bytes(2, bytes(2, bytes(1, "name"))));
        for end in MAGIC.len() + 1..whole.len() {
            // Cut anywhere, it is refused or read as less; it never fails otherwise.
            drop(protobuf(&whole[..end]));
        }
        check(&body("v1", "Pod", &[0xff; 11]), ProtobufError::Malformed);
        let many = bytes(2, bytes(2, "").repeat(VALUES_MAX));
        check(&body("v1", "Pod", &many), ProtobufError::TooMany);
    }
}
