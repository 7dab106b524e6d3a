//! Which coding a client takes, by its `accept-encoding` (RFC 9110, 12.5.3).
//!
//! Each member is looked at once, so that a list of thousands costs no more than to read it. A
//! member that is not understood is not accepted: plain bodies are understood by everybody.

use ambit_model::http::compression::Coding;

use crate::fields::Fields;
use crate::grammar;

/// The weight of a member that has none, in thousandths.
const FULL_WEIGHT: u16 = 1_000;

/// The one of these codings that the client likes best. Of those that it likes alike it is the
/// first; `None` if it accepts none, or likes a plain body better.
pub(super) fn best(fields: &Fields, codings: &[Coding]) -> Option<Coding> {
    let mut accepted = Accepted::default();
    fields.all("accept-encoding").flat_map(grammar::members).for_each(|it| accepted.read(it));
    let weight = |coding: &Coding| accepted.weight(*coding);
    let liked = codings.iter().copied().filter(|it| weight(it) > 0);
    let best = liked.reduce(|best, it| if weight(&it) > weight(&best) { it } else { best })?;
    accepted.plain.is_none_or(|plain| plain <= weight(&best)).then_some(best)
}

/// What is said of each coding.
#[derive(Default)]
struct Accepted {
    brotli: Option<u16>,
    gzip: Option<u16>,
    /// `identity`.
    plain: Option<u16>,
    /// `*`: all that are not named.
    others: Option<u16>,
}

impl Accepted {
    fn read(&mut self, member: &[u8]) {
        let mut parts = member.split(|byte| *byte == b';').map(grammar::trimmed);
        let name = parts.next().unwrap_or_default();
        let weight = match (parts.next(), parts.next()) {
            (None, _) => Some(FULL_WEIGHT),
            (Some([b'q' | b'Q', b'=', weight @ ..]), None) => self::weight(weight),
            (Some(_), _) => None,
        };
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        let said = match name {
            b"*" => &mut self.others,
            _ if is("br") => &mut self.brotli,
            // RFC 9110, 8.4.1.3.
            _ if is("gzip") || is("x-gzip") => &mut self.gzip,
            _ if is("identity") => &mut self.plain,
            _ => return,
        };
        // Of one that is there twice the refusal holds.
        let weight = weight.unwrap_or(0);
        *said = Some(said.map_or(weight, |before| before.min(weight)));
    }

    fn weight(&self, coding: Coding) -> u16 {
        let said = match coding {
            Coding::Brotli => self.brotli,
            Coding::Gzip => self.gzip,
        };
        said.or(self.others).unwrap_or(0)
    }
}

/// A weight in thousandths (RFC 9110, 12.4.2): 0 to 1, with up to three decimals.
fn weight(text: &[u8]) -> Option<u16> {
    let (whole, decimals) = match text {
        [whole @ (b'0' | b'1')] => (*whole, &[][..]),
        [whole @ (b'0' | b'1'), b'.', decimals @ ..] if decimals.len() <= 3 => (*whole, decimals),
        _ => return None,
    };
    let mut thousandths = u16::from(whole - b'0');
    for place in 0..3 {
        let digit = *decimals.get(place).unwrap_or(&b'0');
        let digit = digit.is_ascii_digit().then(|| u16::from(digit - b'0'))?;
        thousandths = thousandths * 10 + digit;
    }
    (thousandths <= FULL_WEIGHT).then_some(thousandths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::FieldLimits;

    use Coding::{Brotli, Gzip};

    fn check(lines: &[&str], expected: Option<Coding>) {
        let limits = FieldLimits { number: 100, bytes: 1 << 20 };
        let mut fields = Fields::new(limits);
        lines.iter().for_each(|it| fields.append("Accept-Encoding", it.as_bytes()).unwrap());
        assert_eq!(best(&fields, &Coding::ALL), expected, "{lines:?}");
    }

    #[test]
    fn the_coding_that_the_client_likes_best_is_taken() {
        for (line, expected) in [
            ("gzip", Some(Gzip)),
            ("GZip", Some(Gzip)),
            ("x-gzip", Some(Gzip)),
            ("gzip, deflate, br, zstd", Some(Brotli)),
            ("gzip, br;q=0.9", Some(Gzip)),
            ("gzip;q=0.5,br;q=0.5", Some(Brotli)),
            ("gzip ; q=0.001", Some(Gzip)),
            ("gzip;Q=1.000", Some(Gzip)),
            ("*", Some(Brotli)),
            ("*, br;q=0", Some(Gzip)),
            ("gzip, *;q=0", Some(Gzip)),
            ("gzip;q=0.5, *;q=0.1", Some(Gzip)),
            ("identity;q=0, gzip;q=0.2", Some(Gzip)),
            ("identity;q=0.2, gzip;q=0.2", Some(Gzip)),
            (", ,gzip,,", Some(Gzip)),
            ("", None),
            ("identity", None),
            ("identity, gzip;q=0.9", None),
            ("identity;q=0", None),
            ("deflate, compress", None),
            ("*;q=0", None),
            ("gzip;q=0", None),
            ("gzip;q=0.000, br;q=0.0", None),
            ("gzip;q=0, *;q=0", None),
            ("gzipped", None),
            ("gzip br", None),
        ] {
            check(&[line], expected);
        }
        check(&[], None);
        check(&["deflate", "gzip;q=0.5", "br;q=0.4"], Some(Gzip));
        check(&["gzip", "gzip;q=0"], None);
    }

    #[test]
    fn a_weight_that_is_none_accepts_nothing() {
        for weight in [
            "q=",
            "q",
            "q=2",
            "q=1.001",
            "q=1.0000",
            "q=0.0001",
            "q=-1",
            "q=+1",
            "q=.5",
            "q=1e0",
            "q=0x1",
            "q=0,5",
            "q=NaN",
            "q=inf",
            "q=0.5.5",
            "q =1",
            "q= 1",
            "q=1;q=1",
            "a=b",
            "",
            "q=\"1\"",
            "q=99999999999999999999",
        ] {
            check(&[&format!("br;{weight}")], None);
            // The others still hold.
            check(&[&format!("br;{weight}, gzip;q=0.1")], Some(Gzip));
        }
    }

    #[test]
    fn a_list_of_thousands_is_read_once() {
        let many = |member: &str| vec![member; 30_000].join(",");
        check(&[&many("x;q=0.5")], None);
        check(&[&many("gzip;q=0.5")], Some(Gzip));
        check(&[&format!("{},br", many("a;b;c;d"))], Some(Brotli));
        check(&[&",".repeat(60_000)], None);
        check(&[&format!("gzip{}", ";".repeat(60_000))], None);
    }
}
