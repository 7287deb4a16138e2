//! Tests of graphs of functions: how they are planned, run, resumed and started by events.

mod dags;
mod device_memory;
mod far_clients;
mod flash;
mod graphs;
mod plans;
mod runners;
mod runs;
mod triggers;
mod warm_runs;
