//! A run as one self-contained page: text, charts, tables, and the raw record itself.
//!
//! It reads the same without JavaScript, which only saves the raw record to a file. Modes' names,
//! errors and commands are foreign text: nothing of a record enters the page unescaped.

mod summary;
mod tables;

use ambit_model::markup::escaped;

use super::chart::{self, Chart, STYLE, series};
use super::doubts;
use super::figures::{AMBIENT, CaseFigures, Figures};
use super::record::{Ending, ModeOutcome, Run};
use super::statistics::chance_of_a_verdict;
use super::verdict::REPETITIONS_MIN;
use super::{keep, table, words};

const PAGE_STYLE: &str = include_str!("html/page.css");
/// Saves the raw record; without it there is the file beside the page.
const SAVE: &str = "
document.getElementById('save').addEventListener('click', function () {
  var text = document.getElementById('run').textContent;
  var link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  link.download = 'run.json';
  link.click();
  URL.revokeObjectURL(link.href);
});
document.getElementById('save').hidden = false;
";

/// The whole page.
pub(crate) fn page(figures: &Figures<'_>) -> String {
    let run = figures.run;
    let charts = chart::charts(figures);
    let title = escaped(&format!("{}: {}", run.experiment, run.title));
    let mut body = format!("<h1>{title}</h1>\n{}", subtitle(run));
    body += &warnings(figures);
    body += &summary::summary(figures);
    body += &modes(run);
    body += &toggles(run);
    if figures.is_by_namespaces() {
        body += "<h2 id=\"namespaces\">As namespaces grow</h2>\n";
        let is_of_run = |it: &&Chart| it.case.is_none() && it.stem.starts_with("namespaces-");
        let of_run = charts.iter().filter(is_of_run);
        body += &figure_grid(of_run);
        body += &tables::by_namespaces(figures);
    }
    for (at, case) in figures.cases.iter().enumerate() {
        body += &case_section(at, case, &charts);
    }
    body += &tables::machines(run);
    let of_run =
        charts.iter().filter(|it| it.case.is_none() && !it.stem.starts_with("namespaces-"));
    body += &figure_grid(of_run);
    body += &method(run);
    let raw = keep::json(run);
    // Within a script only `<` could end it or begin a comment; in JSON it occurs only in strings.
    let raw = raw.replace('<', "\\u003c");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{PAGE_STYLE}{STYLE}{}</style>\n</head>\n<body>\n<main>\n\
         {body}</main>\n<script type=\"application/json\" id=\"run\">\n{raw}</script>\n\
         <script>{SAVE}</script>\n</body>\n</html>\n",
        hiding()
    )
}

fn subtitle(run: &Run) -> String {
    let ending = match &run.ending {
        Ending::Complete => "",
        Ending::Interrupted => " <b>Interrupted: a partial result.</b>",
        Ending::Failed(_) => " <b>Ended early: a partial result.</b>",
    };
    format!(
        "<p class=\"quiet\">{}; {}, taken in {} minutes.{ending}</p>\n",
        escaped(&table::machine(&run.host)),
        escaped(&run.started_at),
        words::figure(run.seconds / 60.0)
    )
}

fn warnings(figures: &Figures<'_>) -> String {
    let doubts = doubts::gathered(figures);
    if doubts.is_empty() {
        return String::new();
    }
    let items = doubts.iter().map(|it| format!("<li>{}</li>\n", escaped(&words::capitalised(it))));
    format!(
        "<section class=\"box warn\" aria-labelledby=\"careful\">\n<h2 id=\"careful\">Why to be \
         careful with these figures</h2>\n<ul>\n{}</ul>\n</section>\n",
        items.collect::<String>()
    )
}

