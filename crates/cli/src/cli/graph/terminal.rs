//! Draws a graph in characters: layers of boxes, and lines between them. A line runs straight down or changes its column
//! once, in a row where it touches no other line.

use sublet_proto::graph::{Component, Edge, Graph, Relation};
use sublet_proto::{saturating_u64, to_usize};

use super::labels::{condition, label};
use super::layout::{DrawingPoint, GraphLayout, Measures, flow, lay_out};

/// Height of a box: two lines of text and a frame.
const BOX_ROWS: usize = 4;
const LEGEND: &str =
    "* entry   ── trigger   ╌╌ memory: ▼ into it is written, ▼ from it is read   ━━ messages";

/// Draws the graph.
pub(super) fn draw(graph: &Graph) -> String {
    let widths = widths(graph);
    let sizes: Vec<(f64, f64)> = widths.iter().map(|width| (*width as f64, 1.0)).collect();
    let measures = Measures { sizes: &sizes, between_boxes: 4.0, between_lines: 2.0, between_layers: 2.0 };
    let layout = lay_out(graph, &measures);
    let plan = DrawingPlan::new(graph, &widths, &layout);
    let mut canvas = Canvas::new(plan.columns, plan.rows());
    for (wire, edge) in plan.wires.iter().zip(&graph.edges) {
        plan.draw_wire(wire, edge, &mut canvas);
    }
    for (index, component) in graph.components.iter().enumerate() {
        plan.draw_box(index, component, &mut canvas);
    }
    let name = |component: usize| graph.components[component].name.as_str();
    let conditions = graph.edges.iter().filter_map(|edge| {
        let condition = condition(edge)?;
        Some(format!("◇ {} ── {} {condition}\n", name(edge.from), name(edge.to)))
    });
    format!("{}\n{LEGEND}\n{}", canvas.text(), conditions.collect::<String>())
}

/// Widths of the boxes: each fits its text and has a column for every line that ends at it.
fn widths(graph: &Graph) -> Vec<usize> {
    let mut lines = vec![0; graph.components.len()];
    for edge in &graph.edges {
        lines[edge.from] += 1;
        lines[edge.to] += 1;
    }
    let text = |component| label(component).iter().map(|line| line.chars().count()).max().unwrap_or_default();
    graph.components.iter().zip(lines).map(|(component, lines)| text(component).max(lines) + 4).collect()
}

/// Rows and columns of boxes and lines.
struct DrawingPlan {
    columns: usize,
    boxes: Vec<BoxFrame>,
    wires: Vec<Wire>,
    /// First row of each layer, then the row after the last layer.
    layers: Vec<usize>,
}

/// A box.
struct BoxFrame {
    layer: usize,
    left: usize,
    width: usize,
}

/// Course of an edge.
struct Wire {
    /// Whether the arrow is at the upper end.
    is_upward: bool,
    /// Layer of the upper end.
    first_layer: usize,
    /// Column in each layer, and between two layers the row, below the upper boxes, of the change of column.
    columns: Vec<usize>,
    turns: Vec<Option<usize>>,
}

impl DrawingPlan {
    fn new(graph: &Graph, widths: &[usize], layout: &GraphLayout) -> DrawingPlan {
        let mut heights: Vec<f64> = layout.boxes.iter().map(|centre| centre.y).collect();
        heights.sort_by(f64::total_cmp);
        heights.dedup_by(|a, b| (*a - *b).abs() < 0.5);
        let layer = |y: f64| heights.partition_point(|height| *height < y - 0.5);
        let boxes: Vec<BoxFrame> = widths
            .iter()
            .zip(&layout.boxes)
            .map(|(&width, centre)| {
                let left = to_usize(saturating_u64((centre.x - width as f64 / 2.0).round()));
                BoxFrame { layer: layer(centre.y), left, width }
            })
            .collect();
        let mut wires: Vec<Wire> = graph
            .edges
            .iter()
            .zip(&layout.lines)
            .map(|(edge, line)| Wire::new(flow(edge), line, &boxes, &heights))
            .collect();
        settle_ends(graph, &boxes, &mut wires);
        let mut layers = vec![0];
        for layer in 0..heights.len() {
            let rows = settle_turns(layer, &mut wires);
            let is_last = layer + 1 == heights.len();
            layers.push(layers[layer] + BOX_ROWS + if is_last { 0 } else { rows + 2 });
        }
        debug_assert!(layers.is_sorted(), "the layers are not below each other: {layers:?}");
        let right = boxes.iter().map(|frame| frame.left + frame.width);
        let columns = right.chain(wires.iter().flat_map(|wire| wire.columns.iter().map(|column| column + 1)));
        DrawingPlan { columns: columns.max().unwrap_or_default(), boxes, wires, layers }
    }

