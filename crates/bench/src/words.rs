//! Formats numbers and verdicts for people.

use super::metrics::Metric;
use super::statistics::{Ratio, Spread};

/// Digits after the point for a number of this size: three that matter, four below a hundredth.
fn digits(value: f64) -> usize {
    match value.abs() {
        value if value == 0.0 || value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 1.0 => 2,
        value if value >= 0.01 => 3,
        _ => 4,
    }
}

/// Three digits that matter; thousands are grouped from 10,000 on.
pub(crate) fn figure(value: f64) -> String {
    with_digits(value, digits(value))
}

fn with_digits(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let text = format!("{value:.digits$}");
    if value.abs() < 10_000.0 { text } else { grouped(&text) }
}

fn grouped(text: &str) -> String {
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        let left = whole.len() - at;
        if at > 0 && left.is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

/// Of percent.
pub(crate) fn percent(value: f64) -> String {
    let digits =
        if value == 0.0 { 0 } else { usize::from(value < 99.95) + usize::from(value < 10.0) };
    format!("{value:.digits$} %")
}

/// What lies between the ends, in the median's digits; empty where there is nothing between them.
pub(crate) fn ends(spread: &Spread, between: &str) -> String {
    let digits = digits(spread.median);
    let Spread { least, most, .. } = *spread;
    if least == most {
        return String::new();
    }
    format!("{}{between}{}", with_digits(least, digits), with_digits(most, digits))
}

/// `0.80 (0.78-0.85)`.
pub(crate) fn spread(spread: &Spread) -> String {
    let median = figure(spread.median);
    match ends(spread, "-") {
        ends if ends.is_empty() => median,
        ends => format!("{median} ({ends})"),
    }
}

/// `1.54`: never fewer digits than a difference of one percent needs.
pub(crate) fn times(ratio: f64) -> String {
    if ratio >= 100.0 { format!("{ratio:.0}") } else { format!("{ratio:.2}") }
}

/// `1.45 to 1.61`.
pub(crate) fn interval(ratio: &Ratio) -> String {
    format!("{} to {}", times(ratio.low), times(ratio.high))
}

/// A value with its unit.
pub(crate) fn with_unit(metric: Metric, value: f64) -> String {
    match metric.unit() {
        "" => figure(value),
        "%" => percent(value),
        unit => format!("{} {unit}", figure(value)),
    }
}

/// Foreign text for one line of a terminal: no line ends, no control characters.
pub(crate) fn one_line(text: &str) -> String {
    let text: String = text.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// At most so many characters, the last of them an ellipsis if something is missing.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// With a capital, as a sentence begins.
pub(crate) fn capitalised(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or(String::new(), |first| first.to_uppercase().chain(rest).collect())
}

/// `a, b and c`.
pub(crate) fn listed(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [only] => only.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// `6 repetitions`, `1 repetition`.
pub(crate) fn counted(count: usize, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn figures_have_the_digits_that_matter() {
        for (value, text) in [
            (0.0, "0"),
            (0.0042, "0.0042"),
            (0.052, "0.052"),
            (0.525, "0.525"),
            (1.5, "1.50"),
            (12.34, "12.3"),
            (1000.0, "1000"),
            (9040.4, "9040"),
            (31_800.0, "31,800"),
            (1_234_567.0, "1,234,567"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(figure(value), text);
        }
        assert_eq!(
            [0.0, 2.6123, 99.0, 99.99, 100.0].map(percent),
            ["0 %", "2.61 %", "99.0 %", "100 %", "100 %"]
        );
        let wide = Spread { least: 0.5, median: 12.0, most: 20_000.0 };
        assert_eq!(spread(&wide), "12.0 (0.5-20,000.0)");
        assert_eq!(spread(&Spread { least: 1.0, median: 1.0, most: 1.0 }), "1.00");
    }

    #[test]
    fn foreign_text_stays_on_its_line() {
        assert_eq!(one_line("a\n\tb\u{1b}[31m c\r"), "a b [31m c");
        assert_eq!(shortened("abcdef", 4), "abc…");
        assert_eq!(shortened("abcd", 4), "abcd");
        assert_eq!(listed(&["a".into(), "b".into(), "c".into()]), "a, b and c");
    }

    proptest! {
        #[test]
        fn grouping_changes_no_digit(value in 1e4..1e15f64) {
            prop_assert_eq!(figure(value).replace(',', ""), format!("{value:.0}"));
        }
    }
}
