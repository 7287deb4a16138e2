//! Draws a run's memory over time, as characters or as SVG: used memory, and above it leased but unused memory.

use std::fmt::Write;

use serde::Serialize;
use sublet_proto::v1;

use super::svg::escaped;
use crate::cli::parse::{show_bytes, show_ns};

/// Size of the drawing in characters.
const ROWS: usize = 10;
const COLUMNS: std::ops::RangeInclusive<usize> = 20..=100;
/// Width without a terminal.
const USUAL_WIDTH: u16 = 80;
const LABEL: usize = 10;
/// Characters that are filled by 0 to 8 eighths.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const LEASED: char = '░';

/// Size of the SVG.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 84.0;
const TOP: f64 = 34.0;
const MARGIN: f64 = 28.0;

const STYLE: &str = "\
text { font: 12px ui-monospace, monospace; fill: #1f2328 }
.y { text-anchor: end }
.x { text-anchor: end }
.leased { fill: #ddf4ff; stroke: #0969da }
.used { fill: #0969da; stroke: none }
line { stroke: #d1d9e0 }
";

/// Maximum of memory from a point in time until the next point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct MemoryPoint {
    at_us: u64,
    allocated_bytes: u64,
    used_bytes: u64,
}

impl From<v1::UsagePoint> for MemoryPoint {
    fn from(point: v1::UsagePoint) -> MemoryPoint {
        let v1::UsagePoint { at_us, allocated_bytes, used_bytes } = point;
        MemoryPoint { at_us, allocated_bytes, used_bytes }
    }
}

/// Draws leased and used memory as characters, as wide as the terminal. Empty if there is nothing to draw.
pub(super) fn draw(points: &[MemoryPoint]) -> String {
    let terminal = rustix::termios::tcgetwinsize(std::io::stdout());
    let width = terminal.map_or(0, |size| size.ws_col);
    let width = if width == 0 { USUAL_WIDTH } else { width };
    let columns = usize::from(width).saturating_sub(LABEL + 1);
    draw_in(points, columns.clamp(*COLUMNS.start(), *COLUMNS.end()))
}

fn draw_in(points: &[MemoryPoint], columns: usize) -> String {
    let (most, end_us) = extent(points);
    if most == 0 {
        return String::new();
    }
    let slots: Vec<MemoryPoint> = (0..columns as u64)
        .map(|column| {
            let at = |column: u64| {
                let at_us = u128::from(end_us) * u128::from(column) / columns as u128;
                u64::try_from(at_us).unwrap_or(u64::MAX)
            };
            most_within(points, at(column), at(column + 1))
        })
        .collect();
    let eighths = |bytes: u64| (u128::from(bytes) * (8 * ROWS) as u128).div_ceil(u128::from(most)) as usize;
    let mut text = String::new();
    for row in (0..ROWS).rev() {
        let label = match row {
            _ if row + 1 == ROWS => show_bytes(most),
            _ if row == ROWS / 2 - 1 => show_bytes(most / 2),
            _ => String::new(),
        };
        let cell = |slot: &MemoryPoint| {
            let filled = |bytes: u64| eighths(bytes).saturating_sub(8 * row).min(8);
            match (filled(slot.used_bytes), filled(slot.allocated_bytes)) {
                (0, 0) => ' ',
                (0, _) => LEASED,
                (used, _) => EIGHTHS[used],
            }
        };
        let line: String = slots.iter().map(cell).collect();
        let _ = writeln!(text, "{label:>LABEL$}│{}", line.trim_end());
    }
    let (axis, end) = ("─".repeat(columns), show_ns(end_us.saturating_mul(1000)));
    let _ = writeln!(text, "{:>LABEL$}└{axis}", "0");
    let _ = writeln!(text, "{:LABEL$} {:columns$}", "", format!("0{end:>width$}", width = columns - 1));
    text + &format!("{:LABEL$} {} used   {LEASED} leased and not used\n", "", EIGHTHS[8])
}

/// Draws leased and used memory as SVG.
pub(super) fn draw_svg(title: &str, points: &[MemoryPoint]) -> String {
    let (most, end_us) = extent(points);
    let (inner_width, inner_height) = (WIDTH - LEFT - MARGIN, HEIGHT - TOP - MARGIN);
    let x = |at_us: u64| LEFT + inner_width * at_us as f64 / end_us as f64;
    let y = |bytes: u64| TOP + inner_height * (1.0 - bytes as f64 / most.max(1) as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         role=\"img\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n<text x=\"{LEFT}\" y=\"20\">{title}</text>\n",
        title = escaped(title)
    );
    for part in 0..=4_u64 {
        let bytes = u64::try_from(u128::from(most) * u128::from(part) / 4).unwrap_or(most);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{0:.1}\" x2=\"{1:.1}\" y2=\"{0:.1}\"/><text class=\"y\" x=\"{2:.1}\" y=\"{3:.1}\">{4}</text>",
            y(bytes),
            LEFT + inner_width,
            LEFT - 6.0,
            y(bytes) + 4.0,
            show_bytes(bytes)
        );
    }
    let stairs = |of: fn(&MemoryPoint) -> u64| {
        let mut path = format!("M{:.1} {:.1}", x(0), y(0));
        for (index, point) in points.iter().enumerate() {
            let until = points.get(index + 1).map_or(end_us, |next| next.at_us);
            let level = y(of(point));
            let _ = write!(path, "L{:.1} {level:.1}L{:.1} {level:.1}", x(point.at_us), x(until));
        }
        path + &format!("L{:.1} {:.1}z", x(end_us), y(0))
    };
    for (class, path) in [("leased", stairs(|at| at.allocated_bytes)), ("used", stairs(|at| at.used_bytes))] {
        let _ = writeln!(svg, "<path class=\"{class}\" d=\"{path}\"/>");
    }
    let (right, bottom) = (LEFT + inner_width, TOP + inner_height + 18.0);
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{bottom:.1}\">0</text>");
    let end = show_ns(end_us.saturating_mul(1000));
    let _ = writeln!(svg, "<text class=\"x\" x=\"{right:.1}\" y=\"{bottom:.1}\">{end}</text>");
    for (class, what, at) in [("leased", "leased", right - 150.0), ("used", "used", right - 60.0)] {
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{at:.1}\" y=\"10\" width=\"12\" height=\"12\"/><text x=\"{:.1}\" y=\"20\">{what}</text>",
            at + 18.0
        );
    }
    svg + "</svg>\n"
}

