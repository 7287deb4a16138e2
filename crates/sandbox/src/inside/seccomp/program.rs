//! Compiles rules to a program for the kernel's packet filter: a search tree finds the number of a call.
//!
//! Libraries make a list that is compared entry by entry. That is expensive here: when a process attaches a filter, the
//! kernel executes it once for every system call number, to learn which numbers it may always allow. A tree makes
//! attaching much faster.

use std::collections::BTreeMap;

use libc::{
    BPF_ABS, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW,
    SECCOMP_RET_ERRNO, seccomp_data, sock_filter,
};

/// Verdict on a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallVerdict {
    Allow,
    /// The call fails with this error's number.
    Fail(i32),
    /// The call is allowed if one of these tests holds, and otherwise fails as calls without a rule do.
    AllowIf(Vec<Test>),
}

/// Test of the low 32 bits of an argument: the kernel uses no more of the arguments that are tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Equal { argument: usize, value: u32 },
    Without { argument: usize, bits: u32 },
}

/// The numbers of calls, as this architecture has them, with their verdicts.
pub(super) type Rules = BTreeMap<u32, CallVerdict>;

/// Architecture as `AUDIT_ARCH_...` names it: a process of another architecture means other calls by the same numbers.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Largest number of instructions in a filter (`BPF_MAXINSNS`).
const MAX_INSTRUCTIONS: usize = 4096;
/// The largest error number that a filter can give (`MAX_ERRNO`).
const MAX_ERRNO: i32 = 4095;

/// A program that judges as the rules say. A call without a rule, or of another architecture, fails with this error.
pub(super) fn compile(rules: &Rules, otherwise: i32) -> Vec<sock_filter> {
    let refused = CallVerdict::Fail(otherwise);
    let mut program = vec![
        load(std::mem::offset_of!(seccomp_data, arch)),
        branch(BPF_JEQ, ARCHITECTURE, 1, 0),
        fail(otherwise),
        load(std::mem::offset_of!(seccomp_data, nr)),
    ];
    program.extend(tree(&ranges(rules, &refused), otherwise));
    debug_assert!(program.len() <= MAX_INSTRUCTIONS, "a filter of {} instructions", program.len());
    program
}

/// Returns ranges of numbers from 0 on, each up to the next: the first number, and the verdict on all of the range.
fn ranges<'rules>(rules: &'rules Rules, refused: &'rules CallVerdict) -> Vec<(u32, &'rules CallVerdict)> {
    let mut ranges: Vec<(u32, &CallVerdict)> = Vec::new();
    let mut add = |first, verdict| {
        if ranges.last().is_none_or(|(_, last)| *last != verdict) {
            ranges.push((first, verdict));
        }
    };
    let mut next = 0;
    for (&number, verdict) in rules {
        if number > next {
            add(next, refused);
        }
        add(number, verdict);
        next = number + 1;
    }
    add(next, refused);
    debug_assert!(ranges.is_sorted_by(|(one, _), (next, _)| one < next), "{ranges:?} are not in order");
    debug_assert_eq!(ranges.first().map(|(first, _)| *first), Some(0), "the ranges do not begin at 0");
    ranges
}

fn tree(ranges: &[(u32, &CallVerdict)], otherwise: i32) -> Vec<sock_filter> {
    if let [(_, verdict)] = ranges {
        return leaf(verdict, otherwise);
    }
    let (below, above) = ranges.split_at(ranges.len() / 2);
    let (from, below, above) = (above[0].0, tree(below, otherwise), tree(above, otherwise));
    // A branch skips 255 instructions at most.
    let mut program = match u8::try_from(below.len()) {
        Ok(skipped) => vec![branch(BPF_JGE, from, skipped, 0)],
        Err(_) => vec![branch(BPF_JGE, from, 0, 1), jump(below.len())],
    };
    program.extend(below);
    program.extend(above);
    program
}

fn leaf(verdict: &CallVerdict, otherwise: i32) -> Vec<sock_filter> {
    match verdict {
        CallVerdict::Allow => vec![allow()],
        CallVerdict::Fail(error) => vec![fail(*error)],
        CallVerdict::AllowIf(tests) => {
            let tested = tests.iter().flat_map(|test| match *test {
                Test::Equal { argument, value } => {
                    [load(low_half(argument)), branch(BPF_JEQ, value, 0, 1), allow()]
                }
                Test::Without { argument, bits } => {
                    [load(low_half(argument)), branch(BPF_JSET, bits, 1, 0), allow()]
                }
            });
            tested.chain([fail(otherwise)]).collect()
        }
    }
}

#[cfg(target_endian = "little")]
fn low_half(argument: usize) -> usize {
    std::mem::offset_of!(seccomp_data, args) + argument * size_of::<u64>()
}

#[expect(clippy::cast_possible_truncation, reason = "an offset in `seccomp_data`, which has 64 bytes")]
fn load(offset: usize) -> sock_filter {
    statement(BPF_LD | BPF_W | BPF_ABS, offset as u32)
}

fn allow() -> sock_filter {
    statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
}

fn fail(error: i32) -> sock_filter {
    debug_assert!((1..=MAX_ERRNO).contains(&error), "{error} is not an error number");
    statement(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error.unsigned_abs())
}

