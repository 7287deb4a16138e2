//! Binds segments to the NUMA nodes that the operator names, such as nodes without cores that extend a machine's memory.

use std::collections::BTreeSet;
use std::fs;

use sublet_fabric::region::{PAGE_BYTES, Region};
use sublet_proto::{Code, Error};

/// Folder in which the kernel describes each NUMA node.
const NODES: &str = "/sys/devices/system/node";
/// Bytes that stay free on the nodes when segments allocate their pages.
const SPARE_BYTES: u64 = 64 << 20;

/// The NUMA nodes of an agent's segments; without any, the kernel chooses.
#[derive(Clone, Debug, Default)]
pub(crate) struct NumaNodes(Vec<u32>);

/// Memory of NUMA nodes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NodeMemory {
    total_bytes: u64,
    /// Free memory, and memory that only caches files.
    available_bytes: u64,
}

impl NumaNodes {
    /// Checks that the nodes have memory, and that this process may bind memory to them.
    pub(crate) fn find(nodes: &[u32]) -> Result<NumaNodes, Error> {
        // The memory of a node that is named twice counts once.
        let nodes: BTreeSet<u32> = nodes.iter().copied().collect();
        let found = NumaNodes(nodes.into_iter().collect());
        if !found.0.is_empty() {
            found.memory()?;
            found.bind(&Region::create("sublet-numa", PAGE_BYTES)?)?;
        }
        Ok(found)
    }

    /// The memory to lend: `wanted_bytes`, or three quarters of what the nodes have.
    pub(crate) fn to_lend(&self, wanted_bytes: Option<u64>) -> Result<Option<u64>, Error> {
        if self.0.is_empty() {
            return Ok(wanted_bytes);
        }
        let NodeMemory { total_bytes, .. } = self.memory()?;
        match wanted_bytes {
            Some(wanted) if wanted > total_bytes => {
                let message = format!(
                    "cannot lend {wanted} bytes of memory: NUMA nodes {:?} (numa_nodes) have {total_bytes}",
                    self.0
                );
                Err(Error::new(Code::InsufficientResources, message))
            }
            Some(wanted) => Ok(Some(wanted)),
            None => Ok(Some(total_bytes / 4 * 3)),
        }
    }

    /// Binds a segment, before its pages are allocated, if the nodes have the memory.
    ///
    /// # Errors
    /// `no_capacity` if they do not, `insufficient_resources` if they are not there any more: segments of other agents
    /// may be.
    pub(crate) fn place(&self, segment: &Region) -> Result<(), Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        let gone = |error: Error| Error::new(Code::InsufficientResources, error.message);
        let (len_bytes, NodeMemory { available_bytes, .. }) =
            (segment.len_bytes(), self.memory().map_err(gone)?);
        // Otherwise the kernel would kill processes to make space on the nodes.
        if available_bytes < len_bytes.saturating_add(SPARE_BYTES) {
            let message = format!(
                "{len_bytes} bytes of memory asked, NUMA nodes {:?} have {available_bytes} left, of which {SPARE_BYTES} are \
                 spared",
                self.0
            );
            return Err(Error::new(Code::NoCapacity, message));
        }
        self.bind(segment).map_err(gone)
    }

    fn bind(&self, region: &Region) -> Result<(), Error> {
        let refused = |error: Error| {
            let message = format!(
                "{} (numa_nodes): the process needs the system call mbind, which containers may refuse, and nodes that its \
                 cpuset allows",
                error.message
            );
            Error::new(error.code, message)
        };
        region.bind_to_nodes(&self.0).map_err(|error| refused(error.into()))
    }

    /// The memory of all nodes together.
    fn memory(&self) -> Result<NodeMemory, Error> {
        let mut all = NodeMemory::default();
        for node in &self.0 {
            let path = format!("{NODES}/node{node}/meminfo");
            let info = fs::read_to_string(&path).map_err(|error| {
                let message =
                    format!("there is no NUMA node {node} (numa_nodes): cannot read {path}: {error}");
                Error::new(Code::InvalidArgument, message)
            })?;
            let memory = memory_of(&info).filter(|memory| memory.total_bytes > 0).ok_or_else(|| {
                let message = format!("NUMA node {node} (numa_nodes) has no memory");
                Error::new(Code::InvalidArgument, message)
            })?;
            all.total_bytes = all.total_bytes.saturating_add(memory.total_bytes);
            all.available_bytes = all.available_bytes.saturating_add(memory.available_bytes);
        }
        Ok(all)
    }
}

