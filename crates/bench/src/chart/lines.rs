//! How modes scale with namespaces: a line for each mode, with minimum and maximum at each point.

use std::collections::BTreeMap;

use super::scale::{Scale, label};
use super::{Chart, NARROW, line, named, series, spread_out, text};
use crate::figures::{CaseFigures, Figures};
use crate::metrics::{Metric, Role};
use crate::record::Run;
use crate::statistics::Spread;
use crate::table::megabytes;
use crate::words;

const HEIGHT: usize = 320;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 152.0;
const TOP: f64 = 66.0;
const BOTTOM: f64 = 52.0;
const LABEL_HEIGHT: f64 = 17.0;
/// Characters of a label.
const LABEL_WIDTH: usize = 17;

/// A mode's line: its values by namespaces.
struct Series<'a> {
    name: &'a str,
    series: usize,
    points: BTreeMap<u32, Spread>,
}

/// Latency, processor time and memory over the number of namespaces.
pub(super) fn by_namespaces(figures: &Figures<'_>) -> Vec<Chart> {
    let of_metric = |metric: Metric| {
        move |case: &CaseFigures<'_>, at: usize| case.cell(metric, at).map(|it| it.spread)
    };
    let charts = [
        ("namespaces-p50", "Half of the answers took no longer", "ms", Metric::P50),
        ("namespaces-p99", "99 % of the answers took no longer", "ms", Metric::P99),
        ("namespaces-cpu", "Processor time of the proxies, per request", "µs", {
            Metric::Cpu(Role::Proxy)
        }),
    ];
    let charts = charts.map(|(stem, title, unit, metric)| {
        chart(stem, title, unit, &by_case(figures, &of_metric(metric)))
    });
    let memory = chart(
        "namespaces-memory",
        "Memory of all proxies at rest",
        "MB resident",
        &memory(figures.run),
    );
    charts.into_iter().chain([memory]).flatten().collect()
}

fn by_case<'a>(
    figures: &Figures<'a>,
    value: &dyn Fn(&CaseFigures<'_>, usize) -> Option<Spread>,
) -> Vec<Series<'a>> {
    let names: Vec<&str> = figures.run.modes.iter().map(|it| it.name.as_str()).collect();
    let of_mode = |at: usize| {
        let points = figures.cases.iter();
        let points = points.filter_map(|it| Some((it.case.namespaces, value(it, at)?)));
        Series { name: names[at], series: series(&names, at), points: points.collect() }
    };
    (0..names.len()).map(of_mode).filter(|it| !it.points.is_empty()).collect()
}

fn memory(run: &Run) -> Vec<Series<'_>> {
    let names: Vec<&str> = run.modes.iter().map(|it| it.name.as_str()).collect();
    let of_mode = |(at, mode): (usize, &crate::record::ModeRun)| {
        let points = mode.machines.iter().filter_map(|it| {
            let (resident, _) = megabytes(&it.at_rest, Role::Proxy)?;
            Some((it.namespaces, Spread::of(&[resident]).filter(|_| resident > 0.0)?))
        });
        Series { name: names[at], series: series(&names, at), points: points.collect() }
    };
    let all = run.modes.iter().enumerate().map(of_mode);
    all.filter(|it| !it.points.is_empty()).collect()
}