    fn rows(&self) -> usize {
        self.layers.last().copied().unwrap_or_default()
    }

    fn draw_box(&self, index: usize, component: &Component, canvas: &mut Canvas) {
        let BoxFrame { layer, left, width } = self.boxes[index];
        debug_assert!(left + width <= self.columns, "box {index} of {width} at {left} of {}", self.columns);
        let top = self.layers[layer];
        let (upper, lower) = match component.memory() {
            Some(_) => (['╭', '╮'], ['╰', '╯']),
            None => (['┌', '┐'], ['└', '┘']),
        };
        canvas.write(left, top, &framed(upper, width));
        for (row, line) in (top + 1..).zip(label(component)) {
            canvas.write(left, row, &format!("│ {line:^wide$} │", wide = width - 4));
        }
        canvas.write(left, top + BOX_ROWS - 1, &framed(lower, width));
    }

    fn draw_wire(&self, wire: &Wire, edge: &Edge, canvas: &mut Canvas) {
        let pen = match edge.relation {
            Relation::Trigger => Pen::Solid,
            Relation::Access(_) => Pen::Dashed,
            Relation::Message => Pen::Heavy,
        };
        let last = wire.columns.len() - 1;
        for (step, turn) in wire.turns.iter().enumerate() {
            let layer = wire.first_layer + step;
            // A line passes straight behind the boxes of a layer between its ends.
            let from = self.layers[layer] + if step == 0 { BOX_ROWS } else { 0 };
            let to = self.layers[layer + 1] - usize::from(step + 1 == last);
            let (column, next) = (wire.columns[step], wire.columns[step + 1]);
            let turn = turn.map_or(to, |turn| self.layers[layer] + BOX_ROWS + 1 + turn);
            canvas.down(column, from, turn, pen);
            canvas.across(column, next, turn, pen);
            canvas.down(next, turn, to, pen);
        }
        let top = self.layers[wire.first_layer] + BOX_ROWS;
        let bottom = self.layers[wire.first_layer + last] - 1;
        let both = edge.relation == Relation::Message;
        if edge.condition.is_some() {
            canvas.write(wire.columns[0], top, "◇");
        }
        if wire.is_upward || both {
            canvas.write(wire.columns[0], top, "▲");
        }
        if !wire.is_upward || both {
            canvas.write(wire.columns[last], bottom, "▼");
        }
    }
}

fn framed(corners: [char; 2], width: usize) -> String {
    debug_assert!(width >= 4, "a box of {width} columns has no place for a frame and margins");
    let [left, right] = corners;
    format!("{left}{}{right}", "─".repeat(width - 2))
}

impl Wire {
    fn new((from, to): (usize, usize), line: &[DrawingPoint], boxes: &[BoxFrame], heights: &[f64]) -> Wire {
        let is_upward = boxes[from].layer > boxes[to].layer;
        let (upper, lower) = if is_upward { (to, from) } else { (from, to) };
        let (first_layer, last_layer) = (boxes[upper].layer, boxes[lower].layer);
        debug_assert!(first_layer <= last_layer, "an edge leads down from {first_layer} to {last_layer}");
        let columns = (first_layer..=last_layer)
            .map(|layer| to_usize(saturating_u64(at(line, heights[layer]).round())));
        let columns: Vec<usize> = columns.collect();
        let turns = vec![None; columns.len().saturating_sub(1)];
        Wire { is_upward, first_layer, columns, turns }
    }

