//! Bars, one row for each mode: what a request costs by role, throughput, reads, memory.

use ambit_model::markup::escaped;

use super::scale::{Scale, label};
use super::{Chart, NARROW, WIDE, line, named, names, series, stem, text};
use crate::figures::{CaseFigures, Shape};
use crate::metrics::{Metric, Role};
use crate::record::{MachineSize, Run};
use crate::statistics::Spread;
use crate::table::megabytes;
use crate::words;

/// Names of modes.
const LEFT: f64 = 150.0;
/// Characters of such a name.
const NAME_WIDTH: usize = 18;
/// Width of the text to the right of the bars.
const RIGHT: f64 = 132.0;
/// The same, of four figures.
const RIGHT_MEMORY: f64 = 270.0;
const ROW: f64 = 30.0;
const BAR: f64 = 17.0;
/// Of two bars in one row.
const HALF_BAR: f64 = 11.0;
/// Title, and a legend if there is one.
const TOP: f64 = 64.0;
const LEGEND: f64 = 22.0;
const BOTTOM: f64 = 34.0;

struct Row<'a> {
    name: &'a str,
    bars: Vec<Bar>,
    /// Behind it.
    note: String,
}

/// A bar, of one piece or of several.
struct Bar {
    /// Class, length, and what it is.
    pieces: Vec<(String, f64, String)>,
    ends: Option<(f64, f64)>,
}

impl Bar {
    fn length(&self) -> f64 {
        self.pieces.iter().map(|it| it.1).sum()
    }
}

/// Rows of bars.
struct Bars<'a> {
    title: &'a str,
    subtitle: String,
    unit: &'a str,
    /// Class and name.
    legend: Vec<(&'a str, &'a str)>,
    rows: Vec<Row<'a>>,
    width: usize,
    /// What is left free behind the bars.
    right: f64,
}

impl Bars<'_> {
    fn chart(&self, stem: String) -> Chart {
        let top = TOP + if self.legend.is_empty() { 0.0 } else { LEGEND };
        let height = top + ROW * self.rows.len() as f64 + BOTTOM;
        let reach = |it: &Bar| it.ends.map_or(0.0, |it| it.1).max(it.length());
        let most = self.rows.iter().flat_map(|it| &it.bars).map(reach).fold(0.0, f64::max);
        let scale = Scale::from_zero(most);
        let right = self.width as f64 - self.right;
        let x = |value: f64| LEFT + (right - LEFT) * scale.at(value);
        let bottom = height - BOTTOM;
        let mut body = self.legend();
        for tick in scale.ticks() {
            body += &line("grid", (x(tick), top - 2.0), (x(tick), bottom));
            body += &text("quiet", x(tick), bottom + 18.0, "middle", &label(tick));
        }
        for (at, row) in self.rows.iter().enumerate() {
            let middle = top + ROW * (at as f64 + 0.5);
            body += &named("", LEFT - 10.0, middle + 4.5, "end", row.name, NAME_WIDTH);
            body += &row.drawn(middle, &x);
            let end = row.bars.iter().map(reach).fold(0.0, f64::max);
            body += &text("quiet", x(end) + 8.0, middle + 4.0, "start", &row.note);
        }
        body += &line("axis", (LEFT, top - 2.0), (LEFT, bottom));
        let each = self.rows.iter().map(|it| format!("{}: {} {}", it.name, it.note, self.unit));
        Chart {
            stem,
            title: words::capitalised(self.title),
            // The unit first: a long subtitle loses its end.
            subtitle: [self.unit, &self.subtitle].join("; ").trim_start_matches("; ").to_owned(),
            description: each.collect::<Vec<_>>().join("; "),
            width: self.width,
            height: height.round() as usize,
            body,
            case: None,
        }
    }

    fn legend(&self) -> String {
        let mut legend = String::new();
        let mut x = 16.0;
        for (class, name) in &self.legend {
            legend += &format!(
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"56\" width=\"12\" height=\"12\" \
                 rx=\"2\"/>\n"
            );
            legend += &text("quiet", x + 18.0, 66.5, "start", name);
            x += 18.0 + 6.7 * name.chars().count() as f64 + 16.0;
        }
        legend
    }
}

