//! A run for a terminal: for each case the modes' medians with their spread and what they are
//! compared with, then the doubts and the host.

use std::collections::{BTreeMap, BTreeSet};

use super::doubts;
use super::figures::{AMBIENT, CaseFigures, Cell, Figures, ModeFigures, NONE, Shape};
use super::grid::{Grid, wrapped};
use super::metrics::{Call, Metric, Role, good_answers};
use super::record::{Host, Memory, Run};
use super::statistics::Spread;
use super::verdict::Judgement;
use super::words;

/// Characters of a mode's name: a peer's is its user's.
const NAME_WIDTH: usize = 20;
/// Characters of a reason beside a mode's name.
const REASON_WIDTH: usize = 96;
/// In place of a word in every cell.
const NO_VERDICTS: &str = "No verdicts: there are too few repetitions to tell a ratio from noise.";
/// The note about resident memory, wherever it is shown.
pub(crate) const RSS: &str =
    "RSS counts pages that several processes share in each of them; private pages are one's own.";
/// The note about figures of other machines, wherever they are shown beside ours.
pub(crate) const ELSEWHERE: &str =
    "The published figures are those of other machines: only ratios between modes compare.";

/// The whole run.
pub(crate) fn text(figures: &Figures<'_>) -> String {
    let run = figures.run;
    let mut text = head(run);
    let cases: Vec<&CaseFigures<'_>> = figures.cases.iter().collect();
    if figures.is_by_namespaces() {
        let metrics = [Metric::P50, Metric::P90, Metric::P95, Metric::P99];
        text += "\n";
        text +=
            &block(&cases, &metrics, &|case, mode| format!("{:>3}  {mode}", case.case.namespaces));
    } else {
        for case in cases {
            text += &format!("\n{}\n", words::one_line(&case.heading()));
            text += &wrapped(&words::one_line(&format!("ambit {}", case.load())), "  ", "    ");
            text += &block(&[case], &case.main(), &|_, mode| mode.to_owned());
        }
    }
    if is_without_verdicts(figures) {
        text += &format!("\n{NO_VERDICTS}\n");
    }
    text += &calls(figures);
    text += &published(figures);
    text += &memory(run);
    let doubts = doubts::gathered(figures);
    if !doubts.is_empty() {
        text += "\nWhy to be careful\n";
        text.extend(doubts.iter().map(|it| wrapped(&words::one_line(it), "* ", "  ")));
    }
    text += "\nPrograms\n";
    for (name, version) in &run.programs {
        text += &wrapped(&words::one_line(&format!("{name}: {version}")), "  ", "    ");
    }
    text += "\nThe same by hand\n";
    text.extend(run.commands.iter().map(|it| format!("  {}\n", words::one_line(it))));
    text
}

/// Whether there are ratios, and none of enough repetitions.
fn is_without_verdicts(figures: &Figures<'_>) -> bool {
    let lines = figures.cases.iter().flat_map(|it| &it.lines);
    let cells = lines.flat_map(|it| it.cells.iter().flatten());
    let judgements = cells.flat_map(|it| [it.against_none, it.against_ambient]).flatten();
    let mut ratios = judgements.filter(|it| it.ratio().is_some()).peekable();
    ratios.peek().is_some() && ratios.all(|it| matches!(it, Judgement::TooFew { .. }))
}

/// The machine in a line.
pub(crate) fn machine(host: &Host) -> String {
    let gibibytes = host.memory_bytes as f64 / f64::from(1 << 30);
    format!("{} x {}, {gibibytes:.1} GiB, {}, {}", host.cpus, host.cpu, host.kernel, host.system)
}

/// How it was measured, in a line.
pub(crate) fn method(run: &Run) -> String {
    format!(
        "{} of {} s for each mode and case, modes in turn, in shuffled order (seed {})",
        words::counted(run.repetitions, "repetition"),
        words::figure(run.seconds_each),
        run.seed
    )
}

