//! Worker processes that are global processes: what they do for a test, by the functions of `tests/functions/neighbours.c`.

use std::{fs, io};

use sublet::{Allocation, Error, Invoker};
use tempfile::TempDir;

use crate::cluster::{Cluster, ClusterPlan, LentCores};
use crate::numbers::narrow;
use crate::process::wait_until;
use crate::root;

/// A right to a FIFO.
pub const READ: u64 = 1;
/// See [`READ`].
pub const WRITE: u64 = 2;
/// See [`READ`].
pub const OWN: u64 = 4;

/// Capacity for the answer of a function, in bytes.
const ANSWER_BYTES: usize = 8192;

/// A worker process whose functions make a global process do what a test wants.
pub struct GlobalProcess(pub Invoker);

impl GlobalProcess {
    /// The process of a new lease.
    ///
    /// # Panics
    /// If it cannot be had.
    pub fn of(cluster: &Cluster, allocation: Allocation) -> GlobalProcess {
        let mut invoker = cluster.invoker();
        invoker.allocate(&allocation).unwrap_or_else(|error| panic!("{error}"));
        GlobalProcess(invoker)
    }

    /// Calls a function.
    pub fn call(&self, function: &str, input: &[u8]) -> Result<Vec<u8>, Error> {
        let mut output = vec![0u8; ANSWER_BYTES];
        let done = self.0.submit(function, input, &mut output)?.wait()?;
        output.truncate(done.output_bytes);
        Ok(output)
    }

    /// Calls one that takes words.
    pub fn words(&self, function: &str, words: &[u64]) -> Result<Vec<u8>, Error> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.call(function, &bytes)
    }

    /// Id of the global process.
    ///
    /// # Panics
    /// If it has none.
    pub fn pid(&self) -> u64 {
        word(&self.call("pid", &[]).unwrap_or_else(|error| panic!("{error}")), 0)
    }

    /// Makes a FIFO: its id and its descriptor.
    pub fn make(&self, name: &str) -> Result<(u64, u32), Error> {
        self.call("make", name.as_bytes()).map(|made| (word(&made, 0), narrow(word(&made, 8))))
    }

    /// Connects to a FIFO: the descriptor.
    pub fn join(&self, name: &str) -> Result<u32, Error> {
        self.call("join", name.as_bytes()).map(|fd| half(&fd))
    }

    /// Writes a message.
    pub fn say(&self, fd: u32, message: &[u8]) -> Result<(), Error> {
        self.call("say", &[&fd.to_le_bytes(), message].concat()).map(drop)
    }

    /// Reads a message: whose it was, and what.
    pub fn hear(&self, fd: u32, timeout_ms: u32) -> Result<(u64, Vec<u8>), Error> {
        let heard = self.call("hear", &[fd.to_le_bytes(), timeout_ms.to_le_bytes()].concat())?;
        Ok((word(&heard, 0), heard[8..].to_vec()))
    }

    /// Closes a descriptor.
    pub fn shut(&self, fd: u32) -> Result<(), Error> {
        self.call("shut", &fd.to_le_bytes()).map(drop)
    }

    /// Rights of the global process to a FIFO.
    ///
    /// # Panics
    /// If it cannot ask.
    pub fn rights(&self, object: u64) -> u32 {
        half(&self.words("may", &[object]).unwrap_or_else(|error| panic!("{error}")))
    }
}

/// A host, `node-0`, and a DPU, `node-1`, that name each other, each an agent on a network; both have these flags, too.
pub fn computer(more: &[&str]) -> Cluster {
    let mut cluster = Cluster::start(ClusterPlan::default());
    let host = ["--devices", "none", "--neighbour", "node-1", "--listen", "127.0.0.1:0"];
    cluster.add_agent_with(LentCores::cores(2), &[&host, more].concat());
    let dpu = ["--devices", "none", "--pu", "dpu", "--neighbour", "node-0", "--listen", "127.0.0.1:0"];
    cluster.add_agent_with(LentCores::cores(2), &[&dpu, more].concat());
    cluster
}

