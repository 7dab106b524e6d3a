//! The addresses of endpoints that are names, looked up when a connection needs them.
//!
//! All threads share the answers, and one of them asks for a name at a time. An answer is used for
//! its time to live, within bounds; while no resolver answers, the last one is used on for a while.
//! What an address may be used for is not decided here: see [`ambit_model::plan::Lookup`].

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ambit_model::Text;
use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use rustc_hash::FxHashMap;
use tokio::time::{Instant, timeout};

use crate::failure::{Failure, ResponseFlags};
use crate::resolver::{self, Asker, ResolverError, Transport};

/// An answer is used for this long at least, however short its time to live.
const TTL_MIN: Duration = Duration::from_secs(5);
/// And for this long at most.
const TTL_MAX: Duration = Duration::from_secs(300);
/// How long it is remembered that a name has no address.
const ABSENT_TTL: Duration = Duration::from_secs(5);
/// How long no resolver is asked again for a name for which none has answered.
const FAILED_PAUSE: Duration = Duration::from_secs(1);
/// How long an answer whose time is over is used on, while no resolver answers.
const STALE_MAX: Duration = Duration::from_secs(600);
/// How long a connection waits for the addresses of a name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Names that are remembered. Beyond it those whose time is over are forgotten, then any.
const NAMES_MAX: usize = 4096;
/// Addresses of one name that are used.
const ADDRESSES_MAX: usize = 32;
/// Longest answer that is read.
const ANSWER_BYTES_MAX: usize = 4096;
/// Largest datagram that a resolver may send: what every network carries in one piece, without the
/// headers of IPv6 and UDP.
const PAYLOAD_BYTES: u16 = 1280 - 40 - 8;
/// Other names that a name may lead to, one after the other.
const ALIASES_MAX: usize = 16;

/// Why a name leads nowhere.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LookupError {
    /// DNS cannot carry it.
    #[error("{0} is no name of DNS; correct the host or the endpoint of the ServiceEntry")]
    Name(Text),
    /// It has no address.
    #[error("the resolver says that {0} has no address")]
    Absent(Text),
    /// No resolver has answered.
    #[error("cannot look up {0}")]
    Resolver(Text, #[source] Arc<ResolverError>),
    /// A resolver has answered with something else.
    #[error("the resolver's answer for {0} is of no use: {1}")]
    Answer(Text, String),
    /// It took too long.
    #[error(
        "no resolver has said within {limit_s} s where {0} is",
        limit_s = LOOKUP_TIMEOUT.as_secs()
    )]
    Timeout(Text),
    /// A view with holes does not show which addresses are the mesh's own.
    #[error("{0} is not looked up: a proxy that fetches on demand cannot tell where it may lead")]
    OnDemand(Text),
}

impl Failure for LookupError {
    fn flags(&self) -> ResponseFlags {
        ResponseFlags::Connect
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Name(_) | Self::Absent(_) => "no_address",
            Self::Resolver(..) | Self::Answer(..) | Self::Timeout(_) | Self::OnDemand(_) => {
                "lookup"
            }
        }
    }
}

/// What is known of one name.
#[derive(Debug, Default)]
struct Known {
    /// The last addresses, and how long they may be used on while no resolver answers.
    addresses: Option<(Arc<[IpAddr]>, Instant)>,
    /// What is said of the name now, and until when.
    said: Option<(Result<(), LookupError>, Instant)>,
    /// Held by whoever asks.
    asking: Arc<tokio::sync::Mutex<()>>,
}