    /// Columns above and below, if the line leads from this layer to the next.
    fn step(&self, layer: usize) -> Option<(usize, usize, usize)> {
        let step = layer.checked_sub(self.first_layer)?;
        Some((step, *self.columns.get(step)?, *self.columns.get(step + 1)?))
    }
}

/// Column of a line at this height.
fn at(line: &[DrawingPoint], y: f64) -> f64 {
    let (Some(first), Some(last)) = (line.first(), line.last()) else { return 0.0 };
    for pair in line.windows(2) {
        let ([a, b], (low, high)) =
            ([pair[0], pair[1]], (pair[0].y.min(pair[1].y), pair[0].y.max(pair[1].y)));
        if (low..=high).contains(&y) && high > low {
            return a.x + (b.x - a.x) * (y - a.y) / (b.y - a.y);
        }
    }
    if (first.y - y).abs() < (last.y - y).abs() { first.x } else { last.x }
}

/// Assigns a column to each line that ends at a box, in the order of the other ends.
fn settle_ends(graph: &Graph, boxes: &[BoxFrame], wires: &mut [Wire]) {
    for (index, frame) in boxes.iter().enumerate() {
        for is_below in [true, false] {
            let mut ends: Vec<(usize, usize)> = Vec::new();
            for (number, (edge, wire)) in graph.edges.iter().zip(wires.iter()).enumerate() {
                let touches = edge.from == index || edge.to == index;
                let last = wire.columns.len() - 1;
                let leads_down = wire.first_layer == frame.layer;
                if touches && leads_down == is_below {
                    ends.push((
                        wire.columns[if is_below { 1.min(last) } else { last.saturating_sub(1) }],
                        number,
                    ));
                }
            }
            ends.sort_unstable();
            let count = ends.len();
            for (place, (_, number)) in ends.into_iter().enumerate() {
                let column = frame.left + 1 + ((2 * place + 1) * (frame.width - 2)) / (2 * count);
                debug_assert!(
                    (frame.left + 1..frame.left + frame.width - 1).contains(&column),
                    "edge {number} ends at {column}, beside box {index} of {} at {}",
                    frame.width,
                    frame.left
                );
                let columns = &mut wires[number].columns;
                let end = if is_below { 0 } else { columns.len() - 1 };
                columns[end] = column;
            }
        }
    }
}

/// Assigns a row to each line that changes its column below this layer, and returns the number of rows. A line that comes
/// down in a column where another continues gets the earlier row.
fn settle_turns(layer: usize, wires: &mut [Wire]) -> usize {
    let turning: Vec<(usize, usize, usize, usize)> = wires
        .iter()
        .enumerate()
        .filter_map(|(number, wire)| {
            wire.step(layer).map(|(step, above, below)| (number, step, above, below))
        })
        .filter(|(_, _, above, below)| above != below)
        .collect();
    let is_before = |a: usize, b: usize| a != b && turning[a].2 == turning[b].3;
    let mut rows: Vec<Option<usize>> = vec![None; turning.len()];
    let mut taken: Vec<Vec<(usize, usize)>> = Vec::new();
    for _ in 0..turning.len() {
        let left = || (0..turning.len()).filter(|&wire| rows[wire].is_none());
        let is_next = |&wire: &usize| !left().any(|other| is_before(other, wire));
        // A cycle of lines that must each precede the other is broken at any line.
        let Some(wire) = left().find(is_next).or_else(|| left().next()) else { break };
        let (above, below) = (turning[wire].2, turning[wire].3);
        let (start, end) = (above.min(below), above.max(below));
        let earliest =
            (0..turning.len()).filter(|&other| is_before(other, wire)).filter_map(|other| rows[other]);
        let mut row = earliest.max().map_or(0, |row| row + 1);
        while taken.get(row).is_some_and(|spans| spans.iter().any(|&(a, b)| start <= b && a <= end)) {
            row += 1;
        }
        taken.resize(taken.len().max(row + 1), Vec::new());
        taken[row].push((start, end));
        rows[wire] = Some(row);
    }
    debug_assert!(rows.iter().all(Option::is_some), "a line below layer {layer} has no row: {rows:?}");
    for ((number, step, ..), row) in turning.into_iter().zip(rows) {
        wires[number].turns[step] = row;
    }
    taken.len()
}

