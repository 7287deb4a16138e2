"""Tests what functions see of the machine: time zones, cores, memory, shared memory and a user, as libraries expect."""

import errno
import getpass
import multiprocessing
import os
import time
from multiprocessing import shared_memory

import pytest

SUMMER = 1751328000


def offset(at):
    return time.localtime(at).tm_gmtoff


@pytest.mark.parametrize(("zone", "expected"), [("America/New_York", -4 * 3600), ("Asia/Kolkata", 19800), ("UTC", 0)])
def test_local_time_is_that_of_the_zone_in_the_environment(platform, zone, expected):
    with platform.lease(environment={"TZ": zone}, wait=60) as lease:
        assert lease.call(offset, SUMMER) == expected


def test_local_time_is_that_of_the_node(lease):
    assert lease.call(offset, SUMMER) == offset(SUMMER)


def test_zones_are_found_without_a_package_of_zones(lease):
    def zoned():
        import datetime
        import sys
        import zoneinfo

        sys.modules["tzdata"] = None
        zone = zoneinfo.ZoneInfo.no_cache("Europe/Berlin")
        return datetime.datetime(2026, 7, 1, tzinfo=zone).utcoffset().total_seconds(), len(zoneinfo.available_timezones())

    seconds, count = lease.call(zoned)
    assert seconds == 7200
    assert count > 100


def test_files_about_the_machine_tell_cores_and_memory_of_the_lease(platform):
    def seen():
        import psutil

        psutil.cpu_percent()
        psutil.cpu_times()
        psutil.Process().create_time()
        memory = psutil.virtual_memory()
        return memory.total, memory.available, psutil.cpu_count(), psutil.swap_memory().total

    with platform.lease(memory="320MiB", wait=60) as lease:
        assert lease.call(seen) == (320 << 20, 320 << 20, 1, 0)
        assert lease.call(os.cpu_count) == 1
        # `os.getloadavg` asks the kernel by a call of its own.
        assert lease.call(lambda: open("/proc/loadavg").read()).startswith("0.00 0.00 0.00 ")


KERNEL = [
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/cap_last_cap",
    "/sys/devices/system/cpu/kernel_max",
    "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
]


def contents(paths):
    return {path: open(path).read() for path in paths if os.path.exists(path)}


def test_constants_of_the_kernel_are_those_of_the_machine(lease):
    assert lease.call(contents, KERNEL) == contents(KERNEL)


def test_folders_of_devices_are_empty(lease):
    for folder in ("block", "class/hwmon", "class/net", "class/power_supply", "class/thermal"):
        assert lease.call(os.listdir, f"/sys/{folder}") == []


def test_a_function_has_a_user_with_a_name(lease):
    assert lease.call(getpass.getuser) == "sandbox"
    assert lease.call(os.path.expanduser, "~sandbox") == "/tmp"


def test_a_function_has_a_group_with_a_name(lease):
    def group():
        import grp

        return grp.getgrgid(os.getgid()).gr_name

    assert lease.call(group) == "sandbox"


def in_processes():
    """Has a process add to memory that it shares with its parent, under a lock, and answer through a queue."""
    context = multiprocessing.get_context("fork")
    lock, queue = context.Lock(), context.Queue()
    memory = shared_memory.SharedMemory(create=True, size=1 << 20)

    def work():
        with lock:
            memory.buf[0] += 1
        queue.put(os.getpid())

    workers = [context.Process(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    pids = {queue.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join()
    total = memory.buf[0]
    memory.close()
    memory.unlink()
    return total, len(pids), [worker.exitcode for worker in workers]


def test_processes_of_a_function_share_memory_locks_and_queues(platform):
    with platform.lease(memory="512MiB", wait=60) as lease:
        assert lease.call(in_processes) == (2, 2, [0, 0])


def test_multiprocessing_forks_unless_the_function_says_otherwise(platform):
    def methods():
        before = multiprocessing.get_start_method(allow_none=True), multiprocessing.get_all_start_methods()[0]
        multiprocessing.set_start_method("spawn")
        return before, multiprocessing.get_start_method()

    with platform.lease(wait=60) as lease:
        assert lease.call(methods) == ((None, "fork"), "spawn")


@pytest.mark.parametrize("backend", ["threading", "multiprocessing", "loky"])
def test_joblib_computes_within_a_function(platform, backend):
    def computed(backend):
        import joblib

        with joblib.parallel_config(backend, n_jobs=2):
            return joblib.Parallel()(joblib.delayed(abs)(-number) for number in range(4))

    with platform.lease(memory="1GiB", wait=60) as lease:
        assert lease.call(computed, backend) == [0, 1, 2, 3]


def test_shared_memory_ends_with_its_worker_and_has_a_bound(platform):
    def fill():
        kept = []
        try:
            while True:
                kept.append(shared_memory.SharedMemory(create=True, size=1 << 20))
                os.posix_fallocate(kept[-1]._fd, 0, 1 << 20)
        except OSError as error:
            return len(kept), error.errno

    with platform.lease(memory="64MiB", wait=60) as lease:
        assert lease.call(fill) == (33, errno.ENOSPC)
    with platform.lease(memory="64MiB", wait=60) as lease:
        assert lease.call(os.listdir, "/dev/shm") == []
        lease.call(os.mkdir, "/dev/shm/own")
        assert "own" not in os.listdir("/dev/shm")
