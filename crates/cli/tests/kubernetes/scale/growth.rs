//! How the figures grow with the cluster, as one picture: a panel for each unit, pods to the right,
//! from zero upwards, so that what grows in proportion is a straight line through the corner.

use std::fmt::Write as _;

use serde_json::Value;

use super::report::number;

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 240.0;
/// Around what is drawn of a panel: room for its title, its numbers and its names.
const LEFT: f64 = 56.0;
const TOP: f64 = 40.0;
const RIGHT: f64 = 16.0;
const BOTTOM: f64 = 76.0;
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];
const DASHES: [&str; 4] = ["none", "6 3", "2 3", "9 3 2 3"];

/// A line of a panel: its name and its value in a row.
type Series = (&'static str, fn(&Value) -> f64);

struct Panel {
    title: &'static str,
    series: &'static [Series],
}

const PANELS: [Panel; 4] = [
    Panel {
        title: "Memory (RSS), MB",
        series: &[
            ("control, grown with the cluster", |row| mb(row, "/grown/control")),
            ("control, started in it", |row| mb(row, "/rest/control")),
            ("proxy, worker and supervisor", |row| mb(row, "/rest/proxy")),
            ("agent", |row| mb(row, "/rest/agent")),
        ],
    },
    Panel {
        title: "A change reaches all 1,000 proxies, ms",
        series: &[
            ("quiet, p50", |row| number(row, "/quiet/fleet/all/p50_ms")),
            ("quiet, p99", |row| number(row, "/quiet/fleet/all/p99_ms")),
            ("40 changes/s, p50", |row| number(row, "/churn/fleet/all/p50_ms")),
            ("40 changes/s, p99", |row| number(row, "/churn/fleet/all/p99_ms")),
        ],
    },
    Panel {
        title: "Until it has everything, s",
        series: &[
            ("1,000 proxies that hold nothing", |row| number(row, "/sync/fleet/all_ms") / 1e3),
            ("1,000 proxies, control killed", |row| {
                number(row, "/restart/fleet/synced/all_ms") / 1e3
            }),
        ],
    },
    Panel {
        title: "One proxy's first sync, ms",
        series: &[("on the stream, median", super::report::first_sync)],
    },
];

fn mb(row: &Value, pointer: &str) -> f64 {
    number(row, &format!("{pointer}/rss_kb")) / 1024.0
}

/// The picture, SVG, of the rows of all sizes.
pub(super) fn picture(rows: &[Value]) -> String {
    let (width, height) = (2.0 * WIDTH, 2.0 * HEIGHT);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (index, it) in PANELS.iter().enumerate() {
        let (x, y) = ((index % 2) as f64 * WIDTH, (index / 2) as f64 * HEIGHT);
        let drawn = panel(it, rows);
        writeln!(svg, "<g transform=\"translate({x} {y})\">\n{drawn}</g>")
            .expect("memory takes it");
    }
    svg + "</svg>\n"
}

fn panel(panel: &Panel, rows: &[Value]) -> String {
    let pods = |row: &Value| number(row, "/pods");
    let figures = panel.series.iter().flat_map(|(_, figure)| rows.iter().map(figure));
    let (most_pods, most) = (round_up(rows.iter().map(pods)), round_up(figures));
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let at_x = |value: f64| LEFT + value / most_pods * (right - LEFT);
    let at_y = |value: f64| bottom - value / most * (bottom - TOP);
    let mut svg = format!("<text x=\"{LEFT}\" y=\"24\" font-size=\"13\">{}</text>\n", panel.title);
    let mut put = |line: String| svg.push_str(&(line + "\n"));
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let (y, x) = (at_y(share * most), at_x(share * most_pods));
        put(format!("<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#ddd\"/>"));
        put(format!(
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            share * most
        ));
        put(format!(
            "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            share * most_pods
        ));
    }
    for (index, (name, figure)) in panel.series.iter().enumerate() {
        let points =
            rows.iter().map(|row| format!("{:.1},{:.1}", at_x(pods(row)), at_y(figure(row))));
        let points = points.collect::<Vec<_>>().join(" ");
        let (colour, dash) = (COLOURS[index], DASHES[index]);
        put(format!(
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"{dash}\"/>"
        ));
        for point in points.split(' ').filter_map(|point| point.split_once(',')) {
            put(format!(
                "<circle cx=\"{}\" cy=\"{}\" r=\"3\" fill=\"{colour}\"/>",
                point.0, point.1
            ));
        }
        let (x, y) = (LEFT + (index % 2) as f64 * 150.0, bottom + 38.0 + (index / 2) as f64 * 16.0);
        put(format!("<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">{name}</text>"));
    }
    svg
}

/// A number that its quarters suit, not below any of these.
fn round_up(all: impl Iterator<Item = f64>) -> f64 {
    let most = all.fold(1.0, f64::max);
    let power = 10_f64.powf(most.log10().floor());
    let steps = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|it| *it >= most).unwrap_or(most)
}
