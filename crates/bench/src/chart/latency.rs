//! Latency: percentiles along an axis on which each nine is as wide as the one before, because
//! users complain about what is at its end.

use super::scale::{Scale, label};
use super::{Chart, WIDE, line, named, names, series, spread_out, stem, text};
use crate::figures::{Answers, CaseFigures, ModeFigures};
use crate::words;

const HEIGHT: usize = 430;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 200.0;
const TOP: f64 = 68.0;
const BOTTOM: f64 = 56.0;
/// Between two labels.
const LABEL_HEIGHT: f64 = 17.0;
/// Characters of a label.
const LABEL_WIDTH: usize = 20;
/// So many answers must lie beyond the last percentile that is drawn.
const BEYOND_MIN: f64 = 10.0;
/// The last percentile that is drawn, as the share of answers beyond it.
const BEYOND_LEAST: f64 = 1e-4;
/// Points of a curve.
const POINTS: usize = 160;
/// What is written along the axis: the share of answers beyond, and its name.
const NINES: [(f64, &str); 6] = [
    (1.0, "0 %"),
    (0.5, "50 %"),
    (0.1, "90 %"),
    (0.01, "99 %"),
    (1e-3, "99.9 %"),
    (1e-4, "99.99 %"),
];

/// A mode's curve.
struct Curve<'a> {
    name: &'a str,
    series: usize,
    /// At each of the points, in milliseconds.
    whole: Vec<f64>,
    /// The same of each repetition: least and most.
    band: Vec<(f64, f64)>,
}

/// The curves of all modes; nothing where no answers were timed.
pub(super) fn latency(case: &CaseFigures<'_>) -> Option<Chart> {
    let with: Vec<(usize, Answers)> = case
        .modes
        .iter()
        .enumerate()
        .filter_map(|(at, mode)| Some((at, mode.latency()?)))
        .collect();
    let answers = with.iter().map(|(_, it)| it.count).min()? as f64;
    let beyond = (BEYOND_MIN / answers).clamp(BEYOND_LEAST, 0.1);
    let shares: Vec<f64> = (0..=POINTS).map(|it| beyond.powf(it as f64 / POINTS as f64)).collect();
    let names = names(case);
    let curves: Vec<Curve<'_>> = with
        .iter()
        .map(|(at, answers)| Curve {
            name: names[*at],
            series: series(&names, *at),
            whole: answers.but(&shares),
            band: band(&case.modes[*at], &shares),
        })
        .collect();
    let ends = curves.iter().flat_map(|it| it.whole.iter().copied());
    let ends = ends.chain(curves.iter().flat_map(|it| it.band.iter().flat_map(|it| [it.0, it.1])));
    let (least, most) = ends.fold((f64::MAX, 0.0_f64), |it, ms| (it.0.min(ms), it.1.max(ms)));
    let scale = Scale::over(least.max(1e-3), most);
    let unit = if scale.is_logarithmic() { "ms, logarithmic" } else { "ms" };
    let subtitle = format!("{}; {unit}", case.heading());
    let plot = Plot { scale, beyond };
    let mut body = plot.axes();
    for curve in &curves {
        body += &plot.curve(curve, &shares);
    }
    body += &plot.labels(&curves);
    Some(Chart {
        stem: stem(&[&case.case.name, "latency"]),
        title: "How long answers took".to_owned(),
        subtitle,
        description: described(&curves, &shares),
        width: WIDE,
        height: HEIGHT,
        body,
        case: None,
    })
}

fn band(mode: &ModeFigures<'_>, shares: &[f64]) -> Vec<(f64, f64)> {
    let answers = mode.measurements.iter().filter_map(|it| Answers::of([&it.load.latency]));
    let of_each: Vec<Vec<f64>> = answers.map(|it| it.but(shares)).collect();
    let at = |point: usize| {
        let values = of_each.iter().map(|it| it[point]);
        values.fold((f64::MAX, 0.0_f64), |it, ms| (it.0.min(ms), it.1.max(ms)))
    };
    if of_each.len() < 2 { vec![] } else { (0..shares.len()).map(at).collect() }
}

