"""Times a sort by DuckDB that does not fit into its memory: with all memory, in a folder of leased memory, and on a disk.

Rounds of the three kinds alternate, and each sort is a process of its own. All must have the same result. The disk is a file
system in a file, limited to a rate by a control group, and mounted so that writes reach it at once (control groups of version 1
limit no others). The kernel keeps what it reads and writes there in free memory, so reads from the disk may be faster than its rate.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")
KINDS = ("memory", "mount", "disk")
# The table function `range` has one row for each number; the keys are hashes of the numbers.
ROWS = "SELECT hash(i) AS key, concat('text ', hash(i + 1), ' of row ', i) AS text FROM range({rows}) AS rows(i)"
SORT = f"""
SELECT count(*), sum(hash(place, key, text) % 1000003), min(key), max(key) FROM (
    SELECT row_number() OVER (ORDER BY key, text) AS place, key, text FROM ({ROWS})
)
"""


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000, help="number of rows [default: 20000000]")
    parser.add_argument("--memory", default="512MB", help="memory of the sorts that spill [default: 512MB]")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each sort [default: all cores]")
    parser.add_argument("--rounds", type=int, default=3, help="number of sorts of each kind [default: 3]")
    parser.add_argument("--rate", type=int, default=200_000_000, help="rate of the disk, in bytes a second [default: 200000000]")
    parser.add_argument("--limit", default="16GiB", help="size of the folder and of the disk [default: 16GiB]")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--sort", metavar="FOLDER", help=argparse.SUPPRESS)
    return parser.parse_args()


def sort(options):
    """Sorts once, and prints the seconds and the result. Without a folder, all memory may be used."""
    import duckdb

    settings = {"threads": options.threads}
    if options.sort != "-":
        settings |= {"memory_limit": options.memory, "temp_directory": options.sort}
    with duckdb.connect(config=settings) as connection:
        begun = time.perf_counter()
        rows = connection.execute(SORT.format(rows=options.rows)).fetchall()
        print(json.dumps({"seconds": time.perf_counter() - begun, "rows": [[str(value) for value in row] for row in rows]}))


def sort_in(options, folder, group=None):
    """Sorts in a process of its own, in a control group."""
    command = [sys.executable, __file__, "--sort", folder, "--rows", str(options.rows), "--memory", options.memory]
    command += ["--threads", str(options.threads)]

    def enter():
        if group:
            (group / "cgroup.procs").write_text("0")

    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=enter)
    return json.loads(done.stdout)


@contextlib.contextmanager
def mounted(folder, limit):
    """A folder of leased memory, of the `sublet up` that the environment names."""
    folder.mkdir()
    process = subprocess.Popen(["sublet", "memory", "mount", "--json", folder, "--limit", limit], stdout=subprocess.PIPE, text=True)
    if not process.stdout.readline():
        raise SystemExit("cannot mount the folder")
    try:
        yield folder
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def throttled(folder, limit, rate):
    """A disk of this rate and the control group that has it. `None` for both, with the reason on standard error, if that cannot be."""
    with contextlib.ExitStack() as stack:
        try:
            disk = made_disk(stack, folder, limit)
            made = disk, made_group(stack, disk, rate)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"no throttled disk on this machine: {error}", file=sys.stderr)
            made = None, None
        yield made


def made_disk(stack, folder, limit):
    """Mounts a file system that is a file."""
    image, disk = folder / "disk.img", folder / "disk"
    disk.mkdir()
    subprocess.run(["truncate", "--size", limit.removesuffix("iB"), image], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    subprocess.run(["mount", "-o", "loop,sync", image, disk], check=True)
    stack.callback(subprocess.run, ["umount", disk], check=False)
    return disk


def made_group(stack, disk, rate):
    """Makes a control group that reads and writes a disk at most at a rate."""
    device = disk.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    name = f"sublet-sort-{os.getpid()}"
    if (CONTROL_GROUPS / "blkio").is_dir():
        group = CONTROL_GROUPS / "blkio" / name
        settings = {f"blkio.throttle.{way}_bps_device": f"{number} {rate}" for way in ("read", "write")}
    else:
        (CONTROL_GROUPS / "cgroup.subtree_control").write_text("+io")
        group = CONTROL_GROUPS / name
        settings = {"io.max": f"{number} rbps={rate} wbps={rate}"}
    group.mkdir()
    stack.callback(group.rmdir)
    for file, text in settings.items():
        (group / file).write_text(text)
    return group


def measure(options):
    seconds, results = {kind: [] for kind in KINDS}, []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        folder = Path(folder)
        mount = stack.enter_context(mounted(folder / "mount", options.limit))
        disk, group = stack.enter_context(throttled(folder, options.limit, options.rate))
        places = {"memory": ("-", None), "mount": (str(mount), None)} | ({"disk": (str(disk), group)} if disk else {})
        for _ in range(options.rounds):
            for kind, (place, control) in places.items():
                sorted_once = sort_in(options, place, control)
                seconds[kind].append(sorted_once["seconds"])
                results.append(sorted_once["rows"])
    if any(result != results[0] for result in results):
        raise SystemExit(f"the sorts have different results: {results}")
    return {kind: statistics.median(times) for kind, times in seconds.items() if times}


def main():
    options = parsed()
    if options.sort:
        return sort(options)
    medians = measure(options)
    report = {"bench": "duckdb_sort", "rows": options.rows, "n": options.rounds, "threads": options.threads}
    report |= {f"{kind}_s": round(seconds, 3) for kind, seconds in medians.items()}
    report["ratio"] = round(medians["mount"] / medians["memory"], 3)
    if "disk" in medians:
        report["disk_ratio"] = round(medians["disk"] / medians["memory"], 3)
    if options.json:
        print(json.dumps(report))
    else:
        for kind, seconds in medians.items():
            print(f"{kind:6}  {seconds:8.2f} s  {seconds / medians['memory']:5.2f} of all memory")


if __name__ == "__main__":
    main()
