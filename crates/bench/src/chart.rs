//! The charts of a run, as SVG: within the page, or each in its own file.
//!
//! A chart follows its reader's light or dark scheme, distinguishes modes by colour, by dashes and
//! by their names beside the lines, and has a text description for screen readers.

mod bars;
mod latency;
mod lines;
mod scale;

use std::collections::BTreeSet;

use ambit_model::markup::escaped;

use super::figures::{AMBIENT, CaseFigures, Figures, NONE, Shape};
use super::metrics::{Metric, Role};
use super::words;

/// What every chart looks like.
pub(crate) const STYLE: &str = include_str!("chart/style.css");
/// Of a chart that has a row of its own.
const WIDE: usize = 1112;
/// Of one of two beside each other.
const NARROW: usize = 548;
/// Colours and dashes there are.
const SERIES: usize = 8;
/// Characters of a file's name.
const STEM_MAX: usize = 60;

/// A chart.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    /// Of its file, without the ending; unlike any other's of the run.
    pub(crate) stem: String,
    pub(crate) title: String,
    /// What it was measured in, and in what.
    subtitle: String,
    /// In words, for those who do not see it.
    description: String,
    width: usize,
    height: usize,
    /// SVG, escaped.
    body: String,
    /// Whose it is: a case by its place, or the run's.
    pub(crate) case: Option<usize>,
}

impl Chart {
    /// Its own name, wherever it is shown.
    pub(crate) fn name(&self) -> String {
        format!("{}, {}", self.title, self.subtitle)
    }

    pub(crate) fn file_name(&self) -> String {
        format!("{}.svg", self.stem)
    }

    pub(crate) fn is_wide(&self) -> bool {
        self.width == WIDE
    }

    /// Within a page that holds [`STYLE`].
    pub(crate) fn inline(&self) -> String {
        self.svg("")
    }

    /// As a file of its own.
    pub(crate) fn standalone(&self) -> String {
        let Self { width, height, .. } = self;
        self.svg(&format!(
            "<style>\n{STYLE}</style>\n<rect class=\"paper\" width=\"{width}\" \
             height=\"{height}\"/>\n"
        ))
    }

    fn svg(&self, style: &str) -> String {
        let Self { stem, width, height, body, .. } = self;
        let (title, description) = (escaped(&self.name()), escaped(&self.description));
        let subtitle = words::shortened(&words::one_line(&self.subtitle), width / 8);
        format!(
            "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" \
             height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-labelledby=\"{stem}-title {stem}-desc\">\n<title id=\"{stem}-title\">{title}\
             </title>\n<desc id=\"{stem}-desc\">{description}</desc>\n{style}{}{}{body}</svg>\n",
            text("title", 16.0, 26.0, "start", &self.title),
            text("quiet", 16.0, 45.0, "start", &subtitle)
        )
    }
}

/// All charts of a run, in the order in which they are shown.
pub(crate) fn charts(figures: &Figures<'_>) -> Vec<Chart> {
    let mut charts = Vec::new();
    if figures.is_by_namespaces() {
        charts.extend(lines::by_namespaces(figures));
    }
    for (at, case) in figures.cases.iter().enumerate() {
        let mut of_case = Vec::new();
        of_case.extend(latency::latency(case));
        of_case.extend(bars::cpu(case));
        let (metric, word) = main_metric(case);
        of_case.extend(bars::simple(case, metric, word));
        of_case.extend(bars::simple(case, Metric::ReadsPerResponse, "reads"));
        for (role, word) in [(Role::Proxy, "connections"), (Role::Waypoint, "waypoint-connections")]
        {
            of_case.extend(bars::simple(case, Metric::MemoryPerConnection(role), word));
        }
        charts.extend(of_case.into_iter().map(|it| Chart { case: Some(at), ..it }));
    }
    charts.extend(bars::memory(figures.run));
    tell_apart(&mut charts);
    charts
}