/// Maximum bytes, and the time of the last point, at least 1 microsecond.
fn extent(points: &[MemoryPoint]) -> (u64, u64) {
    let most = points.iter().map(|point| point.allocated_bytes.max(point.used_bytes)).max().unwrap_or(0);
    (most, points.last().map_or(1, |last| last.at_us.max(1)))
}

/// Maximum of memory in a period.
fn most_within(points: &[MemoryPoint], from_us: u64, to_us: u64) -> MemoryPoint {
    debug_assert!(from_us <= to_us, "a period from {from_us} us to {to_us} us");
    // The point before the period still holds at its start.
    let first = points.partition_point(|point| point.at_us <= from_us).saturating_sub(1);
    let within = points[first..].iter().enumerate().take_while(|(index, at)| *index == 0 || at.at_us < to_us);
    let most = |of: fn(&MemoryPoint) -> u64| within.clone().map(|(_, point)| of(point)).max().unwrap_or(0);
    MemoryPoint {
        at_us: from_us,
        allocated_bytes: most(|at| at.allocated_bytes),
        used_bytes: most(|at| at.used_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at_us: u64, allocated_bytes: u64, used_bytes: u64) -> MemoryPoint {
        MemoryPoint { at_us, allocated_bytes, used_bytes }
    }

    #[test]
    fn draws_used_memory_full_and_leased_memory_light() {
        let points = [point(0, 80, 0), point(500, 80, 40), point(1000, 0, 0)];
        let text = draw_in(&points, 20);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), ROWS + 3);
        assert_eq!(lines[0], format!("{:>LABEL$}│{}", "80 B", "░".repeat(20)));
        let lower = format!("{:>LABEL$}│{}{}", "40 B", "░".repeat(10), "█".repeat(10));
        assert_eq!(lines[ROWS / 2], lower);
        assert!(lines[ROWS + 1].ends_with("1.0 ms"), "{text}");
        assert_eq!(draw_in(&[], 20), "");
        assert_eq!(draw_in(&[point(0, 0, 0)], 20), "", "nothing was leased");
    }

    #[test]
    fn draws_peaks_shorter_than_a_column() {
        let mut points: Vec<MemoryPoint> = (0..200).map(|at| point(at * 10, 100, 10)).collect();
        points[133].used_bytes = 100;
        let text = draw_in(&points, 20);
        assert_eq!(text.lines().next().unwrap().matches('█').count(), 1, "{text}");
    }

    #[test]
    fn svg_has_both_curves_and_an_escaped_title() {
        let points = [point(0, 80, 20), point(500, 80, 40), point(1000, 0, 0)];
        let svg = draw_svg("<run>", &points);
        assert!(svg.contains("<title>&lt;run&gt;</title>") && !svg.contains("<run>"));
        assert!(svg.contains("class=\"leased\" d=\"M") && svg.contains("class=\"used\" d=\"M"));
        assert!(!svg.contains("NaN") && !draw_svg("empty", &[]).contains("NaN"));
    }
}
