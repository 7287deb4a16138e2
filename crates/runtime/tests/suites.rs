//! Tests of both ends of a call against managers, agents and workers.

mod fixture;
mod managers;
mod many_nodes;
mod shared_core;
mod worker_versions;
