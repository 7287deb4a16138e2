//! Tests that need the machine to themselves: they measure shares of processor time, count system calls, or fill the machine.

mod cores;
mod crowds;
mod hot_path;
mod idle;
mod regression;
mod shared_cores;