fn modes(run: &Run) -> String {
    let mut rows = String::new();
    for mode in &run.modes {
        let outcome = match &mode.outcome {
            ModeOutcome::Ran => "measured".to_owned(),
            ModeOutcome::Failed(reason) => {
                format!("<b>failed:</b> {}", escaped(&words::one_line(reason)))
            }
        };
        let version = program(run, &mode.name).map(escaped).unwrap_or_default();
        rows += &format!(
            "<tr><th scope=\"row\">{}</th>\
             <td class=\"words\" data-head=\"what it is\"><div>{}</div></td>\
             <td class=\"words\" data-head=\"outcome\"><div>{outcome}</div></td>\
             <td class=\"program\" data-head=\"program\"><div>{version}</div></td></tr>\n",
            escaped(&mode.name),
            escaped(&mode.title)
        );
    }
    format!(
        "<h2 id=\"modes\">What was compared</h2>\n<div class=\"scroll\"><table>\n<thead><tr>\
         <th scope=\"col\">mode</th><th scope=\"col\" class=\"words\">what it is</th>\
         <th scope=\"col\" class=\"words\">outcome</th><th scope=\"col\" class=\"program\">program\
         </th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}

/// What carried a mode; policies make no other program of it.
fn program<'a>(run: &'a Run, mode: &str) -> Option<&'a str> {
    let name = match mode.split('+').next().unwrap_or_default() {
        AMBIENT => "ambit",
        name => name,
    };
    run.programs.get(name).map(String::as_str)
}

/// Boxes that take a mode's lines out of the charts; they work by style alone.
fn toggles(run: &Run) -> String {
    let names: Vec<&str> = run.modes.iter().map(|it| it.name.as_str()).collect();
    let is_shown = |at: &usize| run.measurements.iter().any(|it| it.mode == names[*at]);
    let boxes = (0..names.len()).filter(is_shown).map(|at| {
        format!(
            "<label><input type=\"checkbox\" checked class=\"show{}\"> {}</label>\n",
            series(&names, at),
            escaped(names[at])
        )
    });
    format!("<p class=\"toggles\">Lines in charts: {}</p>\n", boxes.collect::<String>())
}

fn hiding() -> String {
    let rule = |at: usize| {
        format!("body:has(.show{at}:not(:checked)) .chart .m{at} {{ visibility: hidden }}\n")
    };
    (0..8).map(rule).collect()
}

fn case_section(at: usize, case: &CaseFigures<'_>, charts: &[Chart]) -> String {
    let load = escaped(&words::one_line(&format!("ambit {}", case.load())));
    let mut text = format!(
        "<h2 id=\"case-{at}\">{}</h2>\n<p><code>{load}</code></p>\n",
        escaped(&case.heading())
    );
    text += &tables::main(case);
    text += &figure_grid(charts.iter().filter(|it| it.case == Some(at)));
    text += &tables::published(case);
    text += &tables::calls(case);
    text + &tables::everything(case)
}

fn figure_grid<'a>(charts: impl Iterator<Item = &'a Chart>) -> String {
    let figures = charts.map(|it| {
        let class = if it.is_wide() { " class=\"wide\"" } else { "" };
        format!("<figure{class}>\n{}</figure>\n", it.inline())
    });
    format!("<div class=\"charts\">\n{}</div>\n", figures.collect::<String>())
}

