//! Reads the plan that managers made for a run: on which nodes its components are preferred.

use std::collections::HashMap;

use sublet_proto::graph::Graph;
use sublet_proto::v1::RunPlan;

use super::workers::ComponentWorkers;

/// Preferred location of a component.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum PlannedNode {
    /// Beside the components that it communicates with. There is no plan for it, or no node had enough free.
    #[default]
    Beside,
    /// On this node, with the other components of its set.
    Together(String),
    /// Where its resources are, without regard to others.
    Apart,
}

impl PlannedNode {
    /// The nodes to prefer, where without a plan it would be these.
    pub(super) fn near(&self, beside: Vec<String>) -> Vec<String> {
        match self {
            PlannedNode::Beside => beside,
            PlannedNode::Together(node) => {
                let others = beside.into_iter().filter(|other| other != node);
                std::iter::once(node.clone()).chain(others).collect()
            }
            PlannedNode::Apart => Vec::new(),
        }
    }

    /// Takes the latest of these workers whose nodes suit it.
    pub(super) fn take(&self, workers: &mut Vec<ComponentWorkers>) -> Option<ComponentWorkers> {
        let found = workers.iter().rposition(|workers| self.suits(&workers.nodes()))?;
        Some(workers.swap_remove(found))
    }

    /// Whether workers on these nodes suit it.
    fn suits(&self, nodes: &[String]) -> bool {
        match self {
            PlannedNode::Beside | PlannedNode::Apart => true,
            PlannedNode::Together(planned) => nodes.iter().all(|node| node == planned),
        }
    }
}

/// The preferred locations of a graph's components, by their indexes. Names that the graph does not have are left out.
pub(super) fn planned_nodes(graph: &Graph, plan: Option<RunPlan>) -> HashMap<usize, PlannedNode> {
    let mut nodes = HashMap::new();
    for set in plan.unwrap_or_default().sets {
        let node = match set.is_apart {
            true => PlannedNode::Apart,
            false if set.node.is_empty() => PlannedNode::Beside,
            false => PlannedNode::Together(set.node),
        };
        for name in &set.components {
            if let Some(index) = graph.components.iter().position(|component| component.name == *name) {
                nodes.insert(index, node.clone());
            }
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use sublet_proto::v1::PlannedSet;

    use super::*;

    #[test]
    fn plan_prefers_a_sets_node_or_none() {
        let document = br#"{"version":1,"name":"g","components":[
            {"name":"a","type":"compute","package":"p","function":"f","entry":true},
            {"name":"b","type":"compute","package":"p","function":"f"},
            {"name":"m","type":"memory"}],"edges":[
            {"type":"trigger","from":"a","to":"b"},
            {"type":"access","from":"a","to":"m","rights":"write"}]}"#;
        let graph = Graph::parse(document).unwrap();
        let set = |names: &[&str], node: &str, is_apart| PlannedSet {
            components: names.iter().map(|name| (*name).to_owned()).collect(),
            node: node.into(),
            is_apart,
            ..PlannedSet::default()
        };
        let sets = vec![set(&["a", "m", "gone"], "n", false), set(&["b"], "", true)];
        let nodes = planned_nodes(&graph, Some(RunPlan { sets, ..RunPlan::default() }));
        let together = PlannedNode::Together("n".into());
        let expected = [(0, together.clone()), (1, PlannedNode::Apart), (2, together.clone())];
        assert_eq!(nodes, HashMap::from(expected));
        assert!(planned_nodes(&graph, None).is_empty());

        let beside = || vec!["x".to_owned(), "n".to_owned()];
        assert_eq!(PlannedNode::Beside.near(beside()), ["x", "n"]);
        assert_eq!(together.near(beside()), ["n", "x"]);
        assert!(PlannedNode::Apart.near(beside()).is_empty());
        assert!(together.suits(&["n".to_owned()]) && !together.suits(&beside()));
        assert!(PlannedNode::Beside.suits(&beside()) && PlannedNode::Apart.suits(&beside()));
    }
}
