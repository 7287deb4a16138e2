//! The report of an image's Python on what it is, and the reasons for which it cannot execute functions. The image
//! has written all of it: nothing here is trusted, and each part is bounded and escaped before it is shown.

use std::path::Path;

use sublet_proto::text::printable_line;
use sublet_sandbox::ProgramEnd;

use super::answer::ImageInterpreter;
use super::language::ImageLanguage;
use crate::execution::c_library::CLibrary;

/// First word of a report.
const REPORT: &str = "sublet-python";
/// Version of the oldest Python into which the library of workers can be loaded.
const OLDEST: (u32, u32) = (3, 11);
/// Characters of an interpreter's output in a message.
const MAX_SHOWN_CHARS: usize = 400;
/// Lines at the end of an interpreter's output that are part of a message.
const LAST_LINES: usize = 4;
/// Begin of the line with which an interpreter reports that it cannot start.
const FATAL: &str = "Fatal Python error";

/// A report of the code in `ask.py`.
pub(super) struct PythonReport<'output> {
    version: &'output str,
    implementation: &'output str,
    has_lock: bool,
    libc: &'output str,
    program: &'output str,
    /// Why the library of workers cannot be loaded; empty if it can, or if it is for another C library.
    fault: &'output str,
}

impl PythonReport<'_> {
    /// The report in an interpreter's output, beside which an image may print other lines.
    pub(super) fn find(output: &str) -> Option<PythonReport<'_>> {
        output.lines().find_map(|line| {
            let mut fields = line.split('\t');
            let mut next = || fields.next();
            (next()? == REPORT).then_some(())?;
            Some(PythonReport {
                version: next()?,
                implementation: next()?,
                has_lock: next()? == "lock",
                libc: next()?,
                program: next()?,
                fault: next()?,
            })
        })
    }

    /// The Python, or why it cannot execute functions.
    pub(super) fn checked(self) -> Result<ImageInterpreter, String> {
        let (version, implementation) = (shown(self.version), shown(self.implementation));
        let numbers = version
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?)));
        let (major, minor) = OLDEST;
        match numbers {
            _ if implementation != "cpython" => {
                Err(format!("its Python is {implementation}, and CPython is needed"))
            }
            Some(numbers) if numbers < OLDEST => {
                Err(format!("its Python is {version}, and {major}.{minor} or later is needed"))
            }
            None => Err(format!("its Python reports {version:?} as its version")),
            _ if !self.has_lock => Err(format!(
                "its Python {version} is free-threaded, and one with the global interpreter lock is needed"
            )),
            _ if !self.fault.is_empty() => {
                Err(format!("its Python {version} cannot load Sublet's worker: {}", shown(self.fault)))
            }
            Some(_) => {
                let libc = CLibrary::parse(self.libc)
                    .ok_or("its Python is linked with another C library than glibc and musl")?;
                let program = Path::new(self.program);
                let named = Path::new(ImageLanguage::Python.program());
                let program = if program.is_absolute() { program } else { named };
                Ok(ImageInterpreter { program: program.to_owned(), version, libc })
            }
        }
    }
}

/// Why an interpreter has not reported what it is.
pub(super) fn no_report(program: &str, end: ProgramEnd, output: &str) -> String {
    let why = last_words(output).unwrap_or_else(|| "it printed nothing".to_owned());
    format!("its {program} does not work: it {end}, {why}")
}

/// The end of an output that says why a program ended, as a part of a message.
pub(super) fn last_words(output: &str) -> Option<String> {
    let lines: Vec<_> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // Before a fatal error an interpreter prints its whole configuration, and errors of Python end with their reason.
    let fatal = lines.iter().position(|line| line.starts_with(FATAL));
    let begin = fatal.unwrap_or_else(|| lines.len().saturating_sub(LAST_LINES));
    Some(shown(&lines[begin..].join(" / "))).filter(|words| !words.is_empty())
}

/// Text of an image as a part of a message.
pub(super) fn shown(text: &str) -> String {
    printable_line(text).chars().take(MAX_SHOWN_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(fields: &str) -> Result<ImageInterpreter, String> {
        let output = format!("a warning\n{REPORT}\t{}\nmore\n", fields.replace(' ', "\t").replace('_', " "));
        PythonReport::find(&output).expect("a report").checked()
    }

    #[test]
    fn accepts_only_a_python_that_can_be_a_worker() {
        let python = checked("3.12 cpython lock glibc_2.36 /opt/venv/bin/python3 ").unwrap();
        assert_eq!((python.program.to_str(), &*python.version), (Some("/opt/venv/bin/python3"), "3.12"));
        assert_eq!(checked("3.14 cpython lock glibc_2.41  ").unwrap().program, Path::new("python3"));
        let of_libc = |libc: &str| checked(&format!("3.14 cpython lock {libc} /p ")).unwrap().libc;
        assert_eq!((of_libc("glibc_2.36"), of_libc("musl")), (CLibrary::Glibc, CLibrary::Musl));
        for (fields, named) in [
            ("3.10 cpython lock glibc_2.36 /p ", "3.10, and 3.11 or later"),
            ("2.7 cpython lock glibc_2.36 /p ", "2.7, and 3.11 or later"),
            ("x cpython lock glibc_2.36 /p ", "\"x\""),
            ("3.11 pypy lock glibc_2.36 /p ", "pypy"),
            ("3.14 cpython free glibc_2.36 /p ", "free-threaded"),
            ("3.12 cpython lock  /p ", "another C library than glibc and musl"),
            ("3.12 cpython lock musl /p no_symbol", "no symbol"),
            ("3.12 cpython lock glibc_2.31 /p GLIBC_2.34_not_found", "GLIBC 2.34 not found"),
        ] {
            let fault = checked(fields).unwrap_err();
            assert!(fault.contains(named), "{fields}: {fault}");
        }
        assert!(PythonReport::find("sublet-python\t3.12\tcpython\n").is_none());
    }

    #[test]
    fn describes_an_interpreter_that_ends_without_a_report() {
        let fault =
            no_report("python3", ProgramEnd::Status(1), "\nFatal Python error\n\n  \x1b[1mno encodings\n");
        assert_eq!(
            fault,
            "its python3 does not work: it exited with status 1, Fatal Python error / \\x1b[1mno encodings"
        );
        let numbered: Vec<_> = (0..9).map(|number| number.to_string()).collect();
        let fault = no_report("python3", ProgramEnd::Status(1), &numbered.join("\n"));
        assert!(fault.ends_with("status 1, 5 / 6 / 7 / 8"), "{fault}");
        let fault =
            no_report("python3", ProgramEnd::Status(1), "prefix\nFatal Python error: x\n1\n2\n3\n4\n5\n");
        assert!(fault.ends_with("status 1, Fatal Python error: x / 1 / 2 / 3 / 4 / 5"), "{fault}");
        assert!(
            no_report("python3", ProgramEnd::Signal(11), "")
                .ends_with("killed by SIGSEGV, it printed nothing")
        );
        assert!(no_report("python3", ProgramEnd::Status(1), &"x".repeat(5000)).len() < 600);
    }
}
