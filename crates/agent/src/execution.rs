//! Prepares and runs workers: packages, images, interpreters and kernels, their cache on disk, sandboxes and processes.

pub(crate) mod background_task;
pub(crate) mod cache;
pub(crate) mod images;
pub(crate) mod kernels;
pub(crate) mod logs;
pub(crate) mod packages;
pub(crate) mod programs;
pub(crate) mod runtimes;
pub(crate) mod sandboxes;
pub(crate) mod worker;
