//! The five verbs and the launch, on one open device.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};

use sublet_fabric::sync::lock;

use crate::lane::{Lane, Launch};
use crate::loaded::{LoadedFunction, LoadedFunctions};
use crate::making::FunctionMaker;
use crate::memory::BufferPool;
use crate::spec::Digest;
use crate::store::{self, ProgramStore};
use crate::{
    DeviceBuffer, DeviceError, DeviceSandboxId, Driver, Grid, KernelSpec, MAX_LANES, MAX_SANDBOXES,
    MAX_VECTOR,
};
use crate::{DeviceSandboxState, DeviceSandboxStatus, Patience, TenantId, Transfers, WorkSize};

pub use crate::lane::{LaunchInput, LaunchOutput};

/// Settings for caches.
#[derive(Clone, Debug)]
pub struct CacheSettings {
    /// The folder of programs on disk. `None`: programs do not outlive the process.
    pub store: Option<PathBuf>,
    /// Most bytes in that folder.
    pub store_bytes: u64,
    /// A file with an image that [`prepare`](crate::prepare) has made: its functions need no builder.
    pub image: Option<PathBuf>,
    /// Most bytes of programs that stay loaded without a sandbox.
    pub loaded_bytes: u64,
    /// Most bytes of free device memory that are kept.
    pub free_bytes: u64,
}

impl Default for CacheSettings {
    fn default() -> CacheSettings {
        let (store_bytes, loaded_bytes, free_bytes) = (1 << 30, 256 << 20, 256 << 20);
        CacheSettings { store: None, store_bytes, image: None, loaded_bytes, free_bytes }
    }
}

/// The sandboxes of one process on one device.
pub struct DeviceSandboxes<D: Driver> {
    pool: Arc<BufferPool<D>>,
    lanes: Vec<Mutex<Lane<D>>>,
    /// Number of the lane on which the next launch waits if all are busy.
    next_lane: AtomicUsize,
    store: Option<ProgramStore>,
    image: Option<Vec<u8>>,
    loaded: Mutex<LoadedFunctions<D>>,
    /// Locked while sandboxes are made: two threads at once would build the same functions, or exceed [`MAX_SANDBOXES`].
    making: Mutex<()>,
    table: Mutex<InstanceTable<D>>,
}

struct InstanceTable<D: Driver> {
    last: u64,
    instances: HashMap<DeviceSandboxId, Arc<Instance<D>>>,
}

struct Instance<D: Driver> {
    tenant: TenantId,
    work: WorkSize,
    digest: Digest,
    function: Arc<LoadedFunction<D>>,
    /// A kernel for each lane, from the sandbox's start on.
    kernels: OnceLock<Vec<Mutex<D::Kernel>>>,
    state: Mutex<DeviceSandboxState>,
}

impl<D: Driver> DeviceSandboxes<D> {
    /// Opens the sandboxes of a device.
    pub fn open(driver: D, settings: &CacheSettings) -> Result<DeviceSandboxes<D>, DeviceError> {
        let open = |folder: &PathBuf| ProgramStore::open(folder, settings.store_bytes);
        let store = settings.store.as_ref().map(open).transpose()?;
        // An image that cannot be read counts as missing; errors are then reported for each function.
        let image = settings.image.as_ref().and_then(|file| store::read(file));
        let lanes = driver.lanes().clamp(1, MAX_LANES);
        let pool = Arc::new(BufferPool::new(driver, settings.free_bytes)?);
        let lanes =
            (0..lanes).map(|number| Lane::new(&pool, number).map(Mutex::new)).collect::<Result<_, _>>()?;
        Ok(DeviceSandboxes {
            pool,
            lanes,
            next_lane: AtomicUsize::new(0),
            store,
            image,
            loaded: Mutex::new(LoadedFunctions::new(settings.loaded_bytes)),
            making: Mutex::new(()),
            table: Mutex::new(InstanceTable { last: 0, instances: HashMap::new() }),
        })
    }

    /// The driver of the device.
    pub fn driver(&self) -> &D {
        &self.pool.driver
    }

    /// Makes sandboxes: the functions of one tenant that are not on the device yet become one program image.
    pub fn create(&self, specs: &[KernelSpec]) -> Vec<Result<DeviceSandboxId, DeviceError>> {
        // Sandboxes are added only under this lock. So no other thread uses up the free places in between.
        let _making = lock(&self.making);
        let free = MAX_SANDBOXES.saturating_sub(lock(&self.table).instances.len());
        if specs.len() > MAX_VECTOR.min(free) {
            return specs.iter().map(|_| Err(DeviceError::TooMany)).collect();
        }
        if let Err(error) = self.pool.check() {
            return specs.iter().map(|_| Err(error.clone())).collect();
        }
        let checked: Vec<_> = specs.iter().map(KernelSpec::check).collect();
        let good = specs.iter().zip(&checked).filter(|(_, checked)| checked.is_ok()).map(|(spec, _)| spec);
        let functions = self.functions(good);
        let pairs = specs.iter().zip(checked);
        let created = pairs.map(|(spec, checked)| {
            checked?;
            let function = functions.get(&spec.digest()).expect("each that was checked was looked for");
            self.insert(spec, function.clone()?)
        });
        created.collect()
    }

