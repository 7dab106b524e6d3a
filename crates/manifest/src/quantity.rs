//! Quantities, as Kubernetes writes amounts of memory and of processors.
//!
//! Nothing here may use floating point: what is finer than the unit is rounded up, as Kubernetes
//! does.

/// Longest number of a quantity, in digits.
const DIGITS_MAX: usize = 19;
/// The suffixes: powers of two, and of ten.
const BINARY: [(&str, u32); 6] =
    [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

/// How many of a unit a quantity is, rounded up. The unit is a power of ten: 0 for `1.5Gi` in
/// bytes, -3 for `0.5` in thousandths. `None` if the text is no quantity, is negative, or is more
/// than a `u64` holds.
pub fn quantity(text: &str, unit: i32) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if whole.len() + fraction.len() == 0 || digits.len() > DIGITS_MAX {
        return None;
    }
    let digits: u128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    let (bits, power) = match BINARY.iter().find(|(name, _)| *name == suffix) {
        Some((_, bits)) => (*bits, 0),
        None => (0, decimal_power(suffix)?),
    };
    let places = i32::try_from(fraction.len()).ok()?;
    let power = power.checked_sub(places)?.checked_sub(unit)?;
    let ten = |power: u32| 10_u128.checked_pow(power);
    let scaled = digits.checked_mul(1 << bits)?;
    let amount = match u32::try_from(power) {
        Ok(power) => scaled.checked_mul(ten(power)?)?,
        Err(_) => scaled.div_ceil(ten(power.unsigned_abs())?),
    };
    u64::try_from(amount).ok()
}

/// The power of ten that a suffix, or an exponent such as `e9`, stands for.
fn decimal_power(suffix: &str) -> Option<i32> {
    let named = DECIMAL.iter().find(|(name, _)| *name == suffix);
    named.map(|(_, power)| *power).or_else(|| suffix.strip_prefix(['e', 'E'])?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::quantity;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        let check = |unit: i32, cases: &[(&str, Option<u64>)]| {
            for (text, expected) in cases {
                assert_eq!(quantity(text, unit), *expected, "{text} in 10^{unit}");
            }
        };
        let sizes = [
            ("64Mi", Some(64 << 20)),
            ("1.5Gi", Some(3 << 29)),
            (".5Ki", Some(512)),
            ("1.", Some(1)),
            ("2k", Some(2_000)),
            ("1e9", Some(1_000_000_000)),
            ("1.5E3", Some(1_500)),
            ("25e-1", Some(3)),
            ("1E", Some(1_000_000_000_000_000_000)),
            ("2Pi", Some(1 << 51)),
            ("100m", Some(1)),
            ("+512", Some(512)),
            ("0", Some(0)),
            ("0.0Gi", Some(0)),
            ("", None),
            (".", None),
            ("Mi", None),
            ("-1", None),
            ("1.2.3", None),
            ("1Xi", None),
            ("1e", None),
            ("1e40", None),
            ("1e-99999999999", None),
            ("16Ei", None),
            ("99999999999999999999", None),
        ];
        check(0, &sizes);
        let of_processors = [
            ("250m", Some(250)),
            ("1", Some(1000)),
            ("0.5", Some(500)),
            (".1", Some(100)),
            ("2.", Some(2000)),
            ("1.0001", Some(1001)),
            ("100u", Some(1)),
            ("2500000n", Some(3)),
            ("1k", Some(1_000_000)),
            ("1Ki", Some(1_024_000)),
            ("1e1", Some(10_000)),
            ("1E-2", Some(10)),
            ("0", Some(0)),
            ("", None),
            ("x", None),
            ("-1", None),
            ("1.2.3", None),
            ("1e99999999999", None),
            ("1e2147483647", None),
            ("1e-2147483648", None),
            ("99999999999G", None),
        ];
        check(-3, &of_processors);
    }
}
