//! Tracks the operations in progress and the threads that wait for them. Pure.
//!
//! An operation belongs to a group; the thread that began the group waits until none of its operations is in progress.
//! The end of a connection ends all of them, so that none has to fail by itself.

/// Most operations in progress at a time.
pub const OPERATIONS: usize = 64;
/// Most groups at a time.
pub const GROUPS: usize = 32;

/// The group of writes that any thread has begun and that the next line waits for.
pub const PUSHES: OperationGroup = OperationGroup(0);

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationGroup(u8);

impl OperationGroup {
    /// Index of the group, from 0 to `GROUPS` - 1.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Index of the group, as it travels in a message.
    pub fn number(self) -> u32 {
        u32::from(self.0)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Operations {
    /// A bit for each operation in progress.
    busy: u64,
    group_of: [OperationGroup; OPERATIONS],
    /// A bit for each group in use.
    groups: u32,
    under_way: [u32; GROUPS],
}

const _: () = assert!(OPERATIONS <= 64 && GROUPS <= 32);

impl Default for Operations {
    fn default() -> Operations {
        Operations { busy: 0, group_of: [PUSHES; OPERATIONS], groups: 1, under_way: [0; GROUPS] }
    }
}

impl Operations {
    /// Begins a group of the caller's own, if one is free.
    pub fn begin_group(&mut self) -> Option<OperationGroup> {
        let index = (!self.groups).trailing_zeros();
        if index as usize >= GROUPS {
            return None;
        }
        self.groups |= 1 << index;
        #[expect(clippy::cast_possible_truncation, reason = "checked above: less than `GROUPS`")]
        let index = index as u8;
        Some(OperationGroup(index))
    }

    /// Frees the group. None of its operations may be in progress.
    pub fn end_group(&mut self, group: OperationGroup) {
        debug_assert!(group != PUSHES, "the group {} of pushes ends", group.index());
        debug_assert!(self.is_done(group), "group {} ends with operations in progress", group.index());
        self.groups &= !(1 << group.index());
    }

    /// The number of the next operation, if one is free.
    pub fn next(&self) -> Option<usize> {
        let index = (!self.busy).trailing_zeros() as usize;
        (index < OPERATIONS).then_some(index)
    }

    /// Records that the operation of that number has been posted.
    pub fn begin(&mut self, operation: usize, group: OperationGroup) {
        self.busy |= 1 << operation;
        self.group_of[operation] = group;
        self.under_way[group.index()] += 1;
    }

    /// Records that an operation has completed. Ignores one that was not in progress.
    pub fn complete(&mut self, operation: usize) {
        if self.busy & 1 << operation != 0 {
            self.busy &= !(1 << operation);
            self.under_way[self.group_of[operation].index()] -= 1;
        }
    }

    /// Whether no operation of a group is in progress.
    #[inline]
    pub fn is_done(&self, group: OperationGroup) -> bool {
        self.under_way[group.index()] == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_done_when_its_last_operation_is() {
        let mut operations = Operations::default();
        let (one, other) = (operations.begin_group().unwrap(), operations.begin_group().unwrap());
        assert!(one != other && one != PUSHES && other != PUSHES);
        for (operation, group) in [(0, one), (1, other), (2, one)] {
            assert_eq!(operations.next(), Some(operation));
            operations.begin(operation, group);
        }
        operations.complete(0);
        operations.complete(0);
        assert!(!operations.is_done(one));
        assert_eq!(operations.next(), Some(0));
        operations.complete(2);
        assert!(operations.is_done(one) && !operations.is_done(other) && operations.is_done(PUSHES));
        operations.end_group(one);
        assert_eq!(operations.begin_group(), Some(one));
    }

    #[test]
    fn operations_and_groups_are_bounded() {
        let mut operations = Operations::default();
        assert_eq!((0..).map_while(|_| operations.begin_group()).count(), GROUPS - 1);
        let begun = (0..).map_while(|_| operations.next().map(|next| operations.begin(next, PUSHES))).count();
        assert_eq!(begun, OPERATIONS);
        operations.complete(63);
        assert_eq!(operations.next(), Some(63));
    }
}