impl Row<'_> {
    fn drawn(&self, middle: f64, x: &dyn Fn(f64) -> f64) -> String {
        let thick = if self.bars.len() > 1 { HALF_BAR } else { BAR };
        let mut top = middle - thick * self.bars.len() as f64 / 2.0;
        let mut body = String::new();
        for bar in &self.bars {
            // What is pale must not let the grid through.
            body += &format!(
                "<rect class=\"paper\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" \
                 height=\"{:.1}\"/>\n",
                x(0.0),
                x(bar.length()) - x(0.0),
                thick - 1.0
            );
            let mut from = 0.0;
            for (class, length, what) in &bar.pieces {
                let (left, right) = (x(from), x(from + length));
                from += length;
                body += &format!(
                    "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" \
                     height=\"{:.1}\"><title>{}</title></rect>\n",
                    right - left,
                    thick - 1.0,
                    escaped(what)
                );
            }
            if let Some((least, most)) = bar.ends.filter(|it| it.0 < it.1) {
                let (y, reach) = (top + (thick - 1.0) / 2.0, thick / 4.0);
                let (left, right) = (x(least), x(most));
                body += &line("halo", (left, y), (right, y));
                body += &line("whisker", (left, y), (right, y));
                body += &line("whisker", (left, y - reach), (left, y + reach));
                body += &line("whisker", (right, y - reach), (right, y + reach));
            }
            top += thick;
        }
        body
    }
}

