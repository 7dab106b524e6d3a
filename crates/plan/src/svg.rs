//! How full each node is, as a picture: a column for each node, a row for each mode.
//!
//! The file needs nothing beside it and follows its reader's light or dark scheme.

use std::fmt::Write;

use ambit_model::markup::escaped;

use super::chart::{Axis, nodes};
use super::estimate::{ModePlan, Plan};

const WIDTH: usize = 960;
const LEFT: usize = 76;
const TOP: usize = 92;
/// Height of a whole node.
const COLUMN_HEIGHT: usize = 96;
const COLUMNS_A_ROW: usize = 40;
const PITCH: usize = 21;
const COLUMN_WIDTH: usize = 16;
/// Between rows of columns.
const ROW_GAP: usize = 22;
/// Title and figures of a mode.
const HEADER: usize = 48;
/// Columns of one mode; the rest is counted.
const COLUMNS_MAX: usize = 400;

const STYLE: &str = "
  text { font: 13px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1f2328 }
  .title { font-size: 18px; font-weight: 600 }
  .mode { font-size: 15px; font-weight: 600 }
  .quiet { font-size: 12px; fill: #59636e }
  .paper { fill: #ffffff }
  .free { fill: #eaeef2; stroke: #afb8c1 }
  .application { fill: #2f6fd0 }
  .mesh { fill: #e07b00 }
  .kept { fill: #d1d9e0 }
  .limit { stroke: #59636e; stroke-dasharray: 3 3 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .quiet { fill: #9198a1 }
    .paper { fill: #0d1117 }
    .free { fill: #1c2430; stroke: #4a5361 }
    .application { fill: #4c8df0 }
    .mesh { fill: #f0973a }
    .kept { fill: #343c48 }
    .limit { stroke: #9198a1 }
  }
";

/// The whole picture.
pub fn svg(plan: &Plan) -> String {
    let axis = Axis::of(plan);
    let mut body = String::new();
    let mut top = TOP;
    for mode in &plan.modes {
        top += draw_mode(&mut body, plan, mode, axis, top);
    }
    let style = STYLE.trim_end();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{top}\" \
         viewBox=\"0 0 {WIDTH} {top}\" role=\"img\" aria-label=\"How full each node is\">\n\
         <style>{style}\n</style>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{top}\"/>\n\
         {}{body}</svg>\n",
        legend(plan, axis)
    )
}

fn legend(plan: &Plan, axis: Axis) -> String {
    let node = &plan.node_type;
    let (capacity, allocatable) = (axis.shown(node.capacity), axis.shown(node.allocatable));
    let kept = axis.shown(node.capacity.less(node.allocatable));
    let mut text = format!(
        "<text class=\"title\" x=\"20\" y=\"32\">How full each node is</text>\n\
         <text class=\"quiet\" x=\"20\" y=\"52\">{}: each column is a node of {capacity}, of which \
         pods may request {allocatable}</text>\n",
        escaped(&node.name)
    );
    let entries = [
        ("application", "application", 20),
        ("mesh", "mesh", 130),
        ("free", "free", 206),
        ("kept", &*format!("kept back for the system ({kept})"), 274),
    ];
    for (class, name, x) in entries {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "<rect class=\"{class}\" x=\"{x}\" y=\"66\" width=\"12\" height=\"12\"/>\
             <text x=\"{}\" y=\"77\">{name}</text>",
            x + 18
        );
    }
    text
}

/// Draws one mode and says how high it is.
fn draw_mode(text: &mut String, plan: &Plan, mode: &ModePlan, axis: Axis, top: usize) -> usize {
    let placed = mode.placed;
    let price = placed.monthly.map(|it| format!(", {it} a month")).unwrap_or_default();
    let _ = writeln!(
        text,
        "<text class=\"mode\" x=\"20\" y=\"{}\">{}: {}{price}</text>\n\
         <text class=\"quiet\" x=\"20\" y=\"{}\">Whole pods. As a liquid: {} with all {}, {} with \
         what pods may request. {} stay free.</text>",
        top + 18,
        escaped(mode.mode),
        nodes(placed.nodes as usize),
        top + 36,
        nodes(mode.ideal.nodes as usize),
        axis.name(),
        mode.allocatable.nodes,
        axis.shown(
            plan.node_type.allocatable.times(u64::from(placed.nodes)).less(placed.requested)
        )
    );
    let shown = mode.nodes.len().min(COLUMNS_MAX);
    let rows = shown.div_ceil(COLUMNS_A_ROW).max(1);
    for row in 0..rows {
        let y = top + HEADER + row * (COLUMN_HEIGHT + ROW_GAP);
        draw_row(text, plan, mode, axis, row, y);
    }
    let mut height = HEADER + rows * (COLUMN_HEIGHT + ROW_GAP) + 14;
    if mode.nodes.len() > shown {
        let y = top + height;
        let more = mode.nodes.len() - shown;
        let _ = writeln!(text, "<text class=\"quiet\" x=\"20\" y=\"{y}\">and {more} more</text>");
        height += 24;
    }
    height
}

fn draw_row(text: &mut String, plan: &Plan, mode: &ModePlan, axis: Axis, row: usize, y: usize) {
    let whole = axis.part(plan.node_type.capacity);
    let high = |amount: u64| {
        (u128::from(amount) * COLUMN_HEIGHT as u128 * 10 / u128::from(whole)) as usize
    };
    let pixels = |tenths: usize| format!("{}.{}", tenths / 10, tenths % 10);
    let first = row * COLUMNS_A_ROW;
    let drawn = mode.nodes.iter().enumerate().take(COLUMNS_MAX).skip(first).take(COLUMNS_A_ROW);
    let bottom = (y + COLUMN_HEIGHT) * 10;
    let limit = high(axis.part(plan.node_type.allocatable));
    let mut right = LEFT;
    for (index, node) in drawn {
        let x = LEFT + (index - first) * PITCH;
        right = x + COLUMN_WIDTH;
        let (used, mesh) = (axis.part(node.requested), axis.part(node.mesh));
        let (application, used) = (high(used - mesh), high(used));
        let mut column = |class: &str, from: usize, to: usize| {
            let (y, height) = (pixels(bottom - to), pixels(to - from));
            let _ = write!(
                text,
                "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{COLUMN_WIDTH}\" \
                 height=\"{height}\"/>"
            );
        };
        column("kept", limit, COLUMN_HEIGHT * 10);
        column("free", 0, limit);
        column("application", 0, application);
        column("mesh", application, used);
        let number = index + 1;
        if number == 1 || number.is_multiple_of(5) {
            let _ = write!(
                text,
                "<text class=\"quiet\" text-anchor=\"middle\" x=\"{}\" y=\"{}\">{number}</text>",
                x + COLUMN_WIDTH / 2,
                y + COLUMN_HEIGHT + 15
            );
        }
        text.push('\n');
    }
    let at = pixels(bottom - limit);
    let label = axis.shown(plan.node_type.allocatable);
    let _ = writeln!(
        text,
        "<line class=\"limit\" x1=\"{}\" y1=\"{at}\" x2=\"{}\" y2=\"{at}\"/>\
         <text class=\"quiet\" text-anchor=\"end\" x=\"{}\" y=\"{}\">{label}</text>",
        LEFT - 6,
        right + 6,
        LEFT - 10,
        (bottom - limit) / 10 + 4
    );
}
