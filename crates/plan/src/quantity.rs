//! Exact amounts: Kubernetes quantities as millicores and bytes, prices as millionths.
//!
//! Kubernetes rounds a request up to a whole millicore or byte, and so does this file. Nothing here
//! may use floating point: nobody trusts a planner that is a cent off.

use std::fmt;

use serde::{Serialize, Serializer};

/// Most millicores that one amount may be: a million cores.
const CPU_MILLICORES_MAX: u64 = 1_000_000_000;
/// Most bytes that one amount may be: 64 TiB.
const MEMORY_BYTES_MAX: u64 = 1 << 46;
/// Most millionths that one price may be: a hundred million.
const PRICE_MAX: u64 = 100_000_000 * Price::UNIT;
/// Longest text that is parsed.
const TEXT_LEN_MAX: usize = 32;

/// CPU and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Resources {
    /// Thousandths of a core.
    pub cpu_millicores: u64,
    /// Bytes.
    pub memory_bytes: u64,
}

/// A monthly price, in millionths of the currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Price(pub(crate) u64);

/// Why a text is no amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// Not a number with a unit.
    #[error("is not a quantity; write it as {0}")]
    Malformed(&'static str),
    /// Below zero.
    #[error("is negative; write 0 or more")]
    Negative,
    /// Beyond any machine.
    #[error("is larger than any machine; correct the number or its unit")]
    TooLarge,
    /// Finer than a price can be.
    #[error("has more than six digits after the point; round it")]
    TooFine,
}

const CPU_FORM: &str = "700m, 0.5 or 2";
const MEMORY_FORM: &str = "500Mi, 2Gi or 1000000";
const PRICE_FORM: &str = "284.385";

/// Units: what they multiply by, as a power of ten in thousandths and a power of two.
const UNITS: [(&str, u32, u32); 14] = [
    ("m", 0, 0),
    ("", 3, 0),
    ("k", 6, 0),
    ("M", 9, 0),
    ("G", 12, 0),
    ("T", 15, 0),
    ("P", 18, 0),
    ("E", 21, 0),
    ("Ki", 3, 10),
    ("Mi", 3, 20),
    ("Gi", 3, 30),
    ("Ti", 3, 40),
    ("Pi", 3, 50),
    ("Ei", 3, 60),
];

/// Millicores of a Kubernetes CPU quantity.
pub fn parse_cpu(text: &str) -> Result<u64, AmountError> {
    let thousandths = thousandths(text, CPU_FORM)?;
    bounded(thousandths, CPU_MILLICORES_MAX)
}

/// Bytes of a Kubernetes memory quantity.
pub fn parse_memory(text: &str) -> Result<u64, AmountError> {
    let thousandths = thousandths(text, MEMORY_FORM)?;
    bounded(thousandths.div_ceil(1000), MEMORY_BYTES_MAX)
}

fn bounded(value: u128, max: u64) -> Result<u64, AmountError> {
    u64::try_from(value).ok().filter(|value| *value <= max).ok_or(AmountError::TooLarge)
}

/// Digits and a point, as an integer and how many digits stood after the point.
fn decimal(text: &str, form: &'static str) -> Result<(u128, u32), AmountError> {
    let malformed = AmountError::Malformed(form);
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || !digits.bytes().all(|it| it.is_ascii_digit()) {
        return Err(malformed);
    }
    Ok((digits.parse().map_err(|_| malformed)?, fraction.len() as u32))
}

