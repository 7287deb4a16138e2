//! The report of an image's Node.js on what it is, and the reasons for which it cannot execute functions. The image has
//! written all of it: nothing here is trusted, and each part is bounded and escaped before it is shown.

use std::path::Path;

use super::answer::ImageInterpreter;
use super::language::ImageLanguage;
use super::report::shown;
use crate::execution::c_library::CLibrary;

/// First word of a report.
const REPORT: &str = "sublet-node";
/// Major version of the oldest Node.js into which the library of workers can be loaded.
const OLDEST: u32 = 20;

/// A report of the code in `ask.js`.
pub(super) struct NodeReport<'output> {
    version: &'output str,
    implementation: &'output str,
    /// Version of glibc; empty for another C library, and for a Node.js that is refused for another reason.
    glibc: &'output str,
    program: &'output str,
    /// Why the library of workers cannot be loaded; empty if it can.
    fault: &'output str,
}

impl NodeReport<'_> {
    /// The report in an interpreter's output, beside which an image may print other lines.
    pub(super) fn find(output: &str) -> Option<NodeReport<'_>> {
        output.lines().find_map(|line| {
            let mut fields = line.split('\t');
            let mut next = || fields.next();
            (next()? == REPORT).then_some(())?;
            Some(NodeReport {
                version: next()?,
                implementation: next()?,
                glibc: next()?,
                program: next()?,
                fault: next()?,
            })
        })
    }

    /// The Node.js, or why it cannot execute functions.
    pub(super) fn checked(self) -> Result<ImageInterpreter, String> {
        let (version, implementation) = (shown(self.version), shown(self.implementation));
        let major = version.split_once('.').and_then(|(major, _)| major.parse::<u32>().ok());
        match major {
            _ if implementation != "node" => Err(format!("its node is {implementation:?}, and Node.js is needed")),
            None => Err(format!("its Node.js reports {version:?} as its version")),
            Some(major) if major < OLDEST => {
                Err(format!("its Node.js is {version}, and {OLDEST} or later is needed"))
            }
            _ if self.glibc.is_empty() => {
                Err("its Node.js is not built for glibc, and Sublet's worker is (images with musl, as Alpine's, execute native code and Python only)".to_owned())
            }
            _ if !self.fault.is_empty() => {
                Err(format!("its Node.js {version} cannot load Sublet's worker: {}", shown(self.fault)))
            }
            Some(_) => {
                let program = Path::new(self.program);
                let named = Path::new(ImageLanguage::Nodejs.program());
                let program = if program.is_absolute() { program } else { named };
                Ok(ImageInterpreter { program: program.to_owned(), version, libc: CLibrary::Glibc })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(fields: &str) -> Result<ImageInterpreter, String> {
        let output = format!("a warning\n{REPORT}\t{}\nmore\n", fields.replace(' ', "\t").replace('_', " "));
        NodeReport::find(&output).expect("a report").checked()
    }

    #[test]
    fn accepts_only_a_nodejs_that_can_be_a_worker() {
        let node = checked("20.11.1 node 2.36 /opt/bin/node ").unwrap();
        assert_eq!((node.program.to_str(), &*node.version), (Some("/opt/bin/node"), "20.11.1"));
        assert_eq!(checked("24.0.0 node 2.41  ").unwrap().program, Path::new("node"));
        for (fields, named) in [
            ("18.20.4 node  /p ", "18.20.4, and 20 or later"),
            ("9.1.0 node  /p ", "9.1.0, and 20 or later"),
            ("lts node  /p ", "\"lts\""),
            (" node  /p ", "\"\""),
            ("22.6.0 bun 2.36 /p ", "bun"),
            ("22.6.0  2.36 /p ", "its node is \"\""),
            ("20.11.1 node  /p ", "musl"),
            ("20.11.1 node 2.31 /p GLIBC_2.34_not_found", "GLIBC 2.34 not found"),
        ] {
            let fault = checked(fields).unwrap_err();
            assert!(fault.contains(named), "{fields}: {fault}");
        }
        assert!(NodeReport::find("sublet-node\t20.11.1\tnode\n").is_none());
    }
}
