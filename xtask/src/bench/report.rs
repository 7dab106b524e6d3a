//! Who won: medians with their spread, the ratio with its interval, a verdict for each number, and
//! the run's record.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Options;
use super::host::Host;
use super::mesh::MANIFEST;
use super::rows::{Measurement, Metric, ROWS, Row, Side};
use super::statistics::{Ratio, Spread};

/// Where runs are kept.
const RUNS: &str = "bench/runs";
/// Runs of one machine on one day.
const MAX_RUNS_A_DAY: usize = 100;

/// What an interval says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Better,
    /// The interval holds 1.
    Level,
    Worse,
}

impl Verdict {
    fn of(metric: Metric, ratio: &Ratio) -> Self {
        let (above, below) = (ratio.low > 1.0, ratio.high < 1.0);
        match (above, below, metric.more_is_better()) {
            (true, _, true) | (_, true, false) => Self::Better,
            (true, _, false) | (_, true, true) => Self::Worse,
            (false, false, _) => Self::Level,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Level => "level",
            Self::Worse => "worse",
        }
    }
}

/// One number of one row.
struct Line {
    row: &'static Row,
    metric: Metric,
    nobody: Spread,
    ambit: Spread,
    ztunnel: Spread,
    ratio: Ratio,
    verdict: Verdict,
}

/// The comparison.
pub(super) struct Report {
    lines: Vec<Line>,
}

impl Report {
    /// Compares what was measured, at least once for each row and side.
    pub(super) fn new(measurements: &[Measurement]) -> Self {
        let line = |row: &'static Row, metric: Metric| {
            let of = |side| values(measurements, row, side, metric);
            let (ambit, ztunnel) = (of(Side::Ambit), of(Side::Ztunnel));
            let ratio = Ratio::of(&ambit, &ztunnel);
            Line {
                row,
                metric,
                nobody: Spread::of(&of(Side::Nobody)),
                ambit: Spread::of(&ambit),
                ztunnel: Spread::of(&ztunnel),
                verdict: Verdict::of(metric, &ratio),
                ratio,
            }
        };
        let of_row = |row: &'static Row| row.metrics.iter().map(move |metric| line(row, *metric));
        Self { lines: ROWS.iter().flat_map(of_row).collect() }
    }

    /// Whether a judged number is worse than ztunnel's.
    pub(super) fn has_lost(&self) -> bool {
        self.lines.iter().any(|line| line.row.is_judged && line.verdict == Verdict::Worse)
    }

    /// Writes the run down below `bench/runs` and says where.
    pub(super) fn keep(
        &self,
        host: &Host,
        seed: u64,
        options: &Options,
        measurements: &[Measurement],
    ) -> Result<PathBuf> {
        let directory = fresh_directory(&format!("{}-{}", host.date, host.slug()))?;
        let commands = commands(options);
        let raw = json!({
            "host": host.json(),
            "commands": commands,
            "seed": seed,
            "repetitions": options.repetitions,
            "seconds": options.seconds,
            "measurements": measurements.iter().map(Measurement::json).collect::<Vec<_>>(),
            "comparison": self.lines.iter().map(Line::json).collect::<Vec<_>>(),
        });
        fs::write(directory.join("raw.json"), serde_json::to_string_pretty(&raw)? + "\n")?;
        let Options { repetitions, seconds, .. } = options;
        let text = format!(
            "# Ambit's proxy against ztunnel\n\n```\n{host}\n```\n\n{self}\n\n{repetitions} \
             repetitions of {seconds} s, interleaved and shuffled (seed {seed}). Median (least to \
             most); the ratio is that of the medians with its 95 % bootstrap interval.\n\n```\n\
             {}\n```\n",
            commands.join("\n")
        );
        fs::write(directory.join("README.md"), text)?;
        Ok(directory)
    }
}

fn values(measurements: &[Measurement], row: &Row, side: Side, metric: Metric) -> Vec<f64> {
    let of_side = measurements.iter().filter(|it| it.row == row.name && it.side == side);
    let value =
        |it: &Measurement| it.values.iter().find(|(name, _)| *name == metric).map(|it| it.1);
    of_side.filter_map(value).collect()
}

fn fresh_directory(name: &str) -> Result<PathBuf> {
    for number in 1..=MAX_RUNS_A_DAY {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let directory = Path::new(RUNS).join(format!("{name}{suffix}"));
        if !directory.exists() {
            fs::create_dir_all(&directory)
                .with_context(|| format!("make {}", directory.display()))?;
            return Ok(directory);
        }
    }
    anyhow::bail!("{RUNS} holds {MAX_RUNS_A_DAY} runs of this machine and day already")
}

/// What was run, with the places that differ between hosts left open.
fn commands(options: &Options) -> Vec<String> {
    let mut commands = vec![
        format!(
            "cargo xtask bench peers --ztunnel ZTUNNEL --repetitions {} --seconds {}",
            options.repetitions, options.seconds
        ),
        format!("ambit up {MANIFEST} --detach --state A"),
        format!(
            "ambit up {MANIFEST} --detach --state B --proxy node-1=ZTUNNEL --proxy node-2=ZTUNNEL"
        ),
    ];
    for row in &ROWS {
        let words = row.load.words("bench", options.seconds).join(" ");
        commands.push(format!("ambit exec bench/client --state A|B -- ambit {words}"));
    }
    commands
}

impl Line {
    fn json(&self) -> Value {
        let spread = |spread: &Spread| json!([spread.least, spread.median, spread.most]);
        json!({
            "row": self.row.name,
            "judged": self.row.is_judged,
            "metric": self.metric.name(),
            "no mesh": spread(&self.nobody),
            "ambit": spread(&self.ambit),
            "ztunnel": spread(&self.ztunnel),
            "ratio": self.ratio.ratio,
            "interval": [self.ratio.low, self.ratio.high],
            "verdict": self.verdict.name(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| row | number | no mesh | ambit | ztunnel | ambit / ztunnel | verdict |")?;
        write!(f, "|---|---|---|---|---|---|---|")?;
        for line in &self.lines {
            let Ratio { low, ratio, high } = line.ratio;
            let note = if line.row.is_judged { "" } else { " (for information)" };
            write!(f, "\n| {}{note} | {} |", line.row.name, line.metric.name())?;
            for spread in [&line.nobody, &line.ambit, &line.ztunnel] {
                write!(f, " {spread} |")?;
            }
            write!(f, " {ratio:.2} ({low:.2} to {high:.2}) | {} |", line.verdict.name())?;
        }
        Ok(())
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { least, median, most } = self;
        let digits = if *median < 10.0 { 2 } else { usize::from(*median < 100.0) };
        write!(f, "{median:.digits$} ({least:.digits$} to {most:.digits$})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_needs_the_whole_interval() {
        let check = |metric, low, high, expected| {
            let ratio = Ratio { low, ratio: f64::midpoint(low, high), high };
            assert_eq!(Verdict::of(metric, &ratio), expected);
        };
        check(Metric::P50, 0.8, 0.9, Verdict::Better);
        check(Metric::P50, 0.9, 1.1, Verdict::Level);
        check(Metric::CpuPerRequest, 1.01, 1.1, Verdict::Worse);
        check(Metric::Rate, 1.01, 1.1, Verdict::Better);
        check(Metric::GigabitsPerSecond, 0.8, 0.9, Verdict::Worse);
    }
}
