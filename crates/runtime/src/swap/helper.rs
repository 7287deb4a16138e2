//! Works beside the page faults: reads ahead, and evicts pages in advance.

use super::book::{NeededMemory, PageBook};
use super::fault_handling::RegionLoad;
use super::follow::run_anywhere;
use super::pager::{Pager, begin_paging};

enum Task {
    Load(RegionLoad),
    FreeMemory(NeededMemory),
}

impl Pager {
    /// Executes tasks until the array is gone.
    pub(super) fn help(&self) {
        begin_paging();
        run_anywhere();
        while let Some(task) = self.next_task(next) {
            match task {
                Task::Load(load) => self.load_region(load),
                Task::FreeMemory(want) => self.free_memory(want),
            }
        }
    }
}

/// Chooses the next task. Reading ahead comes first, as those regions are needed soon.
fn next(book: &mut PageBook) -> Option<Task> {
    match book.next_load() {
        Ok(Some(load)) => Some(Task::Load(load)),
        Err(want) => Some(Task::FreeMemory(want)),
        Ok(None) => book.lacks().map(Task::FreeMemory),
    }
}