fn thousandths(text: &str, form: &'static str) -> Result<u128, AmountError> {
    let malformed = AmountError::Malformed(form);
    if text.len() > TEXT_LEN_MAX || !text.is_ascii() {
        return Err(malformed);
    }
    if text.starts_with('-') {
        return Err(AmountError::Negative);
    }
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (digits, places) = decimal(number, form)?;
    let (ten, two, extra_places) = match unit {
        "u" => (0, 0, 3),
        "n" => (0, 0, 6),
        _ => match UNITS.iter().find(|(name, ..)| *name == unit) {
            Some((_, ten, two)) => (*ten, *two, 0),
            None => exponent(unit).ok_or(malformed)?,
        },
    };
    let scaled = digits.checked_mul(10_u128.pow(ten)).and_then(|it| it.checked_mul(1 << two));
    let divisor = 10_u128.checked_pow(places + extra_places).ok_or(malformed)?;
    Ok(scaled.ok_or(AmountError::TooLarge)?.div_ceil(divisor))
}

/// `e3`, `E-2`: a power of ten in thousandths, none of two, and places to divide by.
fn exponent(unit: &str) -> Option<(u32, u32, u32)> {
    let power: i32 = unit.strip_prefix(['e', 'E'])?.parse().ok()?;
    let power = power.checked_add(3).filter(|power| (-18..=21).contains(power))?;
    Some((power.max(0) as u32, 0, (-power).max(0) as u32))
}

impl Resources {
    /// This much of both.
    pub const fn new(cpu_millicores: u64, memory_bytes: u64) -> Self {
        Self { cpu_millicores, memory_bytes }
    }

    /// From millicores and mebibytes.
    pub(crate) const fn of_mebibytes(cpu_millicores: u64, mebibytes: u64) -> Self {
        Self { cpu_millicores, memory_bytes: mebibytes << 20 }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            cpu_millicores: self.cpu_millicores + other.cpu_millicores,
            memory_bytes: self.memory_bytes + other.memory_bytes,
        }
    }

    pub(crate) fn times(self, count: u64) -> Self {
        Self {
            cpu_millicores: self.cpu_millicores * count,
            memory_bytes: self.memory_bytes * count,
        }
    }

    /// The difference from `other`, never below zero.
    pub(crate) fn less(self, other: Self) -> Self {
        Self {
            cpu_millicores: self.cpu_millicores.saturating_sub(other.cpu_millicores),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
        }
    }

    /// The larger of each.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            cpu_millicores: self.cpu_millicores.max(other.cpu_millicores),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
        }
    }

    /// Whether both fit.
    pub(crate) fn fits_in(self, other: Self) -> bool {
        self.cpu_millicores <= other.cpu_millicores && self.memory_bytes <= other.memory_bytes
    }

    /// Cores with as many digits as they need, as `7.5`.
    pub fn cores(self) -> String {
        trimmed(&format!("{}.{:03}", self.cpu_millicores / 1000, self.cpu_millicores % 1000))
    }

    /// Gibibytes, rounded to two digits.
    pub fn gibibytes(self) -> String {
        let hundredths = (u128::from(self.memory_bytes) * 100 + (1 << 29)) >> 30;
        trimmed(&format!("{}.{:02}", hundredths / 100, hundredths % 100))
    }

    /// For a sentence: `0.7 vCPU and 500 MiB`.
    pub(crate) fn in_words(self) -> String {
        let memory = if self.memory_bytes >= 1 << 30 {
            format!("{} GiB", self.gibibytes())
        } else {
            format!("{} MiB", (self.memory_bytes + (1 << 19)) >> 20)
        };
        format!("{} vCPU and {memory}", self.cores())
    }
}

fn trimmed(text: &str) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `700m/500Mi`, as reservations are written.
impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cpu, memory) = (self.cpu_millicores, self.memory_bytes);
        if cpu > 0 && cpu.is_multiple_of(1000) {
            write!(f, "{}/", cpu / 1000)?;
        } else {
            write!(f, "{cpu}m/")?;
        }
        match memory {
            0 => f.write_str("0Mi"),
            _ if memory.is_multiple_of(1 << 30) => write!(f, "{}Gi", memory >> 30),
            _ if memory.is_multiple_of(1 << 20) => write!(f, "{}Mi", memory >> 20),
            _ => write!(f, "{memory}"),
        }
    }
}

impl Price {
    /// One whole unit of the currency.
    const UNIT: u64 = 1_000_000;