/// Names that differ in signs or beyond [`STEM_MAX`] alone would be one file's.
fn tell_apart(charts: &mut [Chart]) {
    let mut stems = BTreeSet::new();
    for chart in charts {
        let plain = chart.stem.clone();
        let mut count = 1;
        while !stems.insert(chart.stem.clone()) {
            count += 1;
            chart.stem = format!("{plain}-{count}");
        }
    }
}

/// What a bar chart shows beside the processor time, and a word for it.
fn main_metric(case: &CaseFigures<'_>) -> (Metric, &'static str) {
    match case.shape {
        Shape::Stream => (Metric::Gigabits, "throughput"),
        Shape::Saturated => (Metric::Throughput, "throughput"),
        // At a rate all throughputs are the same.
        Shape::AtARate => (Metric::Wakeups(Role::Proxy), "wakeups"),
    }
}

/// The colour and dashes of a mode: none is always grey, and Ambit always blue.
pub(crate) fn series(names: &[&str], at: usize) -> usize {
    match names[at] {
        NONE => 0,
        AMBIENT => 1,
        _ => {
            let others = names[..at].iter().filter(|it| ![NONE, AMBIENT].contains(it)).count();
            2 + others % (SERIES - 2)
        }
    }
}

/// The names of a case's modes, for [`series`].
fn names<'a>(case: &'a CaseFigures<'_>) -> Vec<&'a str> {
    case.modes.iter().map(|it| it.mode.name.as_str()).collect()
}

/// A file's name of any text.
fn stem(parts: &[&str]) -> String {
    let text = parts.join("-").to_lowercase();
    let text: String =
        text.chars().map(|it| if it.is_ascii_alphanumeric() { it } else { '-' }).collect();
    let words: Vec<&str> = text.split('-').filter(|it| !it.is_empty()).collect();
    // The last word says which chart it is.
    let (most, last) = words.split_at(words.len().saturating_sub(1));
    let most: String = most.join("-").chars().take(STEM_MAX).collect();
    let start = if most.starts_with(|it: char| it.is_ascii_alphabetic()) { "" } else { "case-" };
    match (most.as_str(), last.concat()) {
        ("", last) => last,
        (most, last) => format!("{start}{most}-{last}"),
    }
}

