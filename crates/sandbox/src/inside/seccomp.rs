//! Restricts the system calls of a sandbox to a list, some only with harmless arguments. All others fail with
//! EPERM, as if the caller had not the right.
//!
//! The list leaves out, above all, calls that trace or read other processes, and calls for mounts, namespaces, keys,
//! modules, programs for the kernel (bpf), performance events, handles of files, clocks, and sockets. It also leaves
//! out io_uring, which would do the forbidden operations here, and userfaultfd, which is allowed only by the device,
//! for a process that gets it to swap. A sandbox without a network can use a socket that is passed to it, and neither
//! make nor connect one: such a socket is of the host's network, and could be connected anew.
//!
//! `clone3` is said not to exist, since a filter cannot see its flags; the C libraries then use `clone`, whose flags it
//! can see.

mod allowed;
mod program;

use std::io;

use allowed::{ALLOWED, ALLOWED_OF_OLD, DIALLING};
use program::{CallVerdict, Rules, Test};

use crate::system;
use crate::{Devices, NetworkAccess};

/// Flags of all ways into a namespace that is not the sandbox's.
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u32;
const FAST_OPEN: u32 = libc::MSG_FASTOPEN as u32;
/// Asks of descriptors that concern the descriptor alone.
const HARMLESS_IOCTLS: [libc::Ioctl; 6] =
    [libc::FIONREAD, libc::FIONBIO, libc::FIOCLEX, libc::FIONCLEX, libc::TCGETS, libc::TIOCGWINSZ];
/// Requests to `/dev/userfaultfd`, and to the descriptor that it makes (linux/userfaultfd.h), of a process that gets
/// the device: make a descriptor; get its features; watch a range; put pages there, move, protect and discard them, and
/// wake waiting threads.
const FAULT_IOCTLS: [u32; 8] =
    [0xaa00, 0xc018_aa3f, 0xc020_aa00, 0xc028_aa03, 0xc028_aa05, 0xc018_aa06, 0xc020_aa08, 0x8010_aa02];
/// Families of which [`NetworkAccess::Host`] may make sockets: the internet's protocols, and the kernel's information on
/// interfaces.
const HOST_FAMILIES: [libc::c_int; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// The compiled filters: one for each kind of network, one for a GPU without a network, and one for swapping without a
/// network.
pub(crate) struct Filters {
    without_network: Vec<libc::sock_filter>,
    host_network: Vec<libc::sock_filter>,
    gpu: Vec<libc::sock_filter>,
    faults: Vec<libc::sock_filter>,
}

impl Filters {
    pub(crate) fn compile() -> Filters {
        let of = |network, devices| program::compile(&rules(network, devices), libc::EPERM);
        Filters {
            without_network: of(NetworkAccess::None, Devices::None),
            host_network: of(NetworkAccess::Host, Devices::None),
            gpu: of(NetworkAccess::None, Devices::Gpu),
            faults: of(NetworkAccess::None, Devices::Faults),
        }
    }

    /// Restricts this process and all that it will start, for ever.
    pub(super) fn apply(&self, network: NetworkAccess, devices: Devices) -> io::Result<()> {
        system::filter_calls(match (network, devices) {
            // This filter allows everything that a GPU or swapping needs as well.
            (NetworkAccess::Host, _) => &self.host_network,
            (NetworkAccess::None, Devices::Gpu | Devices::Own) => &self.gpu,
            (NetworkAccess::None, Devices::Faults) => &self.faults,
            (NetworkAccess::None, Devices::None | Devices::Drivers) => &self.without_network,
        })
    }
}

/// Restricts the only process of a sandbox of weak isolation, for ever. The process shares its user and its namespaces with
/// others, so that it may name only itself, and can start no other process.
pub(super) fn filter_weakly(network: NetworkAccess, devices: Devices) -> io::Result<()> {
    let own = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    let rules = weak_rules(network, devices, own, system::landlock_abi());
    system::filter_calls(&program::compile(&rules, libc::EPERM))
}

/// Calls that start processes, or that name processes or users: those of others have no namespace around them.
const OF_OTHERS: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    libc::SYS_tkill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_sched_setparam,
    libc::SYS_setpriority,
];
/// Calls whose first argument is the process that they concern; 0 is the caller.
const OF_A_PROCESS: &[i64] = &[
    libc::SYS_kill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_setpgid,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_prlimit64,
];
/// Calls that change or watch files by their paths, or without the right to write. Landlock does not see all of them, and the
/// agent's files belong to the user of the process.
const OF_FILES: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_utimensat,
    libc::SYS_truncate,
    libc::SYS_inotify_add_watch,
];
/// Calls of [`OF_A_PROCESS`] for which 0 is not the caller alone, but its group of processes.
const OF_A_GROUP: &[i64] = &[libc::SYS_kill];
/// Flags with which C libraries start threads: glibc, musl.
const THREADS: [u32; 2] = [0x003d_0f00, 0x007d_0f00];
/// Operations on the process itself. The one that survives the first process is not among them.
const OWN_OPERATIONS: [libc::c_int; 11] = [
    libc::PR_GET_PDEATHSIG,
    libc::PR_GET_DUMPABLE,
    libc::PR_SET_DUMPABLE,
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_GET_SECCOMP,
    libc::PR_CAPBSET_READ,
    libc::PR_SET_NO_NEW_PRIVS,
    libc::PR_GET_NO_NEW_PRIVS,
    libc::PR_SET_THP_DISABLE,
    libc::PR_SET_VMA,
];
/// Operations on descriptors, but for those that send signals to others.
const OWN_DESCRIPTORS: [libc::c_int; 14] = [
    libc::F_DUPFD,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_DUPFD_CLOEXEC,
    libc::F_SETPIPE_SZ,
    libc::F_GETPIPE_SZ,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
    libc::F_OFD_SETLK,
];
/// Version of Landlock's interface from which on Landlock restricts truncation (Linux 6.2).
const TRUNCATING: u32 = 3;
const TRUNCATE: u32 = libc::O_TRUNC.cast_unsigned();
/// Types of pairs of sockets that lead nowhere else: one of datagrams could send to any address.
const PAIRS: [libc::c_int; 2] = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET];

