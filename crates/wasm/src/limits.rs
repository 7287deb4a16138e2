//! Limits the resources of a call, and configures Wasmtime to enforce the limits.

use std::time::Duration;

use sublet_proto::package::{DEFAULT_DEADLINE_MS, WasmLimits};
use sublet_proto::to_usize;
use sublet_runtime::worker::engine::EngineLoad;
use wasmtime::{Config, InstanceAllocationStrategy, PoolingAllocationConfig};

/// The size of a page of linear memory, in bytes.
pub(crate) const PAGE_BYTES: u64 = 1 << 16;
/// Most linear memory that a module can address, in bytes.
pub(crate) const MOST_MEMORY_BYTES: u64 = 1 << 32;
/// Maximum number of tables of a module, and of elements of each.
const MAX_TABLES: u32 = 2;
const MAX_TABLE_ELEMENTS: usize = 1 << 16;
/// Memory that Wasmtime keeps for an instance besides its linear memory and tables, in bytes.
const MAX_INSTANCE_BYTES: usize = 16 << 20;
/// Maximum stack of WebAssembly calls on a worker thread, in bytes.
const MAX_STACK_BYTES: usize = 1 << 20;
/// Size of the part of a linear memory, and of tables, that is cleared by writing zeros instead of releasing pages, in bytes:
/// the pages that small calls touch, one of the module and one for input and output.
const KEEP_RESIDENT_BYTES: usize = 128 << 10;

/// Limits of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallLimits {
    pub(crate) deadline: Duration,
    /// Maximum of the linear memory, including input and output, in whole pages.
    pub(crate) memory_bytes: u64,
    pub(crate) fuel: Option<u64>,
}

impl CallLimits {
    /// Returns the package's limits, bounded by the lease.
    pub(crate) fn new(said: WasmLimits, load: &EngineLoad<'_>) -> CallLimits {
        let share = load.memory_bytes / u64::from(load.workers.max(1));
        let memory_bytes = said.memory_bytes.unwrap_or(u64::MAX).min(share).min(MOST_MEMORY_BYTES);
        CallLimits {
            deadline: Duration::from_millis(said.deadline_ms.unwrap_or(DEFAULT_DEADLINE_MS)),
            memory_bytes: memory_bytes / PAGE_BYTES * PAGE_BYTES,
            fuel: said.fuel,
        }
    }

    /// Returns the configuration for this number of concurrent calls.
    pub(crate) fn config(&self, workers: u32) -> Config {
        let mut config = Config::new();
        config
            .allocation_strategy(InstanceAllocationStrategy::Pooling(self.pool(workers)))
            .epoch_interruption(true)
            .consume_fuel(self.fuel.is_some())
            .max_wasm_stack(MAX_STACK_BYTES)
            // Errors are reported in one line; backtraces would take memory for each instruction.
            .wasm_backtrace(false)
            .generate_address_map(false)
            .wasm_memory64(false)
            .wasm_multi_memory(false);
        config
    }

    fn pool(&self, workers: u32) -> PoolingAllocationConfig {
        let mut pool = PoolingAllocationConfig::new();
        pool.total_core_instances(workers)
            .total_memories(workers)
            .total_tables(workers.saturating_mul(MAX_TABLES))
            .max_memories_per_module(1)
            .max_tables_per_module(MAX_TABLES)
            .max_memory_size(to_usize(self.memory_bytes))
            .table_elements(MAX_TABLE_ELEMENTS)
            .max_core_instance_size(MAX_INSTANCE_BYTES)
            .linear_memory_keep_resident(KEEP_RESIDENT_BYTES)
            .table_keep_resident(KEEP_RESIDENT_BYTES);
        pool
    }
}
