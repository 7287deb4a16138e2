//! The header and the library agree.

use std::collections::{BTreeMap, BTreeSet};

use sublet::Code;

const HEADER: &str = include_str!("../include/sublet.h");
const MEMORY_HEADER: &str = include_str!("../include/sublet_memory.h");
const GRAPH_HEADER: &str = include_str!("../include/sublet_graph.h");
const SWAP_HEADER: &str = include_str!("../include/sublet_swap.h");
const FORTRAN: &str = include_str!("../include/sublet.f90");
const SOURCES: &[&str] = &[
    include_str!("access.rs"),
    include_str!("boundary.rs"),
    include_str!("buffer.rs"),
    include_str!("callback.rs"),
    include_str!("graph.rs"),
    include_str!("graph/detached.rs"),
    include_str!("invocation.rs"),
    include_str!("invoker.rs"),
    include_str!("memory.rs"),
    include_str!("renewal.rs"),
    include_str!("swap.rs"),
];

/// The names of functions that follow each occurrence of `mark`.
fn functions<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(mark).skip(1).filter_map(|rest| {
        let before = rest.split('(').next()?;
        before.rsplit([' ', '*']).next()
    })
}

#[test]
fn every_declared_function_is_exported_and_the_other_way_round() {
    let headers = [HEADER, MEMORY_HEADER, GRAPH_HEADER, SWAP_HEADER];
    let declared: BTreeSet<_> =
        headers.iter().flat_map(|header| functions(header, "\nSUBLET_API ")).collect();
    let exported: BTreeSet<_> =
        SOURCES.iter().flat_map(|source| functions(source, "#[unsafe(no_mangle)]\n")).collect();
    assert!(declared.len() > 10, "{declared:?}");
    assert_eq!(declared, exported);
}

#[test]
fn the_status_numbers_are_the_codes() {
    let body = HEADER.split("typedef enum sublet_status {").nth(1).unwrap().split('}').next().unwrap();
    let declared: BTreeMap<String, u32> = body
        .lines()
        .filter_map(|line| line.trim().trim_end_matches(',').split_once(" = "))
        .map(|(name, number)| (name.to_owned(), number.parse().unwrap()))
        .collect();
    assert_eq!(declared, numbers_of_codes());
}

/// The status numbers by their names in C and Fortran.
fn numbers_of_codes() -> BTreeMap<String, u32> {
    let codes =
        Code::ALL.iter().map(|code| (format!("SUBLET_{}", code.name().to_uppercase()), code.number()));
    codes.chain([("SUBLET_OK".to_owned(), 0)]).collect()
}

#[test]
fn fortran_has_the_status_numbers_of_the_header() {
    let declared: BTreeMap<String, u32> = FORTRAN
        .lines()
        .filter_map(|line| {
            line.trim().strip_prefix("integer(c_int), parameter, public :: ")?.split_once(" = ")
        })
        .map(|(name, number)| (name.to_owned(), number.parse().unwrap()))
        .collect();
    assert_eq!(declared, numbers_of_codes());
}

#[test]
fn fortran_binds_functions_of_the_header() {
    let declared: BTreeSet<_> = functions(HEADER, "\nSUBLET_API ").collect();
    let bound: BTreeSet<_> =
        FORTRAN.split("bind(c, name='").skip(1).filter_map(|rest| rest.split('\'').next()).collect();
    // A program in Fortran has no use for callbacks, and connects with all of the arguments.
    let left_out = ["sublet_invocation_on_complete", "sublet_invoker_connect"];
    let expected: BTreeSet<_> =
        declared.into_iter().filter(|name| !left_out.contains(name)).chain(["strlen"]).collect();
    assert_eq!(bound, expected);
}

#[test]
fn the_header_has_the_version_of_the_library() {
    let line = format!("#define SUBLET_VERSION \"{}\"\n", env!("CARGO_PKG_VERSION"));
    assert!(HEADER.contains(&line), "sublet.h lacks {line}");
}

#[test]
fn invocation_has_the_size_of_the_header() {
    let words = size_of::<crate::invocation::sublet_invocation>() / size_of::<u64>();
    let line = format!("uint64_t opaque[{words}];");
    assert!(HEADER.contains(&line), "sublet.h lacks {line}");
    let line = format!("integer(c_int64_t) :: opaque({words}) = ");
    assert!(FORTRAN.contains(&line), "sublet.f90 lacks {line}");
}
