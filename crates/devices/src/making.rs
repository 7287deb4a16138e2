//! Makes loaded functions of specifications by the shortest way: from an image that was made ahead or is on the disk,
//! otherwise from one that is linked of parts, each compiled before or now.
//!
//! All functions of one call belong to one tenant: a program has variables and names that its functions share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crate::image::{KernelLocation, ProgramImage};
use crate::keep_alive::EntryCost;
use crate::loaded::LoadedFunction;
use crate::spec::{Digest, image_digest};
use crate::store::{ProgramStore, record};
use crate::{BuildResult, DeviceError, Driver, ImagePart, KernelProgram, KernelSpec};

/// A function and the cost of making it.
pub(crate) type Made<D> = (Arc<LoadedFunction<D>>, EntryCost);

/// One of the needed programs, with the kernels that are needed of it.
struct NeededProgram<'a> {
    program: &'a KernelProgram,
    digest: Digest,
    kernels: Vec<String>,
    /// Prefix that distinguishes its kernels from others of the same name.
    prefix: String,
}

/// Sources of functions.
pub(crate) struct FunctionMaker<'a, D> {
    pub driver: &'a D,
    pub store: Option<&'a ProgramStore>,
    /// An image that [`FunctionMaker::prepare`] has made.
    pub image: Option<&'a [u8]>,
}

impl<D: Driver> FunctionMaker<'_, D> {
    /// Makes one tenant's functions, each with its own result.
    pub fn make(&self, specs: &[&KernelSpec]) -> Vec<Result<Made<D>, DeviceError>> {
        let begun = Instant::now();
        let wanted = wanted(specs);
        let found = match self.before(&wanted).map_or_else(|| self.now(&wanted), Ok) {
            Ok(found) => found,
            Err(error) => return specs.iter().map(|_| Err(error.clone())).collect(),
        };
        let load_us = micros_since(begun);
        let size_bytes = found.0.len_bytes().div_ceil(specs.len().max(1) as u64);
        let functions = self.functions(specs, &wanted, &found).into_iter();
        functions
            .map(|function| function.map(|function| (function, EntryCost { load_us, size_bytes })))
            .collect()
    }

    /// Makes an image of one tenant's functions for processes that only load it; `None` if the existing one is valid.
    pub fn prepare(&self, specs: &[&KernelSpec]) -> Result<Option<Vec<u8>>, DeviceError> {
        let (begun, wanted) = (Instant::now(), wanted(specs));
        let before = self.before(&wanted);
        let is_there = before.is_some();
        let found = before.map_or_else(|| self.now(&wanted), Ok)?;
        let build_us = micros_since(begun);
        self.functions(specs, &wanted, &found).into_iter().try_for_each(|function| function.map(drop))?;
        let encode = || record::encode(&self.digest(wanted.iter()), build_us, &found.0.encode());
        Ok((!is_there).then(encode))
    }

    fn functions(
        &self,
        specs: &[&KernelSpec],
        wanted: &[NeededProgram<'_>],
        (_, parts, modules): &Found<D>,
    ) -> Vec<Result<Arc<LoadedFunction<D>>, DeviceError>> {
        let function = |spec: &&KernelSpec| {
            let digest = spec.program.digest();
            let at = wanted.iter().position(|part| part.digest == digest).expect("each spec is in a part");
            let place = parts[at]
                .as_ref()
                .map_err(|log| DeviceError::Build { name: spec.kernel.clone(), log: log.clone() })?;
            let module = modules[place.program].clone().map_err(|error| named(error, &spec.kernel))?;
            let name = place.prefix.clone() + &spec.kernel;
            // A missing kernel is detected now, and not when it is called.
            self.driver.kernel(&module, &name).map_err(|error| named(error, &spec.kernel))?;
            Ok(Arc::new(LoadedFunction { module, name }))
        };
        specs.iter().map(function).collect()
    }

    /// Loads an image that was made before.
    fn before(&self, wanted: &[NeededProgram<'_>]) -> Option<Found<D>> {
        let digest = self.digest(wanted.iter());
        let ahead = self.image.and_then(|image| record::decode(image.to_vec(), &digest));
        let payload = match ahead {
            Some((_, payload)) => payload,
            None => self.store?.get(&digest)?.0,
        };
        let image = ProgramImage::decode(&payload, wanted.len())?;
        let modules = self.load(&image);
        let parts = image.places.iter().cloned().map(Ok).collect();
        // The driver may refuse a program on disk in spite of its digest; then it counts as missing.
        modules.iter().all(Result::is_ok).then_some((image, parts, modules))
    }

    /// Builds and loads a new image.
    fn now(&self, wanted: &[NeededProgram<'_>]) -> Result<Found<D>, DeviceError> {
        let (image, parts) = self.build(wanted)?;
        let modules = self.load(&image);
        Ok((image, parts, modules))
    }

    fn load(&self, image: &ProgramImage) -> Vec<Result<Arc<D::Module>, DeviceError>> {
        image.programs.iter().map(|program| self.driver.load(program).map(Arc::new)).collect()
    }

    /// Builds an image, and stores the objects and the image of those parts that did build.
    fn build(
        &self,
        wanted: &[NeededProgram<'_>],
    ) -> Result<(ProgramImage, Vec<Result<KernelLocation, String>>), DeviceError> {
        let begun = Instant::now();
        let parts: Vec<_> = wanted.iter().map(|wanted| self.part(wanted)).collect();
        let BuildResult { programs, parts } = self.driver.build(&parts)?;
        debug_assert_eq!(parts.len(), wanted.len(), "parts of {} programs", programs.len());
        let build_us = micros_since(begun);
        let place = |wanted: &NeededProgram<'_>, part: Result<crate::driver::BuiltPart, String>| {
            let part = part?;
            if let (Some(store), Some(object)) = (self.store, &part.object) {
                // An object that cannot be stored is built again.
                let _ = store.put(&self.object_digest(wanted), build_us / parts_of(wanted), object);
            }
            let prefix = if part.is_prefixed { wanted.prefix.clone() } else { String::new() };
            Ok(KernelLocation { program: part.program, prefix })
        };
        let places: Vec<Result<KernelLocation, String>> =
            wanted.iter().zip(parts).map(|(wanted, part)| place(wanted, part)).collect();
        let image = ProgramImage { programs, places: places.iter().flatten().cloned().collect() };
        if let Some(store) = self.store
            && !image.places.is_empty()
        {
            let good =
                wanted.iter().zip(&places).filter(|(_, place)| place.is_ok()).map(|(wanted, _)| wanted);
            let _ = store.put(&self.digest(good), build_us, &image.encode());
        }
        Ok((image, places))
    }

    fn part<'w>(&self, wanted: &'w NeededProgram<'_>) -> ImagePart<'w> {
        let prefix = &wanted.prefix;
        match wanted.program {
            KernelProgram::Binary(bytes) => ImagePart::Binary(bytes),
            KernelProgram::Source { text, options } => {
                match self.store.and_then(|store| store.get(&self.object_digest(wanted))) {
                    Some((bytes, _)) => ImagePart::Object { bytes, prefix },
                    None => ImagePart::Source { text, options, kernels: &wanted.kernels, prefix },
                }
            }
        }
    }

    fn digest<'w>(&self, parts: impl Iterator<Item = &'w NeededProgram<'w>>) -> Digest {
        let parts = parts.map(|wanted| (wanted.digest, &wanted.kernels[..]));
        image_digest(D::KIND, self.driver.identity(), parts)
    }

    fn object_digest(&self, wanted: &NeededProgram<'_>) -> Digest {
        let object = ["(object)".to_owned()];
        let parts = [(wanted.digest, &wanted.kernels[..]), ([0; 32], &object[..])];
        image_digest(D::KIND, self.driver.identity(), parts.into_iter())
    }
}

type Found<D> =
    (ProgramImage, Vec<Result<KernelLocation, String>>, Vec<Result<Arc<<D as Driver>::Module>, DeviceError>>);

fn micros_since(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX)
}