fn weak_rules(network: NetworkAccess, devices: Devices, own: u32, landlock_abi: u32) -> Rules {
    let equal = |argument, values: &[u32]| {
        CallVerdict::AllowIf(values.iter().map(|&value| Test::Equal { argument, value }).collect())
    };
    let named = |numbers: &[libc::c_int]| -> Vec<u32> {
        numbers.iter().map(|number| number.cast_unsigned()).collect()
    };
    let flags = [0, libc::SOCK_CLOEXEC, libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK];
    let pairs: Vec<_> = PAIRS.iter().flat_map(|kind| flags.map(|flag| kind | flag)).collect();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "calls are numbered from 0, and a filter sees 32 bits of the number"
    )]
    let number = |call: i64| call as u32;
    let mut rules = rules(network, devices);
    OF_OTHERS.iter().chain(OF_FILES).for_each(|&call| drop(rules.remove(&number(call))));
    for call in OF_A_PROCESS {
        let values = if OF_A_GROUP.contains(call) { vec![own] } else { vec![0, own] };
        rules.insert(number(*call), equal(0, &values));
    }
    rules.insert(number(libc::SYS_clone), equal(0, &THREADS));
    rules.insert(number(libc::SYS_prctl), equal(0, &named(&OWN_OPERATIONS)));
    rules.insert(number(libc::SYS_fcntl), equal(1, &named(&OWN_DESCRIPTORS)));
    rules.insert(number(libc::SYS_socketpair), equal(1, &named(&pairs)));
    if landlock_abi < TRUNCATING {
        // A file that may be read could be opened and truncated.
        let whole = |argument| CallVerdict::AllowIf(vec![Test::Without { argument, bits: TRUNCATE }]);
        rules.insert(number(libc::SYS_openat), whole(2));
        #[cfg(target_arch = "x86_64")]
        rules.insert(number(libc::SYS_open), whole(1));
        #[cfg(target_arch = "x86_64")]
        rules.remove(&number(libc::SYS_creat));
        // A filter cannot see its flags.
        rules.insert(number(libc::SYS_openat2), CallVerdict::Fail(libc::ENOSYS));
    }
    debug_assert!(
        OF_OTHERS.iter().chain(OF_FILES).all(|&call| !rules.contains_key(&number(call))),
        "a weak isolation has rules for calls that reach others or their files: {:?}",
        OF_OTHERS
            .iter()
            .chain(OF_FILES)
            .filter(|&&call| rules.contains_key(&number(call)))
            .collect::<Vec<_>>()
    );
    rules
}