/// The package of `neighbours.py`, with what a client in Python adds for interpreters without `sublet`.
///
/// # Errors
/// If it cannot be written.
pub fn package_in_python() -> io::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let inside = folder.path().join("fallback/sublet");
    fs::create_dir_all(&inside)?;
    for entry in fs::read_dir(root().join("python/sublet"))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().ends_with(".py") {
            fs::copy(entry.path(), inside.join(entry.file_name()))?;
        }
    }
    fs::rename(inside.join("_inside.py"), inside.join("__init__.py"))?;
    let own =
        ["pid", "make", "allow", "forbid", "may", "join", "say", "hear", "shut", "die", "unit", "spawn"];
    let functions = own.iter().chain(&["delegate", "shout"]);
    let functions: String = functions.map(|name| format!("[[function]]\nname = '{name}'\n")).collect();
    let manifest = format!("name = 'neighbours'\nkind = 'python'\nlibrary = 'neighbours.py'\n{functions}");
    fs::write(folder.path().join("sublet.toml"), manifest)?;
    for file in ["neighbours.py", "child.py"] {
        fs::copy(root().join("tests/functions").join(file), folder.path().join(file))?;
    }
    Ok(folder)
}

/// The package of `neighbours.js`.
///
/// # Errors
/// If it cannot be written.
pub fn package_in_nodejs() -> io::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let own =
        ["pid", "make", "allow", "forbid", "may", "join", "say", "hear", "shut", "die", "unit", "spawn"];
    let functions = own.iter().chain(&["delegate", "shout", "wait"]);
    let functions: String = functions.map(|name| format!("[[function]]\nname = '{name}'\n")).collect();
    let manifest = format!("name = 'neighbours'\nkind = 'nodejs'\nlibrary = 'neighbours.js'\n{functions}");
    fs::write(folder.path().join("sublet.toml"), manifest)?;
    for file in ["neighbours.js", "child.js"] {
        fs::copy(root().join("tests/functions").join(file), folder.path().join(file))?;
    }
    Ok(folder)
}

/// The first processor that is linked with that of a process, when it is.
///
/// # Panics
/// If it never is, or that cannot be asked.
#[track_caller]
pub fn linked_unit(process: &GlobalProcess) -> u64 {
    let mut unit = 0;
    wait_until("the units are linked", || match process.call("unit", &1u32.to_le_bytes()) {
        Ok(found) => {
            unit = half(&found).into();
            true
        }
        Err(error) if error.message.contains("no processor 1") => false,
        Err(error) => panic!("{error}"),
    });
    unit
}

/// Checks that a result is an error whose message has this in it.
///
/// # Panics
/// If it did not.
#[track_caller]
pub fn refused<T>(outcome: Result<T, Error>, what: &str) {
    let Err(error) = outcome else { panic!("it should have failed: {what}") };
    assert!(error.message.contains(what), "{error}, where {what:?} was expected");
}

/// Grants when the units of owner and grantee are linked: process, FIFO and rights.
///
/// # Panics
/// If it is refused for another reason, or they never are.
#[track_caller]
pub fn allow(owner: &GlobalProcess, words: [u64; 3]) {
    wait_until("the units are linked", || match owner.words("allow", &words) {
        Ok(_) => true,
        Err(error) if error.message.contains("no neighbour, or is out of reach") => false,
        Err(error) => panic!("{error}"),
    });
}

/// Messages of many sizes, from a writer to a reader, each with its descriptor.
///
/// # Panics
/// If one does not arrive as it was.
#[track_caller]
pub fn exchange(reader: (&GlobalProcess, u32), writer: (&GlobalProcess, u32)) {
    for size in [0_u32, 1, 40, 41, 4096, 4097, 8184] {
        let message: Vec<u8> = (0..size).map(|at| (at * 3).to_le_bytes()[0]).collect();
        writer.0.say(writer.1, &message).unwrap_or_else(|error| panic!("{size} bytes: {error}"));
        let heard = reader.0.hear(reader.1, 5000).unwrap_or_else(|error| panic!("{size} bytes: {error}"));
        assert!(heard == (writer.0.pid(), message), "{size} bytes came as others");
    }
}

/// Connects a writer to a FIFO while its reader reads: where connections are encrypted, the reader does its part of the
/// handshake when it reads.
///
/// # Panics
/// If it cannot connect.
#[track_caller]
pub fn join_while_it_reads(writer: &GlobalProcess, name: &str, reader: (&GlobalProcess, u32)) -> u32 {
    std::thread::scope(|scope| {
        let joining = scope.spawn(|| writer.join(name).unwrap_or_else(|error| panic!("{error}")));
        while !joining.is_finished() {
            refused(reader.0.hear(reader.1, 20), "no process has written");
        }
        joining.join().expect("it says why it cannot")
    })
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes: [u8; 8] = bytes[at..at + 8].try_into().expect("eight bytes are eight bytes");
    u64::from_le_bytes(bytes)
}

fn half(bytes: &[u8]) -> u32 {
    let bytes: [u8; 4] = bytes[..4].try_into().expect("four bytes are four bytes");
    u32::from_le_bytes(bytes)
}
