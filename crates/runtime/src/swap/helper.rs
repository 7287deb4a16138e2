//! Works beside the page faults: reads ahead, and evicts pages in advance.

use super::book::{NeededMemory, PageBook};
use super::fault_handling::RegionLoad;
use super::follow::run_anywhere;
use super::pager::{Pager, begin_paging};

enum Task {
    Errand(RegionLoad),
    Room(NeededMemory),
}

impl Pager {
    /// Executes tasks until the array is gone.
    pub(super) fn help(&self) {
        begin_paging();
        run_anywhere();
        while let Some(task) = self.next_task(next) {
            match task {
                Task::Errand(load) => self.go_errand(load),
                Task::Room(want) => self.make_room(want),
            }
        }
    }
}

/// Chooses the next task. Reading ahead comes first, as those regions are needed soon.
fn next(book: &mut PageBook) -> Option<Task> {
    match book.next_errand() {
        Ok(Some(load)) => Some(Task::Errand(load)),
        Err(want) => Some(Task::Room(want)),
        Ok(None) => book.lacks().map(Task::Room),
    }
}
