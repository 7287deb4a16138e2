//! Serves the package's functions to a process of the same computer that has started this worker process as its
//! executor ([`sublet_xpu::executor`]): calls come by a FIFO, and no client is connected.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use sublet_fabric::clock::ticks;
use sublet_fabric::region::Region;
use sublet_proto::v1::{PackageInfo, WorkerSetup};
use sublet_proto::{Code, Error};
use sublet_xpu::{Execute, ServedExecutor};

use super::engine::{
    BufferName, CallInput, CallOutput, Engine, EngineLoad, FunctionCaller, InputSource, OutputSink,
};
use super::preparation::{pin, read_manifest};
use crate::wire::usage::{UsageLayout, WorkerMeter};

/// Longest time to send the caller the first answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Executes calls until their caller is done. The second descriptor is the usage region.
pub(super) fn run<E: Engine>(
    setup: &WorkerSetup,
    words: &[Vec<u8>],
    usage: Option<OwnedFd>,
    load: impl FnOnce(&EngineLoad<'_>) -> Result<E, Error>,
) -> Result<u8, Error> {
    let lacks = |what: &str| Error::new(Code::Protocol, format!("an executor without a {what}"));
    pin(setup.cores.first_chunk::<1>().ok_or_else(|| lacks("core"))?)?;
    let layout = UsageLayout::new(1, setup.functions);
    let usage = Region::attach(usage.ok_or_else(|| lacks("usage region"))?, layout.len_bytes())?;
    let meter = WorkerMeter::new(&usage, layout, 0)?;
    let folder = Path::new(&setup.package_folder);
    let package = read_manifest(folder)?;
    let (build, memory_bytes) = (setup.build, setup.memory_bytes);
    let mut engine = None;
    let begin = || {
        let variables = &setup.variables;
        let load_one = EngineLoad { folder, package: &package, build, workers: 1, memory_bytes, variables };
        engine = Some(load(&load_one)?);
        Ok(())
    };
    let mut served =
        ServedExecutor::begin(sublet_xpu::process()?, words, Some(Instant::now() + PATIENCE), begin)?;
    let engine = engine.ok_or_else(|| lacks("loaded package"))?;
    let caller = engine.caller(0)?;
    served.serve(CountedFunctions { package: &package, meter, caller })?;
    Ok(0)
}

/// A package's functions, each call of which is counted.
struct CountedFunctions<'run, C> {
    package: &'run PackageInfo,
    meter: WorkerMeter<'run>,
    caller: C,
}

impl<C> CountedFunctions<'_, C> {
    fn number(&self, name: &str) -> Result<u16, Error> {
        let found = self.package.functions.iter().position(|function| function.name == name);
        found
            .and_then(|number| u16::try_from(number).ok())
            .ok_or_else(|| Error::new(Code::UnknownFunction, format!("the package has no function {name:?}")))
    }
}

impl<C: FunctionCaller> Execute for CountedFunctions<'_, C> {
    const KEEPS: bool = C::KEEPS;

    fn execute(
        &mut self,
        name: &str,
        from: InputSource<&[u8]>,
        to: OutputSink<&mut [u8]>,
    ) -> Result<u32, Error> {
        let function = self.number(name)?;
        let CountedFunctions { meter, caller, .. } = self;
        let entered = ticks();
        let call = meter.enter(function, entered, false);
        let called = caller.step(function, from.map(CallInput::of), to.map(CallOutput::of));
        meter.answer(&call, called.is_err());
        let said = called.map_err(|code| Error::new(code, String::from_utf8_lossy(caller.message())));
        let left = ticks();
        meter.leave(&call, left, left.saturating_sub(entered));
        meter.rest();
        said
    }

    fn copy(&mut self, from: InputSource<&[u8]>, to: OutputSink<&mut [u8]>) -> Result<u32, Error> {
        let copied = self.caller.copy(from.map(CallInput::of), to.map(CallOutput::of));
        copied.map_err(|code| Error::new(code, String::from_utf8_lossy(self.caller.message())))
    }

    fn forget(&mut self, place: BufferName) {
        self.caller.forget(place);
    }

    fn rest(&mut self) {
        self.caller.rest();
    }
}
