//! Tests of the repository itself: its walls and documents, its command, its simulator and the inputs of its fuzz targets.

mod command;
mod fuzz_targets;
mod map;
mod sim;
mod sleeps;
mod walls;
