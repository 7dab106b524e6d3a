//! The tables of a page.

use ambit_model::markup::escaped;

use crate::figures::{AMBIENT, CaseFigures, Cell, Figures, NONE};
use crate::metrics::{Call, Metric, Role};
use crate::record::Run;
use crate::table::{self, ELSEWHERE, RSS, megabytes};
use crate::verdict::Judgement;
use crate::words;

/// A table, its cells already escaped; the first column names the row.
struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    caption: &'static str,
}

impl Table {
    fn new(head: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let head = head.into_iter().map(|it| escaped(it.as_ref())).collect();
        Self { head, rows: Vec::new(), caption: "" }
    }

    fn html(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let head = self.head.iter().map(|it| format!("<th scope=\"col\">{it}</th>"));
        let mut rows = String::new();
        for row in &self.rows {
            let cells = match row.as_slice() {
                // Words in place of figures.
                [_, words] if self.head.len() > 2 => {
                    format!("<td class=\"words\" colspan=\"{}\">{words}</td>", self.head.len() - 1)
                }
                // Where a page is narrow, each figure has its column's head beside it.
                row => {
                    let cells = row.iter().zip(&self.head).skip(1);
                    let cells = cells
                        .map(|(it, head)| format!("<td data-head=\"{head}\"><div>{it}</div></td>"));
                    cells.collect::<String>()
                }
            };
            let name = row.first().map_or("", |it| it);
            rows += &format!("<tr><th scope=\"row\">{name}</th>{cells}</tr>\n");
        }
        let caption = match self.caption {
            "" => String::new(),
            caption => format!("<h3>{caption}</h3>\n"),
        };
        format!(
            "{caption}<div class=\"scroll\"><table>\n<thead><tr>{}</tr></thead>\n<tbody>\n{rows}\
             </tbody>\n</table></div>\n",
            head.collect::<String>()
        )
    }
}

/// The main figures: a row for each mode, failed ones included.
pub(super) fn main(case: &CaseFigures<'_>) -> String {
    let metrics = case.main();
    let heads = metrics.iter().map(|it| it.heading());
    let heads = std::iter::once("mode".to_owned()).chain(heads).chain(["failed".to_owned()]);
    let mut rows = Table::new(heads);
    for (at, mode) in case.modes.iter().enumerate() {
        let name = escaped(&mode.mode.name);
        if !mode.measurements.is_empty() {
            let mut row = vec![name.clone()];
            row.extend(metrics.iter().map(|it| cell(case.cell(*it, at))));
            row.push(lost(case, at));
            rows.rows.push(row);
        }
        if let Some(reason) = mode.failure() {
            let reason = escaped(&words::one_line(reason));
            rows.rows.push(vec![name, format!("<b>failed:</b> {reason}")]);
        }
    }
    rows.html()
}

fn lost(case: &CaseFigures<'_>, at: usize) -> String {
    let (failed, requests) = case.failed(at);
    let share = words::percent(failed as f64 * 100.0 / requests.max(1) as f64);
    match (failed, requests) {
        (_, 0) => "-".to_owned(),
        (0, _) => share,
        _ => format!("<b>{share}</b><small>{failed} of {requests}</small>"),
    }
}

fn cell(cell: Option<&Cell>) -> String {
    let Some(cell) = cell else { return "-".to_owned() };
    let (none, ambient) = (cell.against_none, cell.against_ambient);
    figure(cell) + &judgement(none, NONE) + &judgement(ambient, AMBIENT)
}

/// The median, and the spread below it.
fn figure(cell: &Cell) -> String {
    let median = words::figure(cell.spread.median);
    match words::ends(&cell.spread, " to ") {
        ends if ends.is_empty() => format!("<b>{median}</b>"),
        ends => format!("<b>{median}</b><small>{ends}</small>"),
    }
}

fn judgement(judgement: Option<Judgement>, reference: &str) -> String {
    let Some(judgement) = judgement else { return String::new() };
    let (times, verdict) = match &judgement {
        Judgement::Told { ratio, verdict } => {
            let (title, verdict) = (words::interval(ratio), verdict.name());
            let title = format!("95 % interval {title}");
            let verdict = format!(" <span class=\"{verdict}\" title=\"{title}\">{verdict}</span>");
            (words::times(ratio.ratio), verdict)
        }
        // The reason for no verdict is given once, above and below all tables.
        Judgement::TooFew { ratio } => (words::times(*ratio), String::new()),
        Judgement::NoRatio => return String::new(),
    };
    format!("<small class=\"v\">{times} x {reference}{verdict}</small>")
}

/// Every figure there is, a row for each, a column for each mode.
pub(super) fn everything(case: &CaseFigures<'_>) -> String {
    let shown: Vec<usize> =
        (0..case.modes.len()).filter(|it| !case.modes[*it].measurements.is_empty()).collect();
    let names = shown.iter().map(|it| case.modes[*it].mode.name.as_str());
    let mut rows = Table::new(std::iter::once("figure").chain(names));
    for line in &case.lines {
        let unit = line.metric.unit();
        let name = line.metric.name();
        let name = if unit.is_empty() { name } else { format!("{name}, {unit}") };
        let cells = shown.iter().map(|it| cell(line.cells[*it].as_ref()));
        rows.rows.push(std::iter::once(escaped(&name)).chain(cells).collect());
    }
    if rows.rows.is_empty() {
        return String::new();
    }
    format!("<details>\n<summary>Every figure of this case</summary>\n{}</details>\n", rows.html())
}

