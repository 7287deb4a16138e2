//! Tests of functions in each language, with the environments, images and variables that they need.

mod builds;
mod containers;
mod environments;
mod image_nodejs;
mod image_pythons;
mod image_scene;
mod images;
mod interpreters;
mod lent_devices;
#[path = "../../crates/image/tests/making/mod.rs"]
mod making;
mod musl;
mod nodejs;
mod nodejs_graphs;
mod python;
mod rust_functions;
mod sandboxed;
#[path = "../../crates/image/tests/serving/mod.rs"]
mod serving;
mod templates;
mod typescript;
mod variables;
