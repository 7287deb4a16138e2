//! A plot of latency over payload, both by their logarithm, as SVG: a solid line for calls, a dashed one for the raw
//! round trip, in one colour for each fabric.
//!
//! The SVG has colours for light and for dark surroundings, and needs no script.

use std::fmt::Write;

/// The curve of one fabric: its name and its points.
#[derive(Clone, Debug, PartialEq)]
pub struct FabricCurve {
    pub name: String,
    pub points: Vec<CurvePoint>,
}

/// The medians of one payload size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    pub bytes: f64,
    pub call_ns: f64,
    pub raw_ns: f64,
}

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 500.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 780.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 440.0;
/// Width of a fabric's entry in the legend.
const LEGEND_STEP: f64 = 175.0;
/// Colours of the fabrics, for light surroundings and for dark ones. A plot has at most as many fabrics.
const COLOURS: [(&str, &str); 4] =
    [("#1f5fbf", "#74a9ff"), ("#b8500a", "#ff9d57"), ("#0f7a4d", "#4cc38a"), ("#7a3fb5", "#c09bf0")];

/// A logarithmic axis: maps a value to a position.
#[derive(Clone, Copy, Debug)]
struct Scale {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Scale {
    fn at(&self, value: f64) -> f64 {
        let share = (value / self.from).ln() / (self.to / self.from).ln();
        self.start + share * (self.end - self.start)
    }
}

/// Draws the plot; an empty one if there is no point to show.
pub fn svg(title: &str, series: &[FabricCurve]) -> String {
    // A payload or a time of 0 has no logarithm.
    let shown: Vec<FabricCurve> = series.iter().take(COLOURS.len()).map(positive).collect();
    let points = || shown.iter().flat_map(|series| &series.points);
    let (bytes, times) =
        (points().map(|point| point.bytes), points().flat_map(|point| [point.call_ns, point.raw_ns]));
    let (least, most) = range(bytes).unwrap_or((64.0, 5e6));
    let (low, high) = decades(range(times).unwrap_or((100.0, 1e6)));
    let x = Scale { from: least, to: most.max(least * 10.0), start: LEFT, end: RIGHT };
    let y = Scale { from: low, to: high, start: BOTTOM, end: TOP };

    let mut payloads: Vec<f64> = points().map(|point| point.bytes).collect();
    payloads.sort_by(f64::total_cmp);
    payloads.dedup();
    let mut text = head(title);
    text += &grid(x, y, &payloads);
    for (number, series) in shown.iter().enumerate() {
        text += &legend(number, &series.name);
        text += &line(number, series, x, y);
    }
    text + "</svg>\n"
}

fn positive(series: &FabricCurve) -> FabricCurve {
    let has_logarithm = |point: &&CurvePoint| point.bytes > 0.0 && point.call_ns > 0.0 && point.raw_ns > 0.0;
    FabricCurve {
        name: series.name.clone(),
        points: series.points.iter().filter(has_logarithm).copied().collect(),
    }
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range: Option<(f64, f64)>, value| match range {
        None => Some((value, value)),
        Some((least, most)) => Some((least.min(value), most.max(value))),
    })
}

/// The powers of ten around a range; two of them at least.
fn decades((least, most): (f64, f64)) -> (f64, f64) {
    let (low, high) = (least.log10().floor(), most.log10().ceil());
    (10f64.powf(low), 10f64.powf(high.max(low + 1.0)))
}