    /// Makes sandboxes launchable.
    pub fn start(&self, ids: &[DeviceSandboxId]) -> Vec<Result<DeviceSandboxState, DeviceError>> {
        self.each(ids, |id, instance| {
            let mut state = lock(&instance.state);
            if state.status != DeviceSandboxStatus::Created {
                return Err(DeviceError::WrongStatus { id, status: state.status, verb: "start" });
            }
            let kernel = |_: &_| self.driver().kernel(&instance.function.module, &instance.function.name);
            let kernels: Result<Vec<_>, _> =
                self.lanes.iter().map(|lane| kernel(lane).map(Mutex::new)).collect();
            let is_first = instance.kernels.set(kernels?).is_ok();
            debug_assert!(is_first, "sandbox {id}, which is {:?}, has kernels already", state.status);
            state.status = DeviceSandboxStatus::Running;
            Ok(*state)
        })
    }

    /// Returns the states of sandboxes.
    pub fn state(&self, ids: &[DeviceSandboxId]) -> Vec<Result<DeviceSandboxState, DeviceError>> {
        self.each(ids, |_, instance| Ok(*lock(&instance.state)))
    }

    /// Kills sandboxes: they are launched no more. The returned state includes a launch that has not ended. Neither
    /// OpenCL nor CUDA can stop such a launch; to end it, the caller must end this process.
    pub fn kill(&self, ids: &[DeviceSandboxId]) -> Vec<Result<DeviceSandboxState, DeviceError>> {
        self.each(ids, |_, instance| {
            let mut state = lock(&instance.state);
            state.status = DeviceSandboxStatus::Stopped;
            Ok(*state)
        })
    }

    /// Removes sandboxes. Their programs stay on the device until other programs need the space.
    pub fn delete(&self, ids: &[DeviceSandboxId]) -> Vec<Result<(), DeviceError>> {
        self.each(ids, |id, instance| {
            self.pool.check()?;
            let DeviceSandboxState { status, launches } = *lock(&instance.state);
            if status == DeviceSandboxStatus::Running {
                return Err(DeviceError::WrongStatus { id, status, verb: "delete" });
            }
            if launches > 0 {
                return Err(DeviceError::RunsOn);
            }
            if lock(&self.table).instances.remove(&id).is_some() {
                lock(&self.loaded).unpin(&instance.digest);
            }
            Ok(())
        })
    }

    /// Calls a function: launches its kernel on the first free lane, waits, and returns the number of bytes written.
    pub fn launch(
        &self,
        id: DeviceSandboxId,
        input: LaunchInput<'_, D>,
        output: LaunchOutput<'_, D>,
        patience: Patience,
    ) -> Result<u32, DeviceError> {
        self.pool.check()?;
        let instance = self.find(id)?;
        let entered = LaunchGuard::new(id, &instance)?;
        let size = match &input {
            LaunchInput::Host(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            LaunchInput::Device(buffer) => buffer.len_bytes(),
        };
        let grid = Grid { items: instance.work.items_for(size), group: instance.work.group };
        debug_assert!(
            grid.group.is_none_or(|group| grid.items.is_multiple_of(u64::from(group))),
            "{grid:?} of sandbox {id} has a part of a group"
        );
        let kernels = instance.kernels.get().expect("what runs was started");
        let ended = self.on_free_lane(|number, lane| {
            let mut kernel = lock(&kernels[number]);
            let launch = Launch { tenant: instance.tenant, kernel: &mut *kernel, grid, patience };
            lane.run(launch, input, output)
        });
        if matches!(ended, Err(DeviceError::RunsOn)) {
            // The launch counts as long as this process lives.
            std::mem::forget(entered);
        }
        ended
    }

    /// Makes a buffer on the device for one tenant's functions.
    pub fn buffer(&self, tenant: TenantId, capacity_bytes: u32) -> Result<DeviceBuffer<D>, DeviceError> {
        DeviceBuffer::new(&self.pool, tenant, capacity_bytes)
    }

    /// Counts of transfers between host and device so far.
    pub fn transfers(&self) -> Transfers {
        self.pool.transfers()
    }

    /// The functions of specifications. Makes those that are missing.
    fn functions<'a>(
        &self,
        specs: impl Iterator<Item = &'a KernelSpec>,
    ) -> HashMap<Digest, FunctionResult<D>> {
        let (mut functions, mut missing) = (HashMap::new(), BTreeMap::<TenantId, Vec<&KernelSpec>>::new());
        for spec in specs {
            let digest = spec.digest();
            let is_new = !functions.contains_key(&digest);
            match lock(&self.loaded).find(&digest) {
                Some(function) => drop(functions.insert(digest, Ok(function))),
                None if is_new => {
                    functions.insert(digest, Err(DeviceError::TooMany));
                    missing.entry(spec.tenant).or_default().push(spec);
                }
                None => {}
            }
        }
        let maker =
            FunctionMaker { driver: self.driver(), store: self.store.as_ref(), image: self.image.as_deref() };
        for specs in missing.into_values() {
            for (spec, made) in specs.iter().zip(maker.make(&specs)) {
                let function = made.map(|(function, cost)| {
                    lock(&self.loaded).insert(spec.digest(), Arc::clone(&function), cost);
                    function
                });
                functions.insert(spec.digest(), function);
            }
        }
        functions
    }