fn text(class: &str, x: f64, y: f64, anchor: &str, text: &str) -> String {
    format!(
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>\n",
        escaped(text)
    )
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> String {
    format!(
        "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>\n",
        from.0, from.1, to.0, to.1
    )
}

/// A name in at most so many characters, the whole of it shown where the pointer rests.
fn named(class: &str, x: f64, y: f64, anchor: &str, name: &str, width: usize) -> String {
    let short = words::shortened(&words::one_line(name), width);
    if short == name {
        return text(class, x, y, anchor, name);
    }
    format!("<g><title>{}</title>{}</g>\n", escaped(name), text(class, x, y, anchor, &short))
}

/// Places that keep their order and a distance between them, as near as possible to where they
/// should be, none beyond the bounds if there is room.
fn spread_out(wanted: &[f64], distance: f64, low: f64, high: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    // Groups that touch move as one, to the mean of where their members should be.
    let mut groups: Vec<(f64, Vec<usize>)> = Vec::new();
    let span = |count: usize| (count - 1) as f64 * distance;
    for at in order {
        groups.push((wanted[at], vec![at]));
        while let [.., (above, upper), (below, lower)] = groups.as_slice() {
            let end = above + span(upper.len()) / 2.0;
            let start = below - span(lower.len()) / 2.0;
            if start - end >= distance {
                break;
            }
            let both: Vec<usize> = upper.iter().chain(lower).copied().collect();
            let mean = both.iter().map(|it| wanted[*it]).sum::<f64>() / both.len() as f64;
            let half = span(both.len()) / 2.0;
            let mean = mean.min(high - half).max(low + half);
            groups.truncate(groups.len() - 2);
            groups.push((mean, both));
        }
    }
    let mut places = vec![0.0; wanted.len()];
    for (middle, members) in groups {
        let half = span(members.len()) / 2.0;
        let middle = middle.min(high - half).max(low + half);
        for (at, member) in members.iter().enumerate() {
            places[*member] = middle - half + at as f64 * distance;
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing;

    #[test]
    fn a_run_has_its_charts() {
        let stems = |run: &super::super::record::Run| {
            let charts = charts(&Figures::of(run));
            charts.into_iter().map(|it| it.stem).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            stems(&testing::run()),
            "rate-latency rate-cpu rate-wakeups rate-reads saturation-latency saturation-cpu \
             saturation-throughput saturation-reads stream-cpu stream-throughput memory"
        );
        assert_eq!(
            stems(&testing::tiered()),
            "namespaces-p50 namespaces-p99 namespaces-cpu namespaces-memory tiered-1-latency \
             tiered-1-cpu tiered-1-wakeups tiered-1-reads tiered-5-latency tiered-5-cpu \
             tiered-5-wakeups tiered-5-reads tiered-20-latency tiered-20-cpu tiered-20-wakeups \
             tiered-20-reads memory"
        );
    }

    #[test]
    fn a_chart_stands_for_itself() {
        let run = testing::run();
        for chart in charts(&Figures::of(&run)) {
            let svg = chart.standalone();
            assert!(svg.contains("xmlns=") && svg.contains("prefers-color-scheme: dark"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{}: {svg}", chart.stem);
            assert_eq!(svg.matches("<svg").count(), 1);
            assert!(!chart.inline().contains("<style"));
        }
    }

    #[test]
    fn foreign_text_is_escaped_and_names_of_files_are_plain() {
        assert_eq!(escaped("<a b=\"c\">&'\u{1b}"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;\u{fffd}");
        assert_eq!(stem(&["../../etc/Passwd", "latency"]), "etc-passwd-latency");
        assert_eq!(stem(&["4 streams", "cpu"]), "case-4-streams-cpu");
        assert_eq!(stem(&["", "cpu"]), "cpu");
        assert!(stem(&[&"x".repeat(500), "cpu"]).ends_with("x-cpu"));
    }

    #[test]
    fn no_two_cases_get_one_file() {
        let mut run = testing::run();
        let long = "a very long name of a case that goes on and on until nobody reads it";
        let names = [format!("{long}, once"), format!("{long}, twice"), "memory".to_owned()];
        for (at, name) in names.into_iter().enumerate() {
            let old = std::mem::replace(&mut run.cases[at].name, name.clone());
            for it in run.measurements.iter_mut().filter(|it| it.case == old) {
                it.case.clone_from(&name);
            }
        }
        let charts = charts(&Figures::of(&run));
        let stems: BTreeSet<&str> = charts.iter().map(|it| it.stem.as_str()).collect();
        assert_eq!(stems.len(), charts.len(), "{stems:?}");
        assert!(stems.iter().any(|it| it.ends_with("-cpu-2")), "{stems:?}");
    }

    #[test]
    fn modes_keep_their_colours() {
        let names = ["none", "ambient", "ambient+l4policy", "ztunnel"];
        assert_eq!([0, 1, 2, 3].map(|at| series(&names, at)), [0, 1, 2, 3]);
        assert_eq!(series(&["ztunnel", "none"], 1), 0);
    }

    proptest! {
        #[test]
        fn labels_never_overlap(wanted in prop::collection::vec(0.0..300.0f64, 1..12)) {
            let places = spread_out(&wanted, 16.0, 0.0, 300.0);
            let mut sorted = places.clone();
            sorted.sort_by(f64::total_cmp);
            prop_assert!(sorted.windows(2).all(|it| it[1] - it[0] > 15.99), "{:?}", sorted);
            prop_assert!(sorted[0] > -0.01 && sorted[sorted.len() - 1] < 300.01, "{:?}", sorted);
        }
    }
}