impl Known {
    /// What holds at this moment, without asking.
    fn at(&self, now: Instant) -> Option<Result<Arc<[IpAddr]>, LookupError>> {
        let (said, _) = self.said.as_ref().filter(|(_, until)| now < *until)?;
        let addresses = self.addresses.as_ref().filter(|(_, until)| now < *until);
        match (said, addresses) {
            (Err(error @ (LookupError::Absent(_) | LookupError::Name(_))), _) => {
                Some(Err(error.clone()))
            }
            (_, Some((addresses, _))) => Some(Ok(addresses.clone())),
            (Err(error), None) => Some(Err(error.clone())),
            (Ok(()), None) => None,
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        let is_said = self.said.as_ref().is_some_and(|(_, until)| now < *until);
        let is_asked = Arc::strong_count(&self.asking) > 1;
        !is_said && !is_asked && self.addresses.as_ref().is_none_or(|(_, until)| *until <= now)
    }
}

/// The addresses of names.
pub struct Names {
    resolvers: Vec<SocketAddr>,
    mark: Option<u32>,
    /// Whether the view has the whole mesh.
    knows_mesh: bool,
    known: Mutex<FxHashMap<Text, Known>>,
    turn: AtomicUsize,
}

/// Forgets names until there is room for this one: what is over first, then any.
fn make_room(all: &mut FxHashMap<Text, Known>, host: &Text, now: Instant) {
    if all.len() < NAMES_MAX || all.contains_key(host) {
        return;
    }
    all.retain(|_, known| !known.is_over(now));
    while all.len() >= NAMES_MAX
        && let Some(any) = all.keys().next().cloned()
    {
        all.remove(&any);
    }
}

/// What a lookup has said.
type Said = Result<Arc<[IpAddr]>, LookupError>;

impl Names {
    /// Nothing is known yet.
    pub(crate) fn new(resolvers: Vec<SocketAddr>, mark: Option<u32>, knows_mesh: bool) -> Self {
        Self { resolvers, mark, knows_mesh, known: Mutex::default(), turn: AtomicUsize::new(0) }
    }

    /// The addresses of a name that are in force without asking, if any are.
    pub fn known(&self, host: &Text) -> Option<Arc<[IpAddr]>> {
        self.with(|all| all.get(host)?.at(Instant::now())?.ok())
    }

    /// Counts up with each connection: addresses take turns.
    pub fn turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// The addresses of a name, each once and at least one, in the order of the answer.
    pub async fn addresses(&self, host: &Text) -> Result<Arc<[IpAddr]>, LookupError> {
        if !self.knows_mesh {
            return Err(LookupError::OnDemand(host.clone()));
        }
        let found = timeout(LOOKUP_TIMEOUT, self.find(host, |name| self.ask(name))).await;
        // The last answer is used on, and nobody else waits as long for the same.
        found.unwrap_or_else(|_| self.learn(host, Err(LookupError::Timeout(host.clone()))))
    }

    async fn find<F>(
        &self,
        host: &Text,
        ask: impl FnOnce(Name) -> F,
    ) -> Result<Arc<[IpAddr]>, LookupError>
    where
        F: Future<Output = Result<(Vec<IpAddr>, Duration), LookupError>>,
    {
        let asking = match self.begin(host) {
            Ok(said) => return said,
            Err(asking) => asking,
        };
        let _asking = asking.lock().await;
        if let Some(said) = self.with(|all| all.get(host)?.at(Instant::now())) {
            return said;
        }
        let found = match name_of(host) {
            Some(name) => ask(name).await,
            None => Err(LookupError::Name(host.clone())),
        };
        self.learn(host, found)
    }

    /// What is known of a name, or else the turn to ask for it.
    fn begin(&self, host: &Text) -> Result<Said, Arc<tokio::sync::Mutex<()>>> {
        let now = Instant::now();
        self.with(|all| {
            make_room(all, host, now);
            let known = all.entry(host.clone()).or_default();
            known.at(now).ok_or_else(|| known.asking.clone())
        })
    }