    fn insert(
        &self,
        spec: &KernelSpec,
        function: Arc<LoadedFunction<D>>,
    ) -> Result<DeviceSandboxId, DeviceError> {
        let digest = spec.digest();
        lock(&self.loaded).pin(&digest);
        let state = Mutex::new(DeviceSandboxState { status: DeviceSandboxStatus::Created, launches: 0 });
        let (tenant, work, kernels) = (spec.tenant, spec.work, OnceLock::new());
        let instance = Instance { tenant, work, digest, function, kernels, state };
        let mut table = lock(&self.table);
        table.last += 1;
        let id = DeviceSandboxId(table.last);
        let before = table.instances.insert(id, Arc::new(instance));
        debug_assert!(before.is_none(), "two sandboxes have the number {id}");
        debug_assert!(table.instances.len() <= MAX_SANDBOXES, "{} sandboxes", table.instances.len());
        Ok(id)
    }

    fn find(&self, id: DeviceSandboxId) -> Result<Arc<Instance<D>>, DeviceError> {
        lock(&self.table).instances.get(&id).cloned().ok_or(DeviceError::Unknown(id))
    }

    fn each<T>(
        &self,
        ids: &[DeviceSandboxId],
        verb: impl Fn(DeviceSandboxId, &Instance<D>) -> Result<T, DeviceError>,
    ) -> Vec<Result<T, DeviceError>> {
        if ids.len() > MAX_VECTOR {
            return ids.iter().map(|_| Err(DeviceError::TooMany)).collect();
        }
        ids.iter().map(|id| self.find(*id).and_then(|instance| verb(*id, &instance))).collect()
    }

    fn on_free_lane<T>(&self, work: impl FnOnce(usize, &mut Lane<D>) -> T) -> T {
        for (number, lane) in self.lanes.iter().enumerate() {
            match lane.try_lock() {
                Ok(mut lane) => return work(number, &mut lane),
                Err(TryLockError::Poisoned(poisoned)) => return work(number, &mut poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        let number = self.next_lane.fetch_add(1, Relaxed) % self.lanes.len();
        work(number, &mut lock(&self.lanes[number]))
    }
}

impl<D: Driver> Drop for DeviceSandboxes<D> {
    /// Leaks all objects that a kernel may use if it has not ended: even a request to release them could block for
    /// good.
    fn drop(&mut self) {
        if self.pool.is_lost() {
            std::mem::forget(Arc::clone(&self.pool));
            std::mem::forget(std::mem::take(&mut self.lanes));
            std::mem::forget(std::mem::take(&mut lock(&self.table).instances));
            std::mem::forget(std::mem::replace(&mut *lock(&self.loaded), LoadedFunctions::new(0)));
        }
    }
}

type FunctionResult<D> = Result<Arc<LoadedFunction<D>>, DeviceError>;

/// A launch that has not ended.
struct LaunchGuard<'a> {
    state: &'a Mutex<DeviceSandboxState>,
}

impl<'a> LaunchGuard<'a> {
    fn new<D: Driver>(
        id: DeviceSandboxId,
        instance: &'a Instance<D>,
    ) -> Result<LaunchGuard<'a>, DeviceError> {
        let mut state = lock(&instance.state);
        if state.status != DeviceSandboxStatus::Running {
            return Err(DeviceError::WrongStatus { id, status: state.status, verb: "launch" });
        }
        state.launches += 1;
        Ok(LaunchGuard { state: &instance.state })
    }
}

impl Drop for LaunchGuard<'_> {
    fn drop(&mut self) {
        lock(self.state).launches -= 1;
    }
}