fn parts_of(wanted: &NeededProgram<'_>) -> u64 {
    wanted.kernels.len().max(1) as u64
}

/// The different programs, in an order that does not depend on the order of the specifications.
fn wanted<'a>(specs: &[&'a KernelSpec]) -> Vec<NeededProgram<'a>> {
    let mut programs: BTreeMap<Digest, NeededProgram<'a>> = BTreeMap::new();
    for spec in specs {
        let digest = spec.program.digest();
        let (program, kernels) = (&spec.program, Vec::new());
        let hex: String = digest[..6].iter().map(|byte| format!("{byte:02x}")).collect();
        let prefix = format!("f{hex}_");
        let wanted =
            programs.entry(digest).or_insert_with(|| NeededProgram { program, digest, kernels, prefix });
        wanted.kernels.push(spec.kernel.clone());
    }
    let mut wanted: Vec<_> = programs.into_values().collect();
    for program in &mut wanted {
        program.kernels.sort();
        program.kernels.dedup();
    }
    wanted
}

/// Adds this kernel's name to an error.
fn named(error: DeviceError, kernel: &str) -> DeviceError {
    let name = kernel.to_owned();
    match error {
        DeviceError::Build { log, .. } => DeviceError::Build { name, log },
        DeviceError::NoKernel { reason, .. } => DeviceError::NoKernel { name, reason },
        other => other,
    }
}
