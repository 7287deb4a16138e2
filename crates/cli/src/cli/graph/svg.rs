//! Draws a graph as SVG: compute components are boxes, memory components have round ends.

use std::fmt::Write;

use sublet_proto::graph::{Component, Graph, Relation, Role};

use super::labels::{condition, label};
use super::layout::{DrawingPoint, Measures, lay_out};

const CHARACTER: f64 = 7.8;
const PADDING: f64 = 14.0;
const HEIGHT: f64 = 46.0;
const MARGIN: f64 = 12.0;

const STYLE: &str = "\
text { font: 13px ui-monospace, monospace; text-anchor: middle; fill: #1f2328 }
.what { font-size: 11px; fill: #59636e }
rect { fill: #fff; stroke: #1f2328 }
.memory { fill: #ddf4ff; stroke: #0969da }
.entry { stroke-width: 2.5 }
path { fill: none; stroke: #1f2328; stroke-width: 1.3 }
.access { stroke: #0969da; stroke-dasharray: 5 4 }
.message { stroke: #8250df; stroke-width: 2 }
.case { fill: #fff; stroke: #1f2328 }
";

/// Draws the graph.
pub(super) fn draw(graph: &Graph) -> String {
    let sizes: Vec<(f64, f64)> = graph.components.iter().map(size).collect();
    let measures = Measures { sizes: &sizes, between_boxes: 30.0, between_lines: 14.0, between_layers: 56.0 };
    let layout = lay_out(graph, &measures);
    debug_assert_eq!(layout.lines.len(), graph.edges.len(), "lines for the edges of {}", graph.name);
    let (width, height) = (layout.width + 2.0 * MARGIN, layout.height + 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" \
         role=\"img\">\n<title>{}</title>\n<style>\n{STYLE}</style>\n<defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"8\" \
         refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" orient=\"auto-start-reverse\"><path d=\"M0 0 8 4 0 8z\" \
         style=\"fill: context-stroke; stroke: none\"/></marker><marker id=\"case\" viewBox=\"0 0 10 10\" refX=\"0\" refY=\"5\" \
         markerWidth=\"9\" markerHeight=\"9\" orient=\"auto\"><path class=\"case\" d=\"M0 5 5 1 10 5 5 9z\"/></marker></defs>\n<g transform=\"translate({MARGIN} {MARGIN})\">\n",
        escaped(&graph.name)
    );
    for (edge, points) in graph.edges.iter().zip(&layout.lines) {
        let (class, start) = match edge.relation {
            Relation::Trigger if edge.condition.is_some() => ("trigger", " marker-start=\"url(#case)\""),
            Relation::Trigger => ("trigger", ""),
            Relation::Access(_) => ("access", ""),
            Relation::Message => ("message", " marker-start=\"url(#arrow)\""),
        };
        let path = path(points);
        let title = condition(edge).map(|condition| format!("<title>{}</title>", escaped(&condition)));
        let title = title.unwrap_or_default();
        let _ = writeln!(
            svg,
            "<path class=\"{class}\" d=\"{path}\"{start} marker-end=\"url(#arrow)\">{title}</path>"
        );
    }
    for ((component, size), centre) in graph.components.iter().zip(&sizes).zip(&layout.boxes) {
        svg += &drawn_box(component, *size, *centre);
    }
    svg + "</g>\n</svg>\n"
}

fn size(component: &Component) -> (f64, f64) {
    let widest = label(component).iter().map(|line| line.chars().count()).max().unwrap_or_default();
    (widest as f64 * CHARACTER + 2.0 * PADDING, HEIGHT)
}

fn drawn_box(component: &Component, (width, height): (f64, f64), centre: DrawingPoint) -> String {
    let class = match &component.role {
        Role::Compute(compute) if compute.is_entry => "entry",
        Role::Compute(_) => "compute",
        Role::Memory(_) => "memory",
    };
    let round = if class == "memory" { height / 2.0 } else { 3.0 };
    let [name, what] = label(component).map(|line| escaped(&line));
    let (left, top) = (centre.x - width / 2.0, centre.y - height / 2.0);
    let DrawingPoint { x, y } = centre;
    let (upper, lower) = (y - 3.0, y + 14.0);
    format!(
        "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"{round}\"/>\
         <text x=\"{x:.1}\" y=\"{upper:.1}\">{name}</text><text class=\"what\" x=\"{x:.1}\" y=\"{lower:.1}\">{what}</text>\n"
    )
}

/// Path through the points with rounded bends, each from the middle of one segment to the middle of the next.
fn path(points: &[DrawingPoint]) -> String {
    let [first, between @ .., last] = points else { return String::new() };
    let mut path = format!("M{:.1} {:.1}", first.x, first.y);
    for (bend, next) in between.iter().zip(points.iter().skip(2)) {
        let is_last = std::ptr::eq(next, last);
        let (x, y) =
            if is_last { (next.x, next.y) } else { ((bend.x + next.x) / 2.0, (bend.y + next.y) / 2.0) };
        let _ = write!(path, "Q{:.1} {:.1} {x:.1} {y:.1}", bend.x, bend.y);
    }
    if between.is_empty() {
        let _ = write!(path, "L{:.1} {:.1}", last.x, last.y);
    }
    path
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