/// Reads the memory of a node from the kernel's description.
fn memory_of(info: &str) -> Option<NodeMemory> {
    let bytes = |name: &str| {
        let (_, rest) = info.lines().find_map(|line| line.split_once(name))?;
        rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
    };
    let caches = ["Active(file):", "Inactive(file):"].map(|name| bytes(&format!(" {name}")).unwrap_or(0));
    let available_bytes = caches.into_iter().fold(bytes(" MemFree:")?, u64::saturating_add);
    Some(NodeMemory { total_bytes: bytes(" MemTotal:")?, available_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_memory_of_a_node() {
        let info = "Node 1 MemTotal:       2048 kB\nNode 1 MemFree:        1024 kB\nNode 1 Active:          900 kB\n\
                    Node 1 Active(file):      8 kB\nNode 1 Inactive(file):     16 kB\n";
        let memory = NodeMemory { total_bytes: 2048 << 10, available_bytes: (1024 + 8 + 16) << 10 };
        assert_eq!(memory_of(info), Some(memory));
        assert_eq!(memory_of("Node 1 MemTotal: many kB\nNode 1 MemFree: 1 kB\n"), None);
        assert_eq!(memory_of(""), None);
    }

    #[test]
    fn binds_pages_of_a_segment_to_the_named_node() {
        let nodes = NumaNodes::find(&[0]).unwrap();
        let segment = Region::create("sublet-far", PAGE_BYTES).unwrap();
        let policy = || {
            let maps = fs::read_to_string("/proc/self/numa_maps").unwrap();
            maps.lines().find(|line| line.contains("/memfd:sublet-far")).unwrap_or_default().to_owned()
        };
        assert!(!policy().contains("bind:"), "{}", policy());
        NumaNodes::default().place(&segment).unwrap();
        assert!(!policy().contains("bind:"), "{}", policy());
        nodes.place(&segment).unwrap();
        assert!(policy().contains(" bind:0 "), "{}", policy());
    }

    #[test]
    fn refuses_nodes_that_are_missing_and_memory_that_they_lack() {
        let error = NumaNodes::find(&[0, 1023]).unwrap_err();
        assert!(error.code == Code::InvalidArgument && error.message.contains("NUMA node 1023"), "{error}");
        let nodes = NumaNodes::find(&[0]).unwrap();
        let total_bytes = nodes.memory().unwrap().total_bytes;
        assert_eq!(nodes.to_lend(None).unwrap(), Some(total_bytes / 4 * 3));
        assert_eq!(nodes.to_lend(Some(4096)).unwrap(), Some(4096));
        let twice = NumaNodes::find(&[0, 0]).unwrap();
        assert_eq!(twice.memory().unwrap().total_bytes, total_bytes, "a node counts once");
        let error = nodes.to_lend(Some(total_bytes + 1)).unwrap_err();
        assert!(
            error.code == Code::InsufficientResources && error.message.contains("NUMA nodes [0]"),
            "{error}"
        );
        assert_eq!(NumaNodes::default().to_lend(None).unwrap(), None);
        let region = Region::create("sublet-none", PAGE_BYTES).unwrap();
        assert!(region.bind_to_nodes(&[1 << 20]).is_err());
        let error = NumaNodes(vec![1023]).bind(&region).unwrap_err();
        assert!(error.message.contains("numa_nodes") && error.message.contains("mbind"), "{error}");
        // A node that was taken off the machine: the client is to look elsewhere.
        assert_eq!(NumaNodes(vec![1023]).place(&region).unwrap_err().code, Code::InsufficientResources);
    }
}
