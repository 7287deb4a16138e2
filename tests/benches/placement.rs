//! Places the components of many applications on 10,000 simulated nodes, by a manager's core and by a greedy method, and prints
//! JSON: `cargo bench -p sublet-tests --bench placement`.

use sublet_tests::placement::{PlacementScale, report};

const SCALE: PlacementScale = PlacementScale { nodes: 10_000, applications: 60_000 };

fn main() {
    println!("{}", report(SCALE));
}
