//! The languages whose interpreters images may have: how the interpreter of each is found, asked and made a worker.

use std::ffi::OsString;

use sublet_proto::package::{
    IMAGE_NODEJS, IMAGE_PYTHON, is_image_nodejs, is_image_python, nodejs_architecture, python_architecture,
};
use sublet_proto::v1::PackageBuild;
use sublet_sandbox::Language;

use crate::execution::c_library::CLibrary;

/// Name of the library of workers in Python for musl.
const MUSL_LIBRARY: &str = "libsublet_template_python_musl.so";
/// Code with which an interpreter reports what it is.
const ASK_PYTHON: &str = include_str!("ask.py");
const ASK_NODEJS: &str = include_str!("ask.js");
/// Code with which an interpreter becomes a worker.
const START_PYTHON: &str = include_str!("start.py");
const START_NODEJS: &str = include_str!("start.js");

/// A language of functions that are executed by the interpreter of their image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ImageLanguage {
    Python,
    Nodejs,
}

impl ImageLanguage {
    pub(super) const ALL: [ImageLanguage; 2] = [ImageLanguage::Python, ImageLanguage::Nodejs];

    /// The language of a build that the interpreter of its image executes.
    pub(crate) fn of(build: &PackageBuild) -> Option<ImageLanguage> {
        match build.architecture.as_str() {
            architecture if is_image_python(architecture) => Some(ImageLanguage::Python),
            architecture if is_image_nodejs(architecture) => Some(ImageLanguage::Nodejs),
            _ => None,
        }
    }

    /// Name of the interpreter in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            ImageLanguage::Python => "Python",
            ImageLanguage::Nodejs => "Node.js",
        }
    }

    /// Name of the program, which is looked up in the image.
    pub(super) fn program(self) -> &'static str {
        match self {
            ImageLanguage::Python => "python3",
            ImageLanguage::Nodejs => "node",
        }
    }

    /// File name of the library that makes an interpreter which is linked with a C library a worker, if there can be one.
    pub(super) fn adapter(self, libc: CLibrary) -> Option<&'static str> {
        match (self, libc) {
            (ImageLanguage::Python, CLibrary::Glibc) => Some(Language::Python.adapter()),
            (ImageLanguage::Python, CLibrary::Musl) => Some(MUSL_LIBRARY),
            (ImageLanguage::Nodejs, CLibrary::Glibc) => Some(Language::Node.adapter()),
            (ImageLanguage::Nodejs, CLibrary::Musl) => None,
        }
    }

    /// Architecture of nodes that execute functions by such interpreters.
    pub(super) fn offer(self) -> &'static str {
        match self {
            ImageLanguage::Python => IMAGE_PYTHON,
            ImageLanguage::Nodejs => IMAGE_NODEJS,
        }
    }

    /// Architecture of builds for an interpreter of the node of this version.
    pub(super) fn architecture(self, version: &str) -> Option<String> {
        match self {
            ImageLanguage::Python => python_architecture(version),
            ImageLanguage::Nodejs => nodejs_architecture(version),
        }
    }

    /// Arguments with which the interpreter, of any version, reports what it is. The sandbox sees the library of workers for this
    /// C library.
    pub(super) fn ask(self, libc: CLibrary) -> Vec<OsString> {
        match self {
            ImageLanguage::Python => words(&["-B", "-c", ASK_PYTHON, libc.name()]),
            ImageLanguage::Nodejs => words(&["--eval", ASK_NODEJS]),
        }
    }

    /// Arguments with which the interpreter becomes a worker.
    pub(super) fn start(self) -> Vec<OsString> {
        match self {
            // Without files of compiled modules, which would be written to memory.
            ImageLanguage::Python => words(&["-B", "-c", START_PYTHON]),
            // As a warm Node.js of the node: the collector of garbage and the compiler use the worker's core.
            ImageLanguage::Nodejs => words(&[
                "--single-threaded",
                "--v8-pool-size=0",
                "--input-type=commonjs",
                "--eval",
                START_NODEJS,
            ]),
        }
    }

    /// Environment variables that the interpreter needs beside the common ones.
    pub(super) fn variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            ImageLanguage::Python => &[],
            // Sandboxes refuse io_uring.
            ImageLanguage::Nodejs => &[("UV_USE_IO_URING", "0")],
        }
    }
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}