#[derive(Clone, Copy, PartialEq)]
enum Pen {
    Solid,
    Dashed,
    Heavy,
}

#[derive(Clone, Copy)]
enum Cell {
    Text(char),
    /// Sides of the cell that lines touch.
    Lines {
        sides: u8,
        pen: Pen,
    },
}

const UP: u8 = 1;
const RIGHT: u8 = 2;
const DOWN: u8 = 4;
const LEFT: u8 = 8;

/// Characters, indexed by the sides that lines touch.
const LIGHT: [char; 16] = [' ', '╵', '╶', '└', '╷', '│', '┌', '├', '╴', '┘', '─', '┴', '┐', '┤', '┬', '┼'];
const HEAVY: [char; 16] = [' ', '╹', '╺', '┗', '╻', '┃', '┏', '┣', '╸', '┛', '━', '┻', '┓', '┫', '┳', '╋'];

struct Canvas(Vec<Vec<Cell>>);

impl Canvas {
    fn new(columns: usize, rows: usize) -> Canvas {
        Canvas(vec![vec![Cell::Text(' '); columns]; rows])
    }

    fn write(&mut self, column: usize, row: usize, text: &str) {
        for (cell, character) in self.0[row][column..].iter_mut().zip(text.chars()) {
            *cell = Cell::Text(character);
        }
    }

    fn down(&mut self, column: usize, from: usize, to: usize, pen: Pen) {
        for row in from..to {
            self.join(column, row, DOWN, pen);
            self.join(column, row + 1, UP, pen);
        }
    }

    fn across(&mut self, from: usize, to: usize, row: usize, pen: Pen) {
        for column in from.min(to)..from.max(to) {
            self.join(column, row, RIGHT, pen);
            self.join(column + 1, row, LEFT, pen);
        }
    }

    fn join(&mut self, column: usize, row: usize, side: u8, pen: Pen) {
        debug_assert!(side.is_power_of_two() && side <= LEFT, "{side} is no side of a cell");
        let Some(cell) = self.0.get_mut(row).and_then(|row| row.get_mut(column)) else { return };
        *cell = match *cell {
            Cell::Lines { sides, pen: before } if before == pen => Cell::Lines { sides: sides | side, pen },
            // Lines of two kinds cross here.
            Cell::Lines { sides, .. } => Cell::Lines { sides: sides | side, pen: Pen::Solid },
            Cell::Text(_) => Cell::Lines { sides: side, pen },
        };
    }

    fn text(&self) -> String {
        let line = |row: &Vec<Cell>| row.iter().map(|cell| cell.character()).collect::<String>();
        self.0.iter().map(|row| line(row).trim_end().to_owned() + "\n").collect()
    }
}

impl Cell {
    fn character(self) -> char {
        match self {
            Cell::Text(character) => character,
            Cell::Lines { sides, pen: Pen::Dashed } if sides == UP | DOWN => '┆',
            Cell::Lines { sides, pen: Pen::Dashed } if sides == LEFT | RIGHT => '╌',
            Cell::Lines { sides, pen: Pen::Heavy } => HEAVY[usize::from(sides)],
            Cell::Lines { sides, .. } => LIGHT[usize::from(sides)],
        }
    }
}