fn rules(network: NetworkAccess, devices: Devices) -> Rules {
    let allowed = ALLOWED.iter().chain(ALLOWED_OF_OLD).map(|&call| (call, CallVerdict::Allow));
    let tested = [
        (libc::SYS_clone, vec![Test::Without { argument: 0, bits: NEW_NAMESPACES }]),
        (libc::SYS_personality, [0, u32::MAX].map(|value| Test::Equal { argument: 0, value }).to_vec()),
        // Fast open connects, whatever the socket was connected to before.
        (libc::SYS_sendto, vec![Test::Without { argument: 3, bits: FAST_OPEN }]),
        (libc::SYS_sendmsg, vec![Test::Without { argument: 2, bits: FAST_OPEN }]),
        (libc::SYS_sendmmsg, vec![Test::Without { argument: 3, bits: FAST_OPEN }]),
    ];
    let tested = tested.map(|(call, tests)| (call, CallVerdict::AllowIf(tests)));
    let missing = [(libc::SYS_clone3, CallVerdict::Fail(libc::ENOSYS))];
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "calls are numbered from 0, and a filter sees 32 bits of the number"
    )]
    let numbered = |(call, verdict): (i64, CallVerdict)| (call as u32, verdict);
    let asking = (libc::SYS_ioctl, asking(network, devices));
    let by_network = by_network(network).into_iter().chain([asking]);
    allowed.chain(tested).chain(missing).chain(by_network).map(numbered).collect()
}

/// Returns the verdict on ioctls. Libraries of RDMA devices and GPUs use a different set of requests for each device.
fn asking(network: NetworkAccess, devices: Devices) -> CallVerdict {
    if network == NetworkAccess::Host || matches!(devices, Devices::Gpu | Devices::Own) {
        return CallVerdict::Allow;
    }
    let faults: &[u32] = if devices == Devices::Faults { &FAULT_IOCTLS } else { &[] };
    #[expect(clippy::cast_possible_truncation, reason = "the kernel takes 32 bits of a request")]
    let harmless = HARMLESS_IOCTLS.map(|request| request as u32);
    let test = |value: u32| Test::Equal { argument: 1, value };
    CallVerdict::AllowIf(harmless.into_iter().chain(faults.iter().copied()).map(test).collect())
}