fn head(run: &Run) -> String {
    let line = |text: &str| wrapped(&words::one_line(text), "", "  ");
    let mut text = line(&format!("{}: {}", run.experiment, run.title));
    text += &line(&machine(&run.host));
    text += &line(&format!("{}; {}", run.started_at, method(run)));
    text += "\nModes\n";
    for mode in &run.modes {
        let name = words::shortened(&words::one_line(&mode.name), NAME_WIDTH);
        let title = words::one_line(&mode.title);
        let told = match &mode.outcome {
            super::record::ModeOutcome::Ran => title,
            super::record::ModeOutcome::Failed(reason) => {
                format!("{title}; FAILED: {}", words::one_line(reason))
            }
        };
        text += &wrapped(&told, &format!("  {name:<NAME_WIDTH$}  "), "      ");
    }
    text
}

/// Medians, and what they are judged against, of cases that go into one table.
fn block(
    cases: &[&CaseFigures<'_>],
    metrics: &[Metric],
    label: &dyn Fn(&CaseFigures<'_>, &str) -> String,
) -> String {
    let label = |case: &CaseFigures<'_>, mode: &ModeFigures<'_>| {
        label(case, &words::shortened(&words::one_line(&mode.mode.name), NAME_WIDTH))
    };
    let heads = metrics.iter().map(|it| it.heading());
    let mut grid = Grid::new(["mode".to_owned(), "failed".to_owned()].into_iter().chain(heads));
    let mut failures = Vec::new();
    for case in cases {
        for (at, mode) in case.modes.iter().enumerate() {
            if let Some(reason) = mode.failure() {
                let reason = words::shortened(&words::one_line(reason), REASON_WIDTH);
                let name = words::shortened(&words::one_line(&mode.mode.name), NAME_WIDTH);
                push_new(&mut failures, format!("{name}  {reason}\n"));
            }
            if !mode.measurements.is_empty() {
                let (failed, requests) = case.failed(at);
                let failed = match requests {
                    0 => String::new(),
                    _ => words::percent(failed as f64 * 100.0 / requests as f64),
                };
                let mut row = vec![label(case, mode), failed];
                let cells = metrics.iter().map(|it| case.cell(*it, at));
                row.extend(
                    cells.map(|it| it.map_or(String::new(), |it| words::spread(&it.spread))),
                );
                grid.rows.push(row);
            }
        }
    }
    let mut text = grid.text();
    text.extend(failures);
    for (reference, judgement) in
        [(NONE, judged_by_none as fn(&Cell) -> Option<Judgement>), (AMBIENT, judged_by_ambient)]
    {
        text += &judgements(cases, metrics, reference, judgement, &label);
    }
    text
}

fn judged_by_none(cell: &Cell) -> Option<Judgement> {
    cell.against_none
}

fn judged_by_ambient(cell: &Cell) -> Option<Judgement> {
    cell.against_ambient
}

fn judgements(
    cases: &[&CaseFigures<'_>],
    metrics: &[Metric],
    reference: &str,
    judgement: fn(&Cell) -> Option<Judgement>,
    label: &dyn Fn(&CaseFigures<'_>, &ModeFigures<'_>) -> String,
) -> String {
    let told = |case: &CaseFigures<'_>, metric: Metric, at: usize| {
        case.cell(metric, at).and_then(judgement)
    };
    let mut rows = Vec::new();
    for case in cases {
        for (at, mode) in case.modes.iter().enumerate() {
            let cells: Vec<Option<Judgement>> =
                metrics.iter().map(|it| told(case, *it, at)).collect();
            if cells.iter().any(Option::is_some) {
                rows.push((label(case, mode), cells));
            }
        }
    }
    let has_any = |column: usize| rows.iter().any(|(_, cells)| cells[column].is_some());
    let columns: Vec<usize> = (0..metrics.len()).filter(|it| has_any(*it)).collect();
    if columns.is_empty() {
        return String::new();
    }
    let is_told = |it: &Option<Judgement>| matches!(it, Some(Judgement::Told { .. }));
    let is_any_told = rows.iter().any(|(_, cells)| cells.iter().any(is_told));
    let heads = columns.iter().map(|it| metrics[*it].name());
    let mut grid = Grid::new(std::iter::once(format!("times {reference}")).chain(heads));
    for (label, cells) in rows {
        let short = |it: &Judgement| short(it, is_any_told);
        let cells = columns.iter().map(|it| cells[*it].as_ref().map_or(String::new(), short));
        grid.rows.push(std::iter::once(label).chain(cells).collect());
    }
    format!("\n{}", grid.text())
}

/// `1.54 (1.45-1.61) worse`. "Too few" is shown only where other cells have enough repetitions.
fn short(judgement: &Judgement, is_any_told: bool) -> String {
    match judgement {
        Judgement::Told { ratio, verdict } => format!(
            "{} ({}-{}) {}",
            words::times(ratio.ratio),
            words::times(ratio.low),
            words::times(ratio.high),
            verdict.name()
        ),
        Judgement::TooFew { ratio } if is_any_told => format!("{} too few", words::times(*ratio)),
        Judgement::TooFew { ratio } => words::times(*ratio),
        Judgement::NoRatio => String::new(),
    }
}

/// Medians of system calls per answer, by mode and by whose they are; those of a record's every
/// name, also of names that no metric has.
pub(crate) fn calls_of(case: &CaseFigures<'_>) -> Vec<(usize, String, Vec<Option<f64>>)> {
    let mut rows = Vec::new();
    if case.shape == Shape::Stream {
        return rows;
    }
    for (at, mode) in case.modes.iter().enumerate() {
        let names = mode.measurements.iter().flat_map(|it| it.calls.keys());
        let names: BTreeSet<&String> = names.collect();
        for name in names {
            let median = |call: Call| {
                let of = mode.measurements.iter().filter_map(|it| {
                    let calls = call.of(it.calls.get(name)?) as f64;
                    Some(calls / Some(good_answers(&it.load)).filter(|it| *it > 0)? as f64)
                });
                Spread::of(&of.collect::<Vec<f64>>()).map(|it| it.median)
            };
            rows.push((at, name.clone(), Call::EACH.map(median).to_vec()));
        }
    }
    rows
}

fn calls(figures: &Figures<'_>) -> String {
    let mut text = String::new();
    for case in &figures.cases {
        let rows = calls_of(case);
        if rows.is_empty() {
            continue;
        }
        let heads = ["mode".to_owned(), "whose".to_owned()].into_iter();
        let mut grid = Grid::new(heads.chain(Call::EACH.map(|it| it.name().to_owned())));
        for (at, whose, calls) in rows {
            let name = words::one_line(&case.modes[at].mode.name);
            let mut row = vec![words::shortened(&name, NAME_WIDTH), whose];
            row.extend(calls.into_iter().map(|it| it.map(words::figure).unwrap_or_default()));
            grid.rows.push(row);
        }
        let name = words::one_line(&case.case.name);
        text += &format!("\nSystem calls per request, {name} (medians)\n{}", grid.text());
    }
    text
}

/// A published figure beside ours: mode, percentile, published, ours, and both as multiples of the
/// same side's figure without a mesh.
pub(crate) struct Beside {
    pub(crate) mode: String,
    pub(crate) percentile: String,
    pub(crate) published: f64,
    pub(crate) ours: Option<f64>,
    pub(crate) published_times: Option<f64>,
    pub(crate) our_times: Option<f64>,
}

/// A case's published figures beside ours, by mode, then percentile.
pub(crate) fn beside(case: &CaseFigures<'_>) -> Vec<Beside> {
    let published = &case.case.published;
    let median = |mode: &str, percentile: &str| {
        let at = case.modes.iter().position(|it| it.mode.name == mode)?;
        Some(case.cell(Metric::percentile(percentile)?, at)?.spread.median)
    };
    let figures = published.iter().flat_map(|(mode, it)| it.iter().map(move |it| (mode, it)));
    let mut rows: Vec<Beside> = figures
        .map(|(mode, (percentile, figure))| {
            let bare = published.get(NONE).and_then(|it| it.get(percentile));
            let ours = median(mode, percentile);
            let is_mesh = mode != NONE;
            Beside {
                mode: mode.clone(),
                percentile: percentile.clone(),
                published: *figure,
                ours,
                published_times: bare.filter(|_| is_mesh).map(|bare| figure / bare),
                our_times: ours.zip(median(NONE, percentile)).map(|it| it.0 / it.1),
            }
        })
        .collect();
    for row in rows.iter_mut().filter(|it| it.mode == NONE) {
        row.our_times = None;
    }
    let place = |name: &str| case.modes.iter().position(|it| it.mode.name == name);
    rows.sort_by_key(|it| place(&it.mode).unwrap_or(usize::MAX));
    rows
}

/// The heading of our case, and the source of the published figures: their sizes may differ.
pub(crate) fn whose(case: &CaseFigures<'_>) -> [String; 2] {
    let source = match case.case.published_source.as_str() {
        "" => "the record does not say by whom",
        source => source,
    };
    [case.heading(), source.to_owned()]
}

fn published(figures: &Figures<'_>) -> String {
    let mut text = String::new();
    for case in figures.cases.iter().filter(|it| !it.case.published.is_empty()) {
        let beside = beside(case);
        let mut percentiles: Vec<&str> = Vec::new();
        let mut modes: Vec<&str> = Vec::new();
        for it in &beside {
            push_new(&mut percentiles, &it.percentile);
            push_new(&mut modes, &it.mode);
        }
        let heads = percentiles.iter().map(|it| words::one_line(it) + " ms");
        let mut grid = Grid::new(std::iter::once("mode".to_owned()).chain(heads));
        for mode in modes {
            let row = |whose: &str, of: fn(&Beside) -> (Option<f64>, Option<f64>)| {
                let cell = |percentile: &&str| {
                    let is_it = |it: &&Beside| it.mode == mode && it.percentile == **percentile;
                    match beside.iter().find(is_it).map(of) {
                        Some((Some(ms), Some(times))) => {
                            format!("{} ({} x none)", words::figure(ms), words::times(times))
                        }
                        Some((Some(ms), None)) => words::figure(ms),
                        _ => String::new(),
                    }
                };
                let name = words::shortened(&words::one_line(mode), NAME_WIDTH);
                let name = format!("{name}, {whose}");
                std::iter::once(name).chain(percentiles.iter().map(cell)).collect()
            };
            grid.rows.push(row("here", |it| (it.ours, it.our_times)));
            grid.rows.push(row("published", |it| (Some(it.published), it.published_times)));
        }
        let name = words::one_line(&case.case.name);
        text += &format!("\nPublished figures beside ours, {name}\n{}", grid.text());
        let [here, source] = whose(case).map(|it| words::one_line(&it));
        text += &wrapped(&format!("here: {here}"), "", "  ");
        text += &wrapped(&format!("published: {source}"), "", "  ");
    }
    if text.is_empty() { text } else { text + ELSEWHERE + "\n" }
}

/// Keeps the order in which items come first.
pub(crate) fn push_new<T: PartialEq>(items: &mut Vec<T>, item: T) {
    if !items.contains(&item) {
        items.push(item);
    }
}

/// Megabytes of a role: resident, and of that private. None where the role was not there.
pub(crate) fn megabytes(memory: &BTreeMap<String, Memory>, role: Role) -> Option<(f64, f64)> {
    let it = memory.get(role.name())?;
    Some((it.rss_bytes as f64 / 1e6, it.private_bytes as f64 / 1e6))
}

/// What runs in pods without being a proxy.
fn pods(memory: &BTreeMap<String, Memory>) -> Option<f64> {
    let roles = [Role::Application, Role::Load].map(|it| megabytes(memory, it));
    roles.into_iter().flatten().map(|it| it.0).reduce(|a, b| a + b)
}

/// `110 (33.1)`, or nothing.
fn resident(megabytes: Option<(f64, f64)>) -> String {
    let told = |(all, private)| format!("{} ({})", words::figure(all), words::figure(private));
    megabytes.map(told).unwrap_or_default()
}

fn memory(run: &Run) -> String {
    let mut grid = Grid::new([
        "mode",
        "machine",
        "pods",
        "up s",
        "down s",
        "proxies",
        "after load",
        "agents",
        "control",
        "apps",
        "lab",
    ]);
    for mode in &run.modes {
        for size in &mode.machines {
            let name = words::one_line(&mode.name);
            let lab = megabytes(&size.at_rest, Role::Machine);
            grid.rows.push(vec![
                words::shortened(&name, NAME_WIDTH),
                words::one_line(&size.name),
                size.pods.to_string(),
                words::figure(size.up_seconds),
                words::figure(size.down_seconds),
                resident(megabytes(&size.at_rest, Role::Proxy)),
                resident(megabytes(&size.after, Role::Proxy)),
                resident(megabytes(&size.at_rest, Role::Agent)),
                resident(megabytes(&size.at_rest, Role::Control)),
                pods(&size.at_rest).map(words::figure).unwrap_or_default(),
                lab.map(|it| words::figure(it.0)).unwrap_or_default(),
            ]);
        }
    }
    if grid.rows.is_empty() {
        return String::new();
    }
    let what = wrapped(
        &format!("MB resident (of it private) at rest, and of proxies after the last load. {RSS}"),
        "",
        "  ",
    );
    format!("\nMachines\n{}{what}", grid.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::WIDTH_MAX;
    use crate::testing;
    use ambit_load::Latencies;

    fn check(run: &Run) -> String {
        let text = text(&Figures::of(run));
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH_MAX, "{line}");
            assert!(!line.chars().any(char::is_control), "{line}");
        }
        text
    }

    #[test]
    fn a_run_in_a_terminal() {
        insta::assert_snapshot!(check(&testing::run()));
    }

    #[test]
    fn sizes_side_by_side_and_beside_what_was_published() {
        insta::assert_snapshot!(check(&testing::tiered()));
    }

    #[test]
    fn a_foreign_name_changes_no_terminal() {
        let mut run = testing::with_calls(testing::run());
        for mode in &mut run.modes {
            mode.title = "x\u{1b}[2J\n".repeat(80);
        }
        run.modes[5].name = "/a/very/long/path/to/a\tprogram/that/is/a/peer".to_owned();
        let text = check(&run);
        assert!(text.contains("/a/very/long/path/t…  linkerd2-proxy ended with"), "{text}");
        assert!(text.contains("System calls per request, rate"), "{text}");
    }

    #[test]
    fn where_nothing_was_answered_there_are_no_times() {
        let mut run = testing::with_calls(testing::tiered());
        for it in run.measurements.iter_mut().filter(|it| it.mode == "envoy") {
            (it.load.failed, it.load.latency) = (it.load.requests, Latencies::default());
        }
        let text = check(&run);
        let rows =
            |start: &str| text.lines().filter(|it| it.starts_with(start)).collect::<Vec<_>>();
        for row in rows("  1  envoy ") {
            let cells: Vec<&str> = row.split_whitespace().skip(2).collect();
            assert_eq!(cells, ["100", "%", "-", "-", "-", "-"]);
        }
        let calls = rows("envoy ").into_iter().filter(|it| it.contains("application"));
        assert!(calls.clone().count() > 0, "{text}");
        calls.for_each(|row| assert!(row.ends_with(" -") && !row.contains('0'), "{row}"));
    }

    #[test]
    fn with_two_repetitions_there_is_no_verdict() {
        let mut run = testing::run();
        run.repetitions = 2;
        run.measurements.retain(|it| it.repetition <= 2);
        let text = check(&run);
        assert!(!text.contains(" too few\n") && !text.contains("worse\n"), "{text}");
        assert_eq!(text.matches(NO_VERDICTS).count(), 1, "{text}");
        assert!(text.contains("2 repetitions are too few for any verdict"), "{text}");
        let mut run = testing::run();
        run.measurements.retain(|it| it.repetition <= 2 || it.mode != "envoy");
        let text = check(&run);
        assert!(text.contains(" too few") && !text.contains(NO_VERDICTS), "{text}");
    }
}