fn method(run: &Run) -> String {
    let mut text = format!(
        "<h2 id=\"method\">How it was measured</h2>\n<ul>\n<li>{}.</li>\n<li>A figure is the \
         median of the repetitions, with the least and the most of them below it. Latency counts \
         from the moment at which a request was due. Curves hold the answers of all repetitions \
         together.</li>\n<li>A ratio is that of two medians. Better and worse are said only if \
         the whole 95 % bootstrap interval, over repetitions that stay pairs, lies on one side of \
         1; everything else is level. With fewer than {REPETITIONS_MIN} repetitions nothing is \
         said.</li>\n<li>So noise alone gets a verdict in about {:.0} of 100 comparisons of \
         what is the same: of many verdicts, some are wrong.</li>\n</ul>\n",
        escaped(&words::capitalised(&table::method(run))),
        chance_of_a_verdict(run.repetitions.max(REPETITIONS_MIN)) * 100.0,
    );
    let programs = run.programs.iter().map(|(name, version)| {
        format!("<li><b>{}</b>: {}</li>\n", escaped(name), escaped(version))
    });
    let programs = programs.collect::<String>();
    text += &format!("<h3>Programs</h3>\n<ul class=\"small\">\n{programs}</ul>\n");
    let commands = run.commands.iter().map(|it| escaped(it) + "\n").collect::<String>();
    text += &format!("<h3>The same by hand</h3>\n<pre>{commands}</pre>\n");
    text += "<p>Every measurement is within this page, with its histograms; of those, steps that \
             lie within 1 % of each other are kept as one. <button type=\"button\" id=\"save\" \
             hidden>Save it as run.json</button></p>\n";
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn check(run: &Run) -> String {
        let page = page(&Figures::of(run));
        for scheme in ["http-equiv", "src=", "@import", "url(", "href=\"http", "NaN", ">inf<"] {
            assert!(!page.contains(scheme), "{scheme}");
        }
        let cells = page.matches("<td").count() - page.matches("colspan=").count();
        assert_eq!(page.matches(" data-head=").count(), cells, "what a narrow page needs");
        assert_eq!(page.matches("<script").count(), 2);
        assert_eq!(page.matches("</script").count(), 2);
        let raw = page.split("id=\"run\">").nth(1).and_then(|it| it.split("</script").next());
        let read: Run = serde_json::from_str(raw.unwrap()).unwrap();
        assert_eq!((&read.modes, &read.cases), (&run.modes, &run.cases));
        assert_eq!(read.measurements.len(), run.measurements.len());
        page
    }

    #[test]
    fn a_page_holds_its_run_and_needs_nothing_else() {
        let page = check(&testing::run());
        for words in [
            "Why to be careful",
            "2.61 % of the requests of envoy were lost",
            "1000 rps on 10 connections",
        ] {
            assert!(page.contains(words), "{words}");
        }
        let page = check(&testing::tiered());
        assert!(page.contains("As namespaces grow") && page.contains(table::ELSEWHERE));
        assert!(page.contains("Published:</b> Somebody (2024): 50 namespaces, 450 rps into each."));
        assert!(check(&testing::with_calls(testing::run())).contains("System calls per request"));
    }

    #[test]
    fn cases_of_one_title_are_told_apart() {
        let mut run = testing::run();
        run.cases[1].title = run.cases[0].title.clone();
        let page = check(&run);
        assert!(!page.contains(">1000 rps on 10 connections"));
        for name in ["rate", "saturation"] {
            // The section, its summary, and the subtitle of each of its charts.
            let heading = format!("{name}: 1000 rps on 10 connections");
            assert!(page.matches(&heading).count() >= 5, "{name}");
        }
    }

    #[test]
    fn modes_of_one_program_have_its_version() {
        let run = testing::run();
        let check = |mode, version: Option<&str>| {
            assert_eq!(program(&run, mode).and_then(|it| it.split(' ').next()), version, "{mode}");
        };
        check("none", None);
        check("ambient", Some("0.1.0"));
        check("ambient+l4policy", Some("0.1.0"));
        check("ztunnel+l4policy", Some("1.29"));
        check("envoy", None);
    }

    #[test]
    fn nothing_foreign_is_markup() {
        let mut run = testing::run();
        let evil = "</script><script>alert(1)</script><!--\"'&";
        for mode in &mut run.modes[2..] {
            mode.title = evil.to_owned();
            mode.outcome = ModeOutcome::Failed(evil.to_owned());
        }
        for measurement in run.measurements.iter_mut().filter(|it| it.mode == "envoy") {
            measurement.mode = evil.to_owned();
            measurement.load.errors = [(evil.to_owned(), 1)].into();
            measurement.warnings = vec![evil.to_owned()];
        }
        run.modes[4].name = evil.to_owned();
        run.experiment = evil.to_owned();
        run.commands.push(evil.to_owned());
        run.cases[0].title = evil.to_owned();
        run.cases[0].load[0].push(evil.to_owned());
        run.host.cpu = evil.to_owned();
        run.programs.insert(evil.to_owned(), evil.to_owned());
        let page = check(&run);
        assert!(!page.contains("<script>alert") && !page.contains("<!--"));
    }

    #[test]
    fn a_run_without_a_measurement_is_a_page_too() {
        let mut run = testing::run();
        run.measurements.clear();
        run.ending = Ending::Failed("no permission".to_owned());
        assert!(check(&run).contains("no permission"));
        run.cases.clear();
        run.modes.clear();
        check(&run);
    }
}