fn by_network(network: NetworkAccess) -> Vec<(i64, CallVerdict)> {
    match network {
        NetworkAccess::None => Vec::new(),
        NetworkAccess::Host => {
            let families =
                HOST_FAMILIES.map(|value| Test::Equal { argument: 0, value: value.cast_unsigned() });
            let dialling = DIALLING.iter().map(|&call| (call, CallVerdict::Allow));
            dialling.chain([(libc::SYS_socket, CallVerdict::AllowIf(families.to_vec()))]).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel refuses most of these to a process without rights, so that trying them would not test the filter.
    const DANGEROUS: &[i64] = &[
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_process_madvise,
        libc::SYS_kcmp,
        libc::SYS_pidfd_getfd,
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_chroot,
        libc::SYS_open_tree,
        libc::SYS_move_mount,
        libc::SYS_fsopen,
        libc::SYS_fsconfig,
        libc::SYS_fsmount,
        libc::SYS_fspick,
        libc::SYS_mount_setattr,
        libc::SYS_name_to_handle_at,
        libc::SYS_open_by_handle_at,
        libc::SYS_kexec_load,
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_delete_module,
        libc::SYS_mknodat,
        libc::SYS_setuid,
        libc::SYS_setgid,
        libc::SYS_setresuid,
        libc::SYS_setresgid,
        libc::SYS_setgroups,
        libc::SYS_capset,
        libc::SYS_settimeofday,
        libc::SYS_clock_settime,
        libc::SYS_clock_adjtime,
        libc::SYS_adjtimex,
        libc::SYS_syslog,
        libc::SYS_acct,
        libc::SYS_swapon,
        libc::SYS_reboot,
        libc::SYS_quotactl,
        libc::SYS_fanotify_init,
        libc::SYS_move_pages,
        libc::SYS_migrate_pages,
        libc::SYS_vhangup,
        libc::SYS_sethostname,
    ];
    #[cfg(target_arch = "x86_64")]
    const OF_X86: &[i64] = &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt];
    #[cfg(not(target_arch = "x86_64"))]
    const OF_X86: &[i64] = &[];
    const CONNECTING: [i64; 6] = [
        libc::SYS_socket,
        libc::SYS_connect,
        libc::SYS_bind,
        libc::SYS_listen,
        libc::SYS_accept,
        libc::SYS_accept4,
    ];

    #[test]
    fn dangerous_calls_are_refused_or_tested_by_arguments() {
        for (network, devices) in [
            (NetworkAccess::None, Devices::None),
            (NetworkAccess::None, Devices::Gpu),
            (NetworkAccess::None, Devices::Own),
            (NetworkAccess::None, Devices::Faults),
            (NetworkAccess::Host, Devices::None),
        ] {
            let rules = rules(network, devices);
            let verdict = |call: i64| rules.get(&(call as u32));
            for &call in DANGEROUS.iter().chain(OF_X86) {
                assert_eq!(verdict(call), None, "{call}");
            }
            for call in CONNECTING {
                assert_eq!(verdict(call).is_some(), network == NetworkAccess::Host, "{call}");
            }
            let without = |argument, bits| Some(CallVerdict::AllowIf(vec![Test::Without { argument, bits }]));
            assert_eq!(verdict(libc::SYS_clone).cloned(), without(0, NEW_NAMESPACES));
            assert_eq!(verdict(libc::SYS_clone3), Some(&CallVerdict::Fail(libc::ENOSYS)));
            for (call, argument) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
                assert_eq!(verdict(call).cloned(), without(argument, FAST_OPEN), "{call}");
            }
        }
        let asked = |value: u64| Test::Equal { argument: 1, value: value as u32 };
        for (devices, count) in [(Devices::None, 6), (Devices::Faults, 14)] {
            let rules = rules(NetworkAccess::None, devices);
            let CallVerdict::AllowIf(asking) = &rules[&(libc::SYS_ioctl as u32)] else {
                panic!("any request")
            };
            assert!(!asking.contains(&asked(libc::TIOCSTI)));
            assert_eq!((asking.len(), asking.contains(&asked(0xaa00))), (count, devices == Devices::Faults));
        }
    }

    #[test]
    fn weak_isolation_names_only_the_process_itself() {
        const OWN: u32 = 77;
        let rules = weak_rules(NetworkAccess::None, Devices::None, OWN, TRUNCATING);
        let verdict = |call: i64| rules.get(&u32::try_from(call).unwrap()).cloned();
        let equal = |values: &[u32]| {
            let test = |&value: &u32| Test::Equal { argument: 0, value };
            Some(CallVerdict::AllowIf(values.iter().map(test).collect()))
        };
        assert_eq!(verdict(libc::SYS_kill), equal(&[OWN]));
        assert_eq!(verdict(libc::SYS_prlimit64), equal(&[0, OWN]));
        assert_eq!(verdict(libc::SYS_clone), equal(&THREADS));
        for call in OF_OTHERS.iter().chain(OF_FILES) {
            assert_eq!(verdict(*call), None, "call {call}");
        }
        assert_eq!(verdict(libc::SYS_openat), Some(CallVerdict::Allow));
    }

    #[test]
    fn opens_without_truncation_where_landlock_does_not_see_it() {
        let rules = weak_rules(NetworkAccess::None, Devices::None, 77, TRUNCATING - 1);
        let verdict = |call: i64| rules.get(&u32::try_from(call).unwrap()).cloned();
        let without = |argument| Some(CallVerdict::AllowIf(vec![Test::Without { argument, bits: TRUNCATE }]));
        assert_eq!(verdict(libc::SYS_openat), without(2));
        assert_eq!(verdict(libc::SYS_openat2), Some(CallVerdict::Fail(libc::ENOSYS)));
        #[cfg(target_arch = "x86_64")]
        assert_eq!((verdict(libc::SYS_open), verdict(libc::SYS_creat)), (without(1), None));
    }
}