#[expect(clippy::cast_possible_truncation, reason = "a program has `MAX_INSTRUCTIONS` at most")]
fn jump(skipped: usize) -> sock_filter {
    statement(BPF_JMP | BPF_JA, skipped as u32)
}

fn statement(code: u32, operand: u32) -> sock_filter {
    sock_filter { code: code_of(code), jt: 0, jf: 0, k: operand }
}

#[expect(clippy::cast_possible_truncation, reason = "the constants of instructions have 16 bits")]
fn code_of(constants: u32) -> u16 {
    constants as u16
}

/// Makes a branch, which skips `if_so` instructions if the condition holds, and `if_not` instructions otherwise.
fn branch(condition: u32, operand: u32, if_so: u8, if_not: u8) -> sock_filter {
    sock_filter { code: code_of(BPF_JMP | condition | BPF_K), jt: if_so, jf: if_not, k: operand }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHERWISE: i32 = 1;

    /// Executes a program as the kernel does. Says with how many steps it came to its end.
    fn execute(program: &[sock_filter], architecture: u32, number: u32, arguments: [u64; 6]) -> (u32, usize) {
        let (mut at, mut word, mut steps) = (0, 0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            (at, steps) = (at + 1, steps + 1);
            let mut go = |is_so: bool| at += usize::from(if is_so { jt } else { jf });
            match u32::from(code) {
                code if code == BPF_LD | BPF_W | BPF_ABS => {
                    word = match k {
                        0 => number,
                        4 => architecture,
                        _ => arguments[(k as usize - 16) / 8] as u32,
                    }
                }
                code if code == BPF_JMP | BPF_JEQ => go(word == k),
                code if code == BPF_JMP | BPF_JGE => go(word >= k),
                code if code == BPF_JMP | BPF_JSET => go(word & k != 0),
                code if code == BPF_JMP | BPF_JA => at += k as usize,
                code if code == BPF_RET => return (k, steps),
                code => panic!("instruction {code:#x}"),
            }
        }
    }

    fn judged(program: &[sock_filter], number: u32, argument: u64) -> u32 {
        execute(program, ARCHITECTURE, number, [argument; 6]).0
    }

    const REFUSED: u32 = SECCOMP_RET_ERRNO | OTHERWISE as u32;

    #[test]
    fn applies_rule_of_each_number_and_refuses_all_others() {
        // Every third number, so that nothing merges and branches become long.
        for count in [0, 1, 2, 3, 7, 300] {
            let rules: Rules = (0..count).map(|number| (number * 3 + 1, CallVerdict::Allow)).collect();
            let program = compile(&rules, OTHERWISE);
            for number in (0..count * 3 + 5).chain([0x4000_0000, 0x4000_0001, u32::MAX]) {
                let expected = if rules.contains_key(&number) { SECCOMP_RET_ALLOW } else { REFUSED };
                assert_eq!(judged(&program, number, 0), expected, "{number} of {count}");
            }
        }
    }

    #[test]
    fn one_of_the_tests_must_hold() {
        let either = [Test::Equal { argument: 1, value: 7 }, Test::Equal { argument: 2, value: u32::MAX }];
        let rules = Rules::from([
            (3, CallVerdict::AllowIf(either.to_vec())),
            (4, CallVerdict::AllowIf(vec![Test::Without { argument: 0, bits: 0x1010 }])),
            (5, CallVerdict::Fail(38)),
        ]);
        let program = compile(&rules, OTHERWISE);
        let of = |number, arguments| execute(&program, ARCHITECTURE, number, arguments).0;
        assert_eq!(of(3, [0, 7, 0, 0, 0, 0]), SECCOMP_RET_ALLOW);
        assert_eq!(of(3, [0, 0, 0xffff_ffff, 0, 0, 0]), SECCOMP_RET_ALLOW);
        assert_eq!(of(3, [7, 6, 7, 7, 7, 7]), REFUSED);
        assert_eq!(of(4, [0x0101, 0x1010, 0, 0, 0, 0]), SECCOMP_RET_ALLOW);
        assert_eq!(of(4, [0x0010, 0, 0, 0, 0, 0]), REFUSED);
        assert_eq!(of(4, [0x1000, 0, 0, 0, 0, 0]), REFUSED);
        assert_eq!(judged(&program, 5, 0), SECCOMP_RET_ERRNO | 38);
    }

    #[test]
    fn another_architecture_may_call_nothing() {
        let program = compile(&(0..500).map(|number| (number, CallVerdict::Allow)).collect(), OTHERWISE);
        assert_eq!(execute(&program, ARCHITECTURE, 1, [0; 6]).0, SECCOMP_RET_ALLOW);
        assert_eq!(execute(&program, 0x4000_0003, 1, [0; 6]).0, REFUSED);
    }

    #[test]
    fn finds_number_in_few_steps_across_long_branches() {
        let rules: Rules = (0..1000).map(|number| (number * 2, CallVerdict::Allow)).collect();
        let program = compile(&rules, OTHERWISE);
        // More than a branch can skip.
        assert!(program.len() > 4 * usize::from(u8::MAX));
        let most = (0..2002).map(|number| execute(&program, ARCHITECTURE, number, [0; 6]).1).max().unwrap();
        assert!(most <= 30, "{most} steps");
    }
}
