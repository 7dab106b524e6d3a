//! The results of a run in sentences: medians, how much more than the reference, and whether that
//! is more than noise.

use ambit_model::markup::escaped;

use crate::figures::{AMBIENT, CaseFigures, Cell, Figures, NONE, Shape};
use crate::metrics::{Metric, Role};
use crate::statistics::Ratio;
use crate::table;
use crate::verdict::{Judgement, Verdict};
use crate::words;

/// On top of the page.
pub(super) fn summary(figures: &Figures<'_>) -> String {
    let run = figures.run;
    let ran =
        run.modes.iter().filter(|mode| run.measurements.iter().any(|it| it.mode == mode.name));
    let names: Vec<String> = ran.map(|it| it.name.clone()).collect();
    let mut text = String::from(
        "<section class=\"box\" aria-labelledby=\"summary\">\n<h2 id=\"summary\">In short</h2>\n",
    );
    if names.is_empty() {
        return text + "<p>Nothing was measured.</p>\n</section>\n";
    }
    text += &format!(
        "<p>Compared: {} in {}; {}. In brackets stand the ratio of two medians and the \
         interval that holds it with 95 %; a difference that is called level may be noise.</p>\n",
        escaped(&words::listed(&names)),
        words::counted(run.cases.len(), "case"),
        escaped(&table::method(run))
    );
    for (at, case) in figures.cases.iter().enumerate() {
        let sentences: Vec<String> = mesh(case).into_iter().chain(peers(case)).collect();
        if !sentences.is_empty() {
            let title = escaped(&case.heading());
            let items = sentences.iter().map(|it| format!("<li>{it}</li>\n"));
            let items = items.collect::<String>();
            text += &format!("<h3><a href=\"#case-{at}\">{title}</a></h3>\n<ul>\n{items}</ul>\n");
        }
    }
    text += &tally(figures);
    text + "</section>\n"
}

/// The metrics of a case that are described in words.
fn told(shape: Shape) -> Vec<Metric> {
    match shape {
        Shape::AtARate => vec![Metric::P50, Metric::P99],
        Shape::Saturated => vec![Metric::Throughput, Metric::P50],
        Shape::Stream => vec![Metric::Gigabits],
    }
}

fn place(case: &CaseFigures<'_>, name: &str) -> Option<usize> {
    case.modes.iter().position(|it| it.mode.name == name)
}

/// What Ambit's own mode costs; HTML.
fn mesh(case: &CaseFigures<'_>) -> Option<String> {
    let (ambient, none) = (place(case, AMBIENT)?, place(case, NONE)?);
    let phrase = |metric: Metric| {
        let (cell, bare) = (case.cell(metric, ambient)?, case.cell(metric, none)?);
        let judged = judged(cell.against_none.as_ref()?);
        let name = escaped(&metric.name());
        let bare = words::with_unit(metric, bare.spread.median);
        let ours = words::figure(cell.spread.median);
        Some(format!("{name} is {ours} instead of {} ({judged})", escaped(&bare)))
    };
    let all = match case.shape {
        Shape::Stream => Metric::CpuPerGigabyte(Role::All),
        _ => Metric::Cpu(Role::All),
    };
    let phrases: Vec<String> =
        told(case.shape).into_iter().chain([all]).filter_map(phrase).collect();
    let said = words::listed(&phrases);
    (!phrases.is_empty()).then(|| format!("<b>{AMBIENT}</b> against {NONE}: {said}."))
}

/// `1.54 times, 1.45 to 1.61: worse`; HTML.
fn judged(judgement: &Judgement) -> String {
    match judgement {
        Judgement::Told { ratio, verdict } => {
            format!("{}: {}", times(ratio), marked(verdict.name()))
        }
        // The reason for no verdict is given above, once.
        Judgement::TooFew { ratio } => format!("{} times", words::times(*ratio)),
        Judgement::NoRatio => "which cannot be compared".to_owned(),
    }
}

fn times(ratio: &Ratio) -> String {
    format!("{} times, {}", words::times(ratio.ratio), words::interval(ratio))
}

/// A verdict's word, in its colour.
fn marked(verdict: &str) -> String {
    format!("<span class=\"v\"><span class=\"{verdict}\">{verdict}</span></span>")
}

/// How each of the other modes compares with Ambit's own; HTML.
fn peers(case: &CaseFigures<'_>) -> Vec<String> {
    let proxy = match case.shape {
        Shape::Stream => Metric::CpuPerGigabyte(Role::Proxy),
        _ => Metric::Cpu(Role::Proxy),
    };
    let metrics: Vec<Metric> = told(case.shape).into_iter().chain([proxy]).collect();
    let other = |at: &usize| ![NONE, AMBIENT].contains(&case.modes[*at].mode.name.as_str());
    let peer = |at: usize| {
        let judgement = |metric: &Metric| case.cell(*metric, at)?.against_ambient;
        let mut phrases = Vec::new();
        for verdict in [Verdict::Better, Verdict::Level, Verdict::Worse] {
            let with = metrics.iter().filter_map(|metric| match judgement(metric)? {
                Judgement::Told { ratio, verdict: told } if told == verdict => {
                    Some(format!("{} ({})", escaped(&metric.name()), times(&ratio)))
                }
                _ => None,
            });
            let with: Vec<String> = with.collect();
            if !with.is_empty() {
                phrases.push(format!("{} in {}", marked(verdict.name()), words::listed(&with)));
            }
        }
        let few = metrics.iter().filter_map(|metric| match judgement(metric)? {
            Judgement::TooFew { ratio } => {
                Some(format!("{} {} times", escaped(&metric.name()), words::times(ratio)))
            }
            _ => None,
        });
        let few: Vec<String> = few.collect();
        if !few.is_empty() {
            let few = words::listed(&few);
            phrases.push(format!("without a verdict, {few}"));
        }
        let lost = if case.failed(at).0 > 0 { "; it lost requests, see above" } else { "" };
        let name = escaped(&case.modes[at].mode.name);
        let said = phrases.join("; ");
        (!said.is_empty()).then(|| format!("<b>{name}</b> against {AMBIENT}: {said}{lost}."))
    };
    (0..case.modes.len()).filter(other).filter_map(peer).collect()
}

/// How often each of the others is better, level and worse than Ambit's own mode.
fn tally(figures: &Figures<'_>) -> String {
    let mut items = Vec::new();
    for (at, mode) in figures.run.modes.iter().enumerate() {
        let mut counts = [0_usize; 3];
        for case in &figures.cases {
            for metric in case.main() {
                let judgement = case.cell(metric, at).and_then(|it: &Cell| it.against_ambient);
                if let Some(Judgement::Told { verdict, .. }) = judgement {
                    counts[verdict as usize] += 1;
                }
            }
        }
        let [better, level, worse] = counts;
        if better + level + worse > 0 {
            items.push(format!(
                "{} is better in {better}, level in {level} and worse in {worse}",
                mode.name
            ));
        }
    }
    if items.is_empty() {
        return String::new();
    }
    format!("<p>Of the main figures against {AMBIENT}: {}.</p>\n", escaped(&items.join("; ")))
}