/// Nothing without at least two sizes.
fn chart(stem: &str, title: &str, unit: &str, of: &[Series<'_>]) -> Option<Chart> {
    let sizes = of.iter().flat_map(|it| it.points.keys().copied());
    let sizes: Vec<u32> = sizes.collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    let [first, .., last] = sizes.as_slice() else { return None };
    let values = || of.iter().flat_map(|it| it.points.values());
    let most = values().map(|it| it.most).fold(0.0, f64::max);
    let least = values().map(|it| it.least).fold(f64::MAX, f64::min);
    let plot =
        Plot { scale: Scale::over(least, most), first: f64::from(*first), last: f64::from(*last) };
    let how = if plot.scale.is_logarithmic() { ", logarithmic" } else { "" };
    let body = plot.axes(&sizes) + &plot.lines(of);
    let each = of.iter().map(|it| {
        let points =
            it.points.iter().map(|(size, it)| format!("{} at {size}", words::figure(it.median)));
        format!("{}: {}", it.name, points.collect::<Vec<_>>().join(", "))
    });
    Some(Chart {
        stem: stem.to_owned(),
        title: title.to_owned(),
        subtitle: format!("{unit}{how}"),
        description: format!("{unit} over namespaces. {}", each.collect::<Vec<_>>().join("; ")),
        width: NARROW,
        height: HEIGHT,
        body,
        case: None,
    })
}

/// Where everything goes.
struct Plot {
    scale: Scale,
    first: f64,
    last: f64,
}

impl Plot {
    fn x(&self, size: u32) -> f64 {
        let share = (f64::from(size) - self.first) / (self.last - self.first);
        LEFT + 10.0 + (NARROW as f64 - LEFT - RIGHT - 10.0) * share
    }

    fn y(&self, value: f64) -> f64 {
        TOP + (HEIGHT as f64 - TOP - BOTTOM) * (1.0 - self.scale.at(value))
    }

    fn axes(&self, sizes: &[u32]) -> String {
        let (right, bottom) = (NARROW as f64 - RIGHT, HEIGHT as f64 - BOTTOM);
        let mut body = String::new();
        for tick in self.scale.ticks() {
            let y = self.y(tick);
            body += &line("grid", (LEFT, y), (right, y));
            body += &text("quiet", LEFT - 8.0, y + 4.0, "end", &label(tick));
        }
        let mut free = f64::MIN;
        for size in sizes {
            let x = self.x(*size);
            body += &line("axis", (x, bottom), (x, bottom + 4.0));
            if x > free {
                body += &text("quiet", x, bottom + 18.0, "middle", &size.to_string());
                free = x + 22.0;
            }
        }
        body += &line("axis", (LEFT, bottom), (right, bottom));
        body + &text("quiet", f64::midpoint(LEFT, right), bottom + 38.0, "middle", "namespaces")
    }

    fn lines(&self, of: &[Series<'_>]) -> String {
        let end = |it: &Series<'_>| {
            let last = it.points.last_key_value();
            last.map_or((LEFT, TOP), |(size, it)| (self.x(*size), self.y(it.median)))
        };
        let ends: Vec<(f64, f64)> = of.iter().map(end).collect();
        let wanted: Vec<f64> = ends.iter().map(|it| it.1).collect();
        let places = spread_out(&wanted, LABEL_HEIGHT, TOP, HEIGHT as f64 - BOTTOM);
        let right = NARROW as f64 - RIGHT;
        let mut body = String::new();
        for ((it, end), place) in of.iter().zip(&ends).zip(&places) {
            let series = it.series;
            body += &format!("<g class=\"mode m{series}\">\n");
            let points: Vec<String> = it
                .points
                .iter()
                .map(|(size, it)| format!("{:.1},{:.1}", self.x(*size), self.y(it.median)))
                .collect();
            body +=
                &format!("<polyline class=\"line s{series}\" points=\"{}\"/>\n", points.join(" "));
            for (size, spread) in &it.points {
                let x = self.x(*size);
                body += &line("whisker", (x, self.y(spread.least)), (x, self.y(spread.most)));
                body += &format!(
                    "<circle class=\"f{series}\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3.5\"/>\n",
                    self.y(spread.median)
                );
            }
            body += &format!(
                "<path class=\"leader\" d=\"M{:.1} {:.1} L{:.1} {place:.1}\"/>\n",
                end.0 + 6.0,
                end.1,
                right + 12.0
            );
            body += &named("", right + 16.0, place + 4.5, "start", it.name, LABEL_WIDTH);
            body += "</g>\n";
        }
        body
    }
}
