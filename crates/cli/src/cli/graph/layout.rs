//! Lays out the components of a graph in layers by dagre, so that triggers and data flow downwards with few crossings.

use dagre::graph::{Graph as Layered, GraphOptions};
use dagre::{EdgeLabel, LayoutOptions, NodeLabel, layout};
use sublet_proto::graph::{Edge, Graph, MemoryRights, Relation};

/// A point, in the unit of the drawing, from its upper left corner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DrawingPoint {
    pub(super) x: f64,
    pub(super) y: f64,
}

/// Sizes of boxes and distances between them.
pub(super) struct Measures<'a> {
    /// Width and height of each component's box.
    pub(super) sizes: &'a [(f64, f64)],
    pub(super) between_boxes: f64,
    pub(super) between_lines: f64,
    pub(super) between_layers: f64,
}

/// Positions of boxes and lines, in the graph's order of components and edges.
pub(super) struct GraphLayout {
    pub(super) width: f64,
    pub(super) height: f64,
    /// Centres of the boxes.
    pub(super) boxes: Vec<DrawingPoint>,
    /// Points of each edge, from its start to its arrow.
    pub(super) lines: Vec<Vec<DrawingPoint>>,
}

/// Lays a graph out.
pub(super) fn lay_out(graph: &Graph, measures: &Measures<'_>) -> GraphLayout {
    debug_assert_eq!(measures.sizes.len(), graph.components.len(), "sizes of the boxes of {}", graph.name);
    let options = GraphOptions { directed: true, ..GraphOptions::default() };
    let mut layered: Layered<NodeLabel, EdgeLabel> = Layered::with_options(options);
    for (index, &(width, height)) in measures.sizes.iter().enumerate() {
        layered.set_node(index.to_string(), Some(NodeLabel { width, height, ..NodeLabel::default() }));
    }
    for edge in &graph.edges {
        let (from, to) = flow(edge);
        layered.set_edge(from.to_string(), to.to_string(), Some(EdgeLabel::default()), None);
    }
    let options = LayoutOptions {
        nodesep: measures.between_boxes,
        edgesep: measures.between_lines,
        ranksep: measures.between_layers,
        ..LayoutOptions::default()
    };
    layout(&mut layered, Some(options));
    let boxes: Vec<DrawingPoint> = (0..graph.components.len())
        .map(|index| {
            let place = layered.node(&index.to_string()).and_then(|node| Some((node.x?, node.y?)));
            let (x, y) = place.unwrap_or_default();
            DrawingPoint { x, y }
        })
        .collect();
    let lines = graph.edges.iter().map(|edge| {
        let (from, to) = flow(edge);
        let label = layered.edge(&from.to_string(), &to.to_string(), None);
        let points = label.map(|label| label.points.as_slice()).unwrap_or_default();
        points.iter().map(|point| DrawingPoint { x: point.x, y: point.y }).collect()
    });
    let lines = lines.collect();
    let (mut width, mut height) = (0.0f64, 0.0f64);
    for (&(wide, high), centre) in measures.sizes.iter().zip(&boxes) {
        width = width.max(centre.x + wide / 2.0);
        height = height.max(centre.y + high / 2.0);
    }
    GraphLayout { width, height, boxes, lines }
}

/// Ends of an edge in the direction of its data: from the memory if the edge only reads.
pub(super) fn flow(edge: &Edge) -> (usize, usize) {
    match edge.relation {
        Relation::Access(MemoryRights::Read) => (edge.to, edge.from),
        _ => (edge.from, edge.to),
    }
}