/// The text instead of a bar.
fn absent(case: &CaseFigures<'_>, at: usize) -> &'static str {
    let mode = &case.modes[at];
    match (mode.failure(), mode.measurements.is_empty()) {
        (Some(_), _) => "failed",
        (None, true) => "not measured",
        // It was, and has none of it: there is no proxy without a mesh.
        (None, false) => "-",
    }
}

/// The processor time of a request, or of a gigabyte, by role.
pub(super) fn cpu(case: &CaseFigures<'_>) -> Option<Chart> {
    let is_stream = case.shape == Shape::Stream;
    let whole = if is_stream { Metric::CpuPerGigabyte } else { Metric::Cpu };
    case.line(whole(Role::All))?;
    let median = |metric: Metric, at: usize| case.cell(metric, at).map(|it| it.spread.median);
    let pieces = |role: Role, at: usize| {
        let what = |part: &str, value: f64| {
            let value = words::with_unit(whole(role), value);
            format!("{}{part}: {value}", role.name())
        };
        let class = role.name();
        let parts = (median(Metric::CpuUser(role), at), median(Metric::CpuSystem(role), at));
        match (parts, median(whole(role), at)) {
            ((Some(user), Some(kernel)), Some(_)) if !is_stream => vec![
                (class.to_owned(), user, what(", outside the kernel", user)),
                (format!("{class} kernel"), kernel, what(", in the kernel", kernel)),
            ],
            (_, Some(all)) => vec![(class.to_owned(), all, what("", all))],
            _ => vec![],
        }
    };
    let row = |at: usize| {
        let pieces: Vec<_> = Role::EACH.into_iter().flat_map(|it| pieces(it, at)).collect();
        let all = case.cell(whole(Role::All), at).map(|it| it.spread);
        let note = match (&all, median(whole(Role::Proxy), at)) {
            (None, _) => absent(case, at).to_owned(),
            (Some(all), Some(proxy)) if proxy > 0.0 => {
                format!("{}, proxy {}", words::figure(all.median), words::figure(proxy))
            }
            (Some(all), _) => words::figure(all.median),
        };
        Row { name: &case.modes[at].mode.name, bars: vec![Bar { pieces, ends: None }], note }
    };
    let shown: Vec<Role> =
        Role::EACH.into_iter().filter(|it| case.line(whole(*it)).is_some()).collect();
    let mut legend: Vec<(&str, &str)> = shown.iter().map(|it| (it.name(), it.name())).collect();
    if !is_stream {
        legend.push(("machine kernel", "pale: in the kernel"));
    }
    let bars = Bars {
        title: match case.shape {
            Shape::Stream => "processor time of a gigabyte, by role",
            _ => "processor time of a request, by role",
        },
        subtitle: case.heading(),
        unit: whole(Role::All).unit(),
        legend,
        rows: (0..case.modes.len()).map(row).collect(),
        width: WIDE,
        right: RIGHT,
    };
    Some(bars.chart(stem(&[&case.case.name, "cpu"])))
}

/// One bar for each mode.
pub(super) fn simple(case: &CaseFigures<'_>, metric: Metric, word: &str) -> Option<Chart> {
    case.line(metric)?;
    let names = names(case);
    let row = |at: usize| {
        let spread = case.cell(metric, at).map(|it| it.spread);
        let piece = |it: &Spread| {
            let class = format!("f{}", series(&names, at));
            let what = words::with_unit(metric, it.median);
            Bar { pieces: vec![(class, it.median, what)], ends: Some((it.least, it.most)) }
        };
        Row {
            name: names[at],
            bars: spread.iter().map(piece).collect(),
            note: spread.map_or(absent(case, at).to_owned(), |it| words::figure(it.median)),
        }
    };
    let bars = Bars {
        title: &metric.name(),
        subtitle: case.heading(),
        unit: metric.unit(),
        legend: vec![],
        rows: (0..names.len()).map(row).collect(),
        width: NARROW,
        right: RIGHT,
    };
    Some(bars.chart(stem(&[&case.case.name, word])))
}

/// The proxies' memory before any load and after the last, on the largest machines: private memory,
/// and in a pale colour what other processes may share.
pub(super) fn memory(run: &Run) -> Option<Chart> {
    let namespaces = run.modes.iter().flat_map(|it| &it.machines).map(|it| it.namespaces).max()?;
    let rows = run.modes.iter().map(|mode| {
        let size = mode.machines.iter().find(|it| it.namespaces == namespaces);
        let proxy = |it: &MachineSize| {
            (megabytes(&it.at_rest, Role::Proxy), megabytes(&it.after, Role::Proxy))
        };
        let piece = |class: &str, value: f64, what: String| {
            (class.to_owned(), value, format!("{} MB {what}", words::figure(value)))
        };
        let bar = |memory: Option<(f64, f64)>, when: &str| {
            let pieces = |(all, private): (f64, f64)| {
                let shared = (all - private).max(0.0);
                vec![
                    piece("proxy", private, format!("private, {when}")),
                    piece("proxy kernel", shared, format!("that may be shared, {when}")),
                ]
            };
            Bar { pieces: memory.map(pieces).unwrap_or_default(), ends: None }
        };
        let told = |it: Option<(f64, f64)>| match it {
            Some((all, private)) => {
                format!("{}, private {}", words::figure(all), words::figure(private))
            }
            None => "-".to_owned(),
        };
        let (bars, note) = match size.map(proxy) {
            None => (vec![], "not measured".to_owned()),
            Some((None, None)) => (vec![], "-".to_owned()),
            Some((rest, after)) => (
                vec![bar(rest, "at rest"), bar(after, "after the last load")],
                format!("{}; then {}", told(rest), told(after)),
            ),
        };
        Row { name: &mode.name, bars, note }
    });
    let rows: Vec<Row<'_>> = rows.collect();
    let is_empty = rows.iter().flat_map(|it| &it.bars).all(|it| it.length() == 0.0);
    let count = words::counted(namespaces as usize, "namespace");
    let bars = Bars {
        title: "memory of all proxies, resident",
        subtitle: format!("{count}; at rest, and below it after the last load"),
        unit: "MB",
        legend: vec![("proxy", "private"), ("proxy kernel", "pale: may be shared")],
        rows,
        width: WIDE,
        right: RIGHT_MEMORY,
    };
    (!is_empty).then(|| bars.chart("memory".to_owned()))
}