    /// A price as written, exact to a millionth.
    pub fn parse(text: &str) -> Result<Self, AmountError> {
        if text.starts_with('-') {
            return Err(AmountError::Negative);
        }
        if text.len() > TEXT_LEN_MAX {
            return Err(AmountError::Malformed(PRICE_FORM));
        }
        let (digits, places) = decimal(text, PRICE_FORM)?;
        let scale = 6_u32.checked_sub(places).ok_or(AmountError::TooFine)?;
        let value = digits.checked_mul(10_u128.pow(scale)).ok_or(AmountError::TooLarge)?;
        bounded(value, PRICE_MAX).map(Self)
    }

    pub(crate) const fn of_thousandths(thousandths: u64) -> Self {
        Self(thousandths * 1000)
    }

    /// This price for each of `nodes`, plus `fixed`.
    pub(crate) fn for_nodes(self, nodes: u32, fixed: Self) -> Self {
        Self(self.0 * u64::from(nodes) + fixed.0)
    }

    /// In hundredths, half a hundredth rounded up.
    pub(crate) fn cents(self) -> u64 {
        (self.0 + 5_000) / 10_000
    }
}

/// Rounded to cents.
impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.cents() / 100, self.cents() % 100)
    }
}

/// As text, so that no reader makes it a binary fraction.
impl Serialize for Price {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_quantities_are_exact_and_round_up() {
        let cpu = |text: &str, expected| assert_eq!(parse_cpu(text), expected, "{text}");
        cpu("700m", Ok(700));
        cpu("0.1", Ok(100));
        cpu("2", Ok(2000));
        cpu("1.0005", Ok(1001));
        cpu("250001u", Ok(251));
        cpu("1n", Ok(1));
        cpu("1e3", Ok(1_000_000));
        cpu("5e-1", Ok(500));
        cpu("-1", Err(AmountError::Negative));
        cpu("2 cores", Err(AmountError::Malformed(CPU_FORM)));
        cpu("700 m", Err(AmountError::Malformed(CPU_FORM)));
        cpu(".", Err(AmountError::Malformed(CPU_FORM)));
        cpu("", Err(AmountError::Malformed(CPU_FORM)));
        cpu("9E", Err(AmountError::TooLarge));
        let memory = |text: &str, expected| assert_eq!(parse_memory(text), expected, "{text}");
        memory("500Mi", Ok(500 << 20));
        memory("1.5Gi", Ok(3 << 29));
        memory("128974848", Ok(128_974_848));
        memory("129M", Ok(129_000_000));
        memory("100m", Ok(1));
        memory("500MB", Err(AmountError::Malformed(MEMORY_FORM)));
        memory("99999999999999999999999999999999", Err(AmountError::TooLarge));
    }

    #[test]
    fn prices_are_exact_and_round_half_up() {
        let node = Price::parse("284.385").unwrap();
        let fixed = Price::parse("71.79").unwrap();
        let check = |nodes, expected: &str| {
            assert_eq!(node.for_nodes(nodes, fixed).to_string(), expected);
        };
        check(18, "5190.72");
        check(19, "5475.11");
        check(22, "6328.26");
        assert_eq!(Price::parse("-1"), Err(AmountError::Negative));
        assert_eq!(Price::parse("1.0000001"), Err(AmountError::TooFine));
        assert_eq!(Price::parse("free"), Err(AmountError::Malformed(PRICE_FORM)));
    }

    #[test]
    fn amounts_are_shown_shortly() {
        let shown = |cpu, memory| {
            let it = Resources::new(cpu, memory);
            (it.to_string(), it.cores(), it.gibibytes())
        };
        let text = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(shown(7500, 32 << 30), text("7500m/32Gi", "7.5", "32"));
        assert_eq!(shown(2000, 500 << 20), text("2/500Mi", "2", "0.49"));
        assert_eq!(shown(0, 0), text("0m/0Mi", "0", "0"));
    }
}