    /// Keeps what was found, and says what holds then.
    fn learn(
        &self,
        host: &Text,
        found: Result<(Vec<IpAddr>, Duration), LookupError>,
    ) -> Result<Arc<[IpAddr]>, LookupError> {
        let now = Instant::now();
        self.with(|all| {
            make_room(all, host, now);
            let known = all.entry(host.clone()).or_default();
            let (said, lasts) = match found {
                Ok((addresses, ttl)) => {
                    let ttl = ttl.clamp(TTL_MIN, TTL_MAX);
                    known.addresses = Some((addresses.into(), now + ttl + STALE_MAX));
                    (Ok(()), ttl)
                }
                Err(error @ (LookupError::Absent(_) | LookupError::Name(_))) => {
                    known.addresses = None;
                    (Err(error), ABSENT_TTL)
                }
                Err(error) => (Err(error), FAILED_PAUSE),
            };
            known.said = Some((said, now + lasts));
            known.at(now).expect("it was just said")
        })
    }

    fn with<T>(&self, look: impl FnOnce(&mut FxHashMap<Text, Known>) -> T) -> T {
        look(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks for both families at once. One of them is enough.
    async fn ask(&self, name: Name) -> Result<(Vec<IpAddr>, Duration), LookupError> {
        let host: Text = name.to_ascii().trim_end_matches('.').into();
        let resolvers = resolver::node_resolvers(&self.resolvers);
        let [v4, v6] = [RecordType::A, RecordType::AAAA].map(|kind| {
            let (name, host, resolvers) = (name.clone(), host.clone(), resolvers.clone());
            async move { self.ask_one(name, &host, kind, &resolvers).await }
        });
        match futures::join!(v4, v6) {
            (Ok((v4, one)), Ok((v6, other))) => {
                let ttl = if v4.is_empty() { other } else { one };
                let ttl = if v6.is_empty() { ttl } else { ttl.min(other) };
                let all: Vec<IpAddr> = v4.into_iter().chain(v6).take(ADDRESSES_MAX).collect();
                if all.is_empty() { Err(LookupError::Absent(host)) } else { Ok((all, ttl)) }
            }
            // The other family is asked for again soon.
            (Ok((all, _)), Err(_)) | (Err(_), Ok((all, _))) if !all.is_empty() => {
                Ok((all, TTL_MIN))
            }
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }

    async fn ask_one(
        &self,
        name: Name,
        host: &Text,
        kind: RecordType,
        resolvers: &[SocketAddr],
    ) -> Result<(Vec<IpAddr>, Duration), LookupError> {
        let useless = |why: String| LookupError::Answer(host.clone(), why);
        let query = query(&name, kind).map_err(|why| useless(why.to_string()))?;
        let from = Asker { own: None, mark: self.mark };
        for transport in [Transport::Udp, Transport::Tcp] {
            let answer = resolver::ask(from, resolvers, &query, transport).await;
            let answer = answer.map_err(|why| LookupError::Resolver(host.clone(), why.into()))?;
            match read(&answer, &name, kind).map_err(useless)? {
                Some(found) => return Ok(found),
                None => continue,
            }
        }
        Err(useless("it is cut short".to_owned()))
    }
}

/// The name in DNS of a host; nothing if DNS cannot carry it, or if it is no single name.
fn name_of(host: &str) -> Option<Name> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if host.is_empty() || !host.bytes().all(is_plain) {
        return None;
    }
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    Name::from_ascii(format!("{host}.")).ok()
}

fn query(name: &Name, kind: RecordType) -> Result<Vec<u8>, impl std::error::Error + use<>> {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name.clone(), kind));
    let mut edns = Edns::new();
    edns.set_max_payload(PAYLOAD_BYTES);
    message.set_edns(edns);
    message.to_vec()
}

/// The addresses that an answer gives a name, maybe none, and how long they may be remembered;
/// nothing of an answer that is cut short.
fn read(
    bytes: &[u8],
    name: &Name,
    kind: RecordType,
) -> Result<Option<(Vec<IpAddr>, Duration)>, String> {
    if bytes.len() > ANSWER_BYTES_MAX {
        return Err(format!("it is longer than {ANSWER_BYTES_MAX} bytes"));
    }
    let message = Message::from_vec(bytes).map_err(|error| error.to_string())?;
    if message.metadata.truncation {
        return Ok(None);
    }
    match message.metadata.response_code {
        ResponseCode::NoError => {}
        ResponseCode::NXDomain => return Ok(Some((Vec::new(), ABSENT_TTL))),
        other => return Err(format!("it is the error {other}")),
    }
    let (mut at, mut ttl) = (name.to_lowercase(), u32::MAX);
    for _ in 0..=ALIASES_MAX {
        let of_name = message.answers.iter().filter(|it| it.name.to_lowercase() == at);
        let (mut addresses, mut alias) = (Vec::new(), None);
        for record in of_name {
            let ip = match &record.data {
                RData::A(ip) if kind == RecordType::A => IpAddr::V4(ip.0),
                RData::AAAA(ip) if kind == RecordType::AAAA => IpAddr::V6(ip.0).to_canonical(),
                RData::CNAME(other) => {
                    alias = Some((other.0.to_lowercase(), record.ttl));
                    continue;
                }
                _ => continue,
            };
            if !addresses.contains(&ip) && addresses.len() < ADDRESSES_MAX {
                addresses.push(ip);
            }
            ttl = ttl.min(record.ttl);
        }
        match alias {
            Some((other, of_alias)) if addresses.is_empty() => {
                (at, ttl) = (other, ttl.min(of_alias));
            }
            _ => return Ok(Some((addresses, Duration::from_secs(ttl.into())))),
        }
    }
    Err(format!("it leads through more than {ALIASES_MAX} other names"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use hickory_proto::rr::Record;
    use hickory_proto::rr::rdata::{A, AAAA, CNAME};

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn name(text: &str) -> Name {
        name_of(text).expect("a name")
    }

    type Answer = Result<(Vec<IpAddr>, Duration), LookupError>;

    fn found(texts: &[&str], ttl_s: u64) -> Answer {
        Ok((texts.iter().map(|it| ip(it)).collect(), Duration::from_secs(ttl_s)))
    }

    fn failed() -> Answer {
        Err(LookupError::Answer("a.example".into(), "it is the error SERVFAIL".to_owned()))
    }

    /// What is said of a name that is asked for at these seconds, and how often a resolver was
    /// asked.
    async fn check(steps: &[(u64, Answer, Option<&str>)], asked: u32) {
        let (names, host) = (Names::new(Vec::new(), None, true), Text::from("a.example"));
        let (start, count) = (Instant::now(), Cell::new(0));
        for (at_s, answer, expected) in steps {
            tokio::time::sleep_until(start + Duration::from_secs(*at_s)).await;
            let ask = |_| {
                count.set(count.get() + 1);
                let answer = answer.clone();
                async move { answer }
            };
            let said = names.find(&host, ask).await;
            assert_eq!(said.ok().map(|it| it[0]), expected.map(ip), "after {at_s} s");
        }
        assert_eq!(count.get(), asked);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_live_for_their_time_within_bounds() {
        let (one, two) = (|ttl_s| found(&["192.0.2.1"], ttl_s), || found(&["192.0.2.2"], 60));
        let (first, second) = (Some("192.0.2.1"), Some("192.0.2.2"));
        check(&[(0, one(60), first), (59, two(), first), (61, two(), second)], 2).await;
        check(&[(0, one(0), first), (4, two(), first), (6, two(), second)], 2).await;
        check(&[(0, one(9999), first), (299, two(), first), (301, two(), second)], 2).await;
        let absent = || Err(LookupError::Absent("a.example".into()));
        check(&[(0, absent(), None), (4, two(), None), (6, two(), second)], 2).await;
        check(&[(0, one(60), first), (61, absent(), None), (67, failed(), None)], 3).await;
    }

    #[tokio::test(start_paused = true)]
    async fn while_no_resolver_answers_the_last_answer_is_used_on_for_a_while() {
        let (one, first) = (|| found(&["192.0.2.1"], 60), Some("192.0.2.1"));
        check(&[(0, one(), first), (61, failed(), first), (659, failed(), first)], 3).await;
        check(&[(0, one(), first), (661, failed(), None), (663, one(), first)], 3).await;
        check(&[(0, failed(), None), (0, one(), None), (2, one(), first)], 2).await;
    }

    #[tokio::test(start_paused = true)]
    async fn one_asks_for_all_and_one_that_is_gone_holds_up_nobody() {
        let (names, host) = (Names::new(Vec::new(), None, true), Text::from("a.example"));
        let asked = Cell::new(0);
        let slow = |_| {
            asked.set(asked.get() + 1);
            async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                found(&["192.0.2.1"], 60)
            }
        };
        let gone = timeout(Duration::from_millis(500), names.find(&host, slow)).await;
        assert!(gone.is_err() && asked.get() == 1);
        let (one, other) = futures::join!(names.find(&host, slow), names.find(&host, slow));
        assert!(one.is_ok() && other.is_ok());
        assert_eq!(asked.get(), 2);
    }

    #[tokio::test]
    async fn who_knows_a_part_of_the_mesh_looks_nothing_up() {
        let said = Names::new(Vec::new(), None, false).addresses(&"a.example".into()).await;
        assert!(matches!(said, Err(LookupError::OnDemand(_))), "{said:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_names_are_remembered() {
        let names = Names::new(Vec::new(), None, true);
        for index in 0..NAMES_MAX + 10 {
            let host = Text::from(format!("n{index}.example"));
            let said = names.find(&host, |_| async { found(&["192.0.2.1"], 60) }).await;
            assert!(said.is_ok());
        }
        assert_eq!(names.with(|all| all.len()), NAMES_MAX);
    }

    #[test]
    fn names_that_dns_cannot_carry_are_not_asked_for() {
        for host in ["", "*.example", "a b", "a..b", "\u{e9}.example", &"a.".repeat(130)] {
            assert_eq!(name_of(host), None, "{host:?}");
        }
        assert_eq!(name("A.Example.").to_ascii(), "a.example.");
    }

    #[test]
    fn an_answer_is_followed_through_its_aliases() {
        let of = |owner: &str, ttl, data| Record::from_rdata(name(owner), ttl, data);
        let v4 = |text: &str| match ip(text) {
            IpAddr::V4(ip) => RData::A(A(ip)),
            IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
        };
        let alias = |to: &str| RData::CNAME(CNAME(name(to)));
        let check = |code, records: Vec<Record>, expected: Result<(&[&str], u64), &str>| {
            let mut message = Message::query();
            message.metadata.response_code = code;
            message.add_answers(records);
            let bytes = message.to_vec().expect("encoded");
            let said = read(&bytes, &name("a.example"), RecordType::A);
            let said = said.map(|it| it.expect("whole"));
            let expected = expected.map_err(str::to_owned).map(|(ips, ttl_s)| {
                (ips.iter().map(|it| ip(it)).collect(), Duration::from_secs(ttl_s))
            });
            assert_eq!(said, expected);
        };
        use ResponseCode::{NXDomain, NoError, ServFail};
        let two = vec![of("a.example", 60, v4("192.0.2.1")), of("A.example", 30, v4("192.0.2.2"))];
        check(NoError, two, Ok((&["192.0.2.1", "192.0.2.2"], 30)));
        let through = vec![
            of("c.example", 90, v4("192.0.2.3")),
            of("a.example", 20, alias("b.example")),
            of("b.example", 60, alias("c.example")),
            of("z.example", 1, v4("192.0.2.9")),
        ];
        check(NoError, through, Ok((&["192.0.2.3"], 20)));
        let round =
            vec![of("a.example", 20, alias("b.example")), of("b.example", 60, alias("a.example"))];
        check(NoError, round, Err("it leads through more than 16 other names"));
        check(NoError, vec![of("a.example", 1, v4("2001:db8::1"))], Ok((&[], u32::MAX.into())));
        check(NXDomain, Vec::new(), Ok((&[], 5)));
        check(ServFail, Vec::new(), Err("it is the error Server Failure"));
    }
}