/// One row for each number of namespaces and mode, as the published tables have them.
pub(super) fn by_namespaces(figures: &Figures<'_>) -> String {
    let metrics = [Metric::P50, Metric::P90, Metric::P95, Metric::P99];
    let heads = metrics.iter().map(|it| it.heading());
    let heads = ["namespaces, mode".to_owned()].into_iter().chain(heads);
    let mut rows = Table::new(heads.chain(["failed".to_owned()]));
    for case in &figures.cases {
        for (at, mode) in case.modes.iter().enumerate() {
            if mode.measurements.is_empty() {
                continue;
            }
            let mut row = vec![escaped(&format!("{}, {}", case.case.namespaces, mode.mode.name))];
            row.extend(metrics.iter().map(|it| case.cell(*it, at).map_or("-".to_owned(), figure)));
            row.push(lost(case, at));
            rows.rows.push(row);
        }
    }
    rows.html()
}

/// The published figures beside ours, a row for each mode that either has.
pub(super) fn published(case: &CaseFigures<'_>) -> String {
    let beside = table::beside(case);
    let mut percentiles: Vec<&str> = Vec::new();
    let mut modes: Vec<&str> = Vec::new();
    for it in &beside {
        table::push_new(&mut percentiles, &it.percentile);
        table::push_new(&mut modes, &it.mode);
    }
    let heads = percentiles.iter().flat_map(|it| [format!("{it} here"), format!("{it} published")]);
    let mut rows = Table::new(std::iter::once("mode, ms".to_owned()).chain(heads));
    rows.caption = "Beside the published figures";
    for mode in modes {
        let mut row = vec![escaped(mode)];
        for percentile in &percentiles {
            let found = beside.iter().find(|it| it.mode == mode && it.percentile == *percentile);
            let with = |value: Option<f64>, times: Option<f64>| {
                let value =
                    value.map_or("-".to_owned(), |it| format!("<b>{}</b>", words::figure(it)));
                let times = times.map(|it| format!("<small>{} x {NONE}</small>", words::times(it)));
                value + &times.unwrap_or_default()
            };
            row.push(with(found.and_then(|it| it.ours), found.and_then(|it| it.our_times)));
            row.push(with(found.map(|it| it.published), found.and_then(|it| it.published_times)));
        }
        rows.rows.push(row);
    }
    if rows.rows.is_empty() {
        return String::new();
    }
    let [here, source] = table::whose(case).map(|it| escaped(&words::one_line(&it)));
    rows.html()
        + &format!(
            "<p class=\"small\"><b>Here:</b> {here}.<br><b>Published:</b> {source}.<br>\
             <b>{ELSEWHERE}</b></p>\n"
        )
}

/// System calls per answer, by mode and by whose they are.
pub(super) fn calls(case: &CaseFigures<'_>) -> String {
    let kinds = Call::EACH.map(Call::name);
    let mut rows = Table::new(["mode", "whose"].into_iter().chain(kinds));
    rows.caption = "System calls per request";
    let mut before = None;
    for (at, whose, calls) in table::calls_of(case) {
        let is_first = before.replace(at) != Some(at);
        let name = if is_first { escaped(&case.modes[at].mode.name) } else { String::new() };
        let mut row = vec![name, escaped(&whose)];
        row.extend(calls.into_iter().map(|it| it.map_or("-".to_owned(), words::figure)));
        rows.rows.push(row);
    }
    rows.html()
}

/// What machines of each size took.
pub(super) fn machines(run: &Run) -> String {
    let mut rows = Table::new([
        "mode, machine",
        "pods",
        "up, s",
        "down, s",
        "proxies at rest, MB",
        "proxies after, MB",
        "agents at rest, MB",
        "control at rest, MB",
    ]);
    for mode in &run.modes {
        for size in &mode.machines {
            let memory = [
                megabytes(&size.at_rest, Role::Proxy),
                megabytes(&size.after, Role::Proxy),
                megabytes(&size.at_rest, Role::Agent),
                megabytes(&size.at_rest, Role::Control),
            ];
            let name = escaped(&format!("{}, {}", mode.name, size.name));
            let seconds = [size.up_seconds, size.down_seconds].map(words::figure);
            let named = [name, size.pods.to_string()].into_iter().chain(seconds);
            rows.rows.push(named.chain(memory.map(resident)).collect());
        }
    }
    match rows.html() {
        table if table.is_empty() => table,
        table => format!(
            "<h2 id=\"machines\">Machines and memory</h2>\n{table}<p class=\"small\">{RSS}</p>\n"
        ),
    }
}

/// Resident, and what of it is private below.
fn resident(megabytes: Option<(f64, f64)>) -> String {
    let told = |(all, private)| {
        let (all, private) = (words::figure(all), words::figure(private));
        format!("<b>{all}</b><small>private {private}</small>")
    };
    megabytes.map_or("-".to_owned(), told)
}