fn head(title: &str) -> String {
    let (mut light, mut dark) = (String::new(), String::new());
    for (number, (on_light, on_dark)) in COLOURS.iter().enumerate() {
        let _ = write!(light, " --c{number}: {on_light};");
        let _ = write!(dark, " --c{number}: {on_dark};");
    }
    let title = escaped(title);
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="system-ui, sans-serif" font-size="13">
<title>{title}</title>
<style>
svg {{ --text: #333; --grid: #ddd;{light} }}
@media (prefers-color-scheme: dark) {{ svg {{ --text: #ccc; --grid: #444;{dark} }} }}
text {{ fill: var(--text); }}
.grid {{ stroke: var(--grid); }}
.line {{ fill: none; stroke-width: 2; }}
.raw {{ stroke-dasharray: 5 4; }}
</style>
<text x="{LEFT}" y="22" font-size="15" font-weight="600">{title}</text>
<text x="{RIGHT}" y="22" text-anchor="end">solid: a call; dashed: the raw round trip</text>
"#
    )
}

fn grid(x: Scale, y: Scale, payloads: &[f64]) -> String {
    let mut text = String::new();
    for &bytes in payloads {
        let (at, below) = (x.at(bytes), BOTTOM + 20.0);
        let _ = writeln!(text, r#"<path class="grid" d="M{at:.1} {TOP}V{BOTTOM}"/>"#);
        let label = human_bytes(bytes);
        let _ = writeln!(text, r#"<text x="{at:.1}" y="{below}" text-anchor="middle">{label}</text>"#);
    }
    let mut ns = y.from;
    // A little more, because powers of ten are not exact.
    while ns <= y.to * 1.001 {
        let (at, left) = (y.at(ns), LEFT - 8.0);
        let _ = writeln!(text, r#"<path class="grid" d="M{LEFT} {at:.1}H{RIGHT}"/>"#);
        let label = human_ns(ns);
        let _ = writeln!(text, r#"<text x="{left}" y="{:.1}" text-anchor="end">{label}</text>"#, at + 4.0);
        ns *= 10.0;
    }
    let middle = (LEFT + RIGHT) / 2.0;
    let below = HEIGHT - 12.0;
    let _ = writeln!(
        text,
        r#"<text x="{middle}" y="{below}" text-anchor="middle">payload, there and back</text>"#
    );
    text
}

fn legend(number: usize, name: &str) -> String {
    let from = LEFT + LEGEND_STEP * number as f64;
    let (to, text, name) = (from + 26.0, from + 33.0, escaped(name));
    format!(
        "<path class=\"line\" stroke=\"var(--c{number})\" d=\"M{from} 46H{to}\"/>\n<text x=\"{text}\" y=\"50\">{name}</text>\n"
    )
}

fn line(number: usize, series: &FabricCurve, x: Scale, y: Scale) -> String {
    let path = |time: fn(&CurvePoint) -> f64| {
        let places =
            series.points.iter().map(|point| format!("{:.1} {:.1}", x.at(point.bytes), y.at(time(point))));
        format!("M{}", places.collect::<Vec<_>>().join("L"))
    };
    if series.points.is_empty() {
        return String::new();
    }
    let stroke = format!(r#"stroke="var(--c{number})""#);
    let mut text = format!("<path class=\"line raw\" {stroke} d=\"{}\"/>\n", path(|point| point.raw_ns));
    let _ = writeln!(text, r#"<path class="line" {stroke} d="{}"/>"#, path(|point| point.call_ns));
    for point in &series.points {
        let CurvePoint { bytes, call_ns, raw_ns } = *point;
        let (at, height, name) = (x.at(bytes), y.at(call_ns), escaped(&series.name));
        let (size, call, raw) = (human_bytes(bytes), human_ns(call_ns), human_ns(raw_ns));
        let _ = writeln!(
            text,
            r#"<circle cx="{at:.1}" cy="{height:.1}" r="3.5" fill="var(--c{number})"><title>{name}, {size}: {call}, raw {raw}</title></circle>"#
        );
    }
    text
}

/// Formats a payload size: the sizes of a sweep are multiples of powers of 1024.
pub fn human_bytes(bytes: f64) -> String {
    let shown = |value: f64, unit: &str| format!("{} {unit}", (value * 10.0).round() / 10.0);
    match bytes {
        bytes if bytes >= 1e6 => {
            let binary = (bytes / 1_048_576.0).fract() == 0.0;
            shown(bytes / if binary { 1_048_576.0 } else { 1e6 }, "MB")
        }
        bytes if bytes >= 1000.0 => {
            let binary = (bytes / 1024.0).fract() == 0.0;
            shown(bytes / if binary { 1024.0 } else { 1e3 }, "kB")
        }
        bytes => shown(bytes, "B"),
    }
}

/// Formats a time with three significant digits.
pub fn human_ns(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 999.5 => (ns, "ns"),
        ns if ns < 999.5e3 => (ns / 1e3, "us"),
        ns if ns < 999.5e6 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let decimals = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    let digits = format!("{value:.decimals$}");
    let digits =
        if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { &digits };
    format!("{digits} {unit}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn logarithmic_axis_spans_range_and_spaces_powers_evenly() {
        let scale = Scale { from: 100.0, to: 1e6, start: 500.0, end: 100.0 };
        assert!(is_near(scale.at(100.0), 500.0) && is_near(scale.at(1e6), 100.0));
        for (power, place) in [(1e3, 400.0), (1e4, 300.0), (1e5, 200.0)] {
            assert!(is_near(scale.at(power), place), "{power}");
        }
    }

    #[test]
    fn times_lie_between_powers_of_ten() {
        assert_eq!(decades((120.0, 2.4e6)), (100.0, 1e7));
        assert_eq!(decades((100.0, 1e6)), (100.0, 1e6));
        assert_eq!(decades((200.0, 200.0)), (100.0, 1000.0));
        assert_eq!(decades((100.0, 100.0)), (100.0, 1000.0));
    }

    #[test]
    fn sizes_and_times_are_shown_as_they_are_called() {
        let sizes = [64.0, 1024.0, 4096.0, 65536.0, 1e6, 1048576.0, 5242880.0].map(human_bytes);
        assert_eq!(sizes, ["64 B", "1 kB", "4 kB", "64 kB", "1 MB", "1 MB", "5 MB"]);
        let times = [140.0, 1452.3, 8200.0, 40_700.0, 243e3, 1.8e6, 999_999.0, 2e9].map(human_ns);
        assert_eq!(times, ["140 ns", "1.45 us", "8.2 us", "40.7 us", "243 us", "1.8 ms", "1 ms", "2 s"]);
    }

    #[test]
    fn every_fabric_has_two_lines_and_every_payload_a_label() {
        let point = |bytes, call_ns| CurvePoint { bytes, call_ns, raw_ns: call_ns / 1.1 };
        let series = |name: &str, factor: f64| FabricCurve {
            name: name.into(),
            points: [0.0, 64.0, 1024.0, 5242880.0].map(|bytes| point(bytes, factor * (100.0 + bytes))).into(),
        };
        let svg = svg("a <title>", &[series("shm", 1.0), series("tcp", 50.0)]);
        assert_eq!((svg.matches("class=\"line raw\"").count(), svg.matches("<circle").count()), (2, 6));
        for part in [
            ">64 B<",
            ">1 kB<",
            ">5 MB<",
            ">100 ns<",
            ">shm<",
            ">tcp<",
            "a &lt;title&gt;",
            "prefers-color-scheme",
        ] {
            assert!(svg.contains(part), "no {part} in {svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn nothing_to_show_is_an_empty_plot() {
        assert!(svg("nothing", &[]).ends_with("</svg>\n"));
        let empty = FabricCurve { name: "shm".into(), points: Vec::new() };
        assert!(!svg("nothing", &[empty]).contains("<circle"));
    }
}