fn described(curves: &[Curve<'_>], shares: &[f64]) -> String {
    let at = |curve: &Curve<'_>, share: f64| {
        let place = shares.iter().position(|it| *it <= share).unwrap_or(shares.len() - 1);
        words::figure(curve.whole[place])
    };
    let each = curves.iter().map(|it| {
        format!("{}: half within {} ms, 99 % within {} ms", it.name, at(it, 0.5), at(it, 0.01))
    });
    format!(
        "Latency by percentile, of all repetitions together; percentiles on a logarithmic axis. \
         {}.",
        each.collect::<Vec<_>>().join("; ")
    )
}

/// Where everything goes.
struct Plot {
    scale: Scale,
    beyond: f64,
}

impl Plot {
    fn x(&self, share: f64) -> f64 {
        LEFT + (WIDE as f64 - LEFT - RIGHT) * share.ln() / self.beyond.ln()
    }

    fn y(&self, ms: f64) -> f64 {
        TOP + (HEIGHT as f64 - TOP - BOTTOM) * (1.0 - self.scale.at(ms))
    }

    fn axes(&self) -> String {
        let (right, bottom) = (WIDE as f64 - RIGHT, HEIGHT as f64 - BOTTOM);
        let mut body = String::new();
        for tick in self.scale.ticks() {
            let y = self.y(tick);
            body += &line("grid", (LEFT, y), (right, y));
            body += &text("quiet", LEFT - 8.0, y + 4.0, "end", &label(tick));
        }
        for (share, name) in NINES.iter().filter(|it| it.0 >= self.beyond * 0.999) {
            let x = self.x(*share);
            body += &line("grid", (x, TOP), (x, bottom));
            body += &text("quiet", x, bottom + 18.0, "middle", name);
        }
        body += &line("axis", (LEFT, bottom), (right, bottom));
        let what = "of the answers took no longer; shaded: least and most of single repetitions";
        body + &text("quiet", f64::midpoint(LEFT, right), bottom + 40.0, "middle", what)
    }

    fn curve(&self, curve: &Curve<'_>, shares: &[f64]) -> String {
        let point = |share: f64, ms: f64| format!("{:.1},{:.1}", self.x(share), self.y(ms));
        let series = curve.series;
        let mut body = format!("<g class=\"mode m{series}\">\n");
        if !curve.band.is_empty() {
            let above = shares.iter().zip(&curve.band).map(|(share, it)| point(*share, it.1));
            let below = shares.iter().zip(&curve.band).rev().map(|(share, it)| point(*share, it.0));
            let points: Vec<String> = above.chain(below).collect();
            body +=
                &format!("<polygon class=\"band f{series}\" points=\"{}\"/>\n", points.join(" "));
        }
        let points: Vec<String> =
            shares.iter().zip(&curve.whole).map(|(share, ms)| point(*share, *ms)).collect();
        let points = points.join(" ");
        body + &format!("<polyline class=\"line s{series}\" points=\"{points}\"/>\n</g>\n")
    }

    /// The name of each mode at the end of its curve.
    fn labels(&self, curves: &[Curve<'_>]) -> String {
        let end = |it: &Curve<'_>| it.whole.last().copied().unwrap_or_default();
        let ends: Vec<f64> = curves.iter().map(|it| self.y(end(it))).collect();
        let places = spread_out(&ends, LABEL_HEIGHT, TOP, HEIGHT as f64 - BOTTOM);
        let right = WIDE as f64 - RIGHT;
        let mut body = String::new();
        for ((curve, end), place) in curves.iter().zip(&ends).zip(&places) {
            let series = curve.series;
            body += &format!("<g class=\"mode m{series}\">\n");
            body += &format!(
                "<path class=\"leader\" d=\"M{right:.1} {end:.1} L{:.1} {place:.1}\"/>\n",
                right + 10.0
            );
            body +=
                &line(&format!("line s{series}"), (right + 12.0, *place), (right + 40.0, *place));
            body += &named("", right + 46.0, place + 4.5, "start", curve.name, LABEL_WIDTH);
            body += "</g>\n";
        }
        body
    }
}
