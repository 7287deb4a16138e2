//! `sublet profile`: starts the Python module that measures applications and proposes where to split them.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use clap::Args;
use sublet_proto::{Code, Error};

use super::output::CommandOutput;

const EXAMPLES: &str = "\
Examples:
  sublet profile app.py                          run a program, and propose splits of its applications
  sublet profile --patch split.patch app.py      write the splits as a patch
  sublet profile --check app.py                  compare the prediction with a run
  sublet profile --history regression            judge the splits of the application regression by its latest runs

The Python package `sublet` contains this command. It is executed by $SUBLET_PYTHON, or by python3 on PATH.
`python3 -m sublet.profile --help` shows all options.";

/// Prints [`FOUND`] in an interpreter that has the module. Another program than Python does not.
const FIND: &str =
    "import importlib.util; print('found' * (importlib.util.find_spec('sublet.profile') is not None))";
const FOUND: &[u8] = b"found";

/// Measure an application in Python, and propose where to split it
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Options of the Python module, a program, and the program's arguments
    #[arg(value_name = "ARGS", allow_hyphen_values = true, trailing_var_arg = true)]
    pub(crate) given: Vec<OsString>,
}

/// Becomes the Python module. Returns only if that fails.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    let named = std::env::var_os("SUBLET_PYTHON").filter(|path| !path.is_empty());
    let python = named.unwrap_or_else(|| "python3".into());
    let shown = python.display();
    let cannot = |error: &std::io::Error| {
        let message = format!(
            "cannot run {shown} ({error}): `sublet profile` needs Python with the package sublet; SUBLET_PYTHON names another"
        );
        Error::new(Code::InvalidArgument, message)
    };
    let mut find = Command::new(&python);
    find.args(["-c", FIND]).stdin(Stdio::null()).stderr(Stdio::null());
    let found = find.output().map_err(|error| cannot(&error))?;
    if !found.status.success() || found.stdout.trim_ascii() != FOUND {
        let message = format!(
            "{shown} does not have the package sublet with its module profile: install it there, or name another Python by \
             SUBLET_PYTHON"
        );
        return Err(Error::new(Code::InvalidArgument, message));
    }
    let json = (!output.is_for_people()).then_some("--json");
    let error = Command::new(&python).args(["-m", "sublet.profile"]).args(json).args(&arguments.given).exec();
    Err(cannot(&error))
}
