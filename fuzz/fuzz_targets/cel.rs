//! Expressions as noise over requests as noise: nothing may panic, and both compiling and
//! evaluating end.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use ambit_model::authorize::Source;
use ambit_model::expression::{Expression, Lookup, Value};
use ambit_model::http::authorize::{Asked, Token};
use ambit_model::http::condition::NAMES;
use ambit_model::http::head::{Claims, Client, NamedValues, RequestHead};
use ambit_model::{Text, identity::Identity};
use libfuzzer_sys::fuzz_target;

struct Known<'a>(&'a str);

impl Claims for Known<'_> {
    fn any_claim(&self, _: &[Text], holds: &mut dyn FnMut(&str) -> bool) -> bool {
        holds(self.0)
    }
}

impl Token for Known<'_> {
    fn principal(&self) -> Option<&str> {
        Some(self.0)
    }

    fn any_audience(&self, holds: &mut dyn FnMut(&str) -> bool) -> bool {
        self.0.split(',').any(holds)
    }

    fn presenter(&self) -> Option<&str> {
        None
    }

    fn claims(&self) -> &dyn Lookup {
        self
    }
}

impl Lookup for Known<'_> {
    fn get(&self, name: &str) -> Option<Value<'_>> {
        let list = || self.0.chars().map(|it| Value::Int(u32::from(it).into())).collect::<Vec<_>>();
        Some(match name {
            "list" => Value::List(list().into()),
            "map" => Value::Map(vec![(self.0.into(), Value::Double(f64::NAN))].into()),
            "text" => Value::text(self.0),
            "number" => Value::Uint(u64::MAX),
            "least" => Value::Int(i64::MIN),
            _ => return None,
        })
    }
}

fuzz_target!(|data: (&str, &str, &str, &str)| {
    let (source, path, field, claim) = data;
    let Ok(expression) = Expression::new(source, &NAMES) else { return };
    let _ = Expression::condition(source, &NAMES);
    let fields = [("a".to_owned(), field.to_owned()), ("b".to_owned(), claim.to_owned())];
    let token = Known(claim);
    let head = RequestHead {
        method: "GET",
        scheme: "http",
        host: "web",
        port: Some(80),
        path,
        query: field,
        fields: &NamedValues(&fields),
        client: Client::default(),
    };
    let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
    for token in [Some(&token as &dyn Token), None] {
        let identity = token.map(|_| Identity::new("cluster.local", "app", "web"));
        let asked = Asked {
            head: &head,
            source: &Source::new(identity, ip),
            remote_ip: ip,
            destination: (ip, 80).into(),
            service: None,
            server_name: None,
            token,
        };
        if let Ok(value) = expression.evaluate(&asked) {
            let _ = value.to_string();
        }
    }
});
