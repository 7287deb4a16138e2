//! Files of the graph commands: documents that are read, and drawings that are written.

use std::fs;
use std::path::Path;

use sublet_proto::graph::{self, Graph, MAX_DOCUMENT_BYTES};
use sublet_proto::{Code, Error};

use crate::cli::files::{is_dash, read_up_to};
use crate::cli::output::print;

/// Reads the graph of a document.
pub(super) fn read(file: &Path) -> Result<Graph, Error> {
    parse(file, &read_document(file)?)
}

/// Reads a document, at most one byte more than its limit.
pub(super) fn read_document(file: &Path) -> Result<Vec<u8>, Error> {
    let failed =
        |error| Error::new(Code::InvalidArgument, format!("cannot read {}: {error}", file.display()));
    // One byte more than the limit, so that the parser reports a document that is too large.
    read_up_to(file, MAX_DOCUMENT_BYTES as u64 + 1).map_err(failed)
}

/// Parses a document. Errors name its file.
pub(super) fn parse(file: &Path, json: &[u8]) -> Result<Graph, Error> {
    Graph::parse(json).map_err(|problems| graph::error(file.display(), &problems))
}

/// Writes a drawing to a file, or to standard output for `-`.
pub(super) fn write_svg(file: &Path, svg: &str) -> Result<(), Error> {
    if is_dash(file) {
        return print(svg.trim_end());
    }
    fs::write(file, svg)
        .map_err(|error| Error::of_system(format_args!("cannot write {}", file.display()), &error))
}
