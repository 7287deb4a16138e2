"""Measures the use cases of rFaaS with leased cores on another node, beside threads and ranks of the program's own node.

    python examples/use_cases.py [--prefix PREFIX] [--build FOLDER] [--case NAME] [--quick] [--json] [--write]

It needs an installed Sublet (`make install`), this Python with sublet, numpy, pillow, onnx, onnxruntime and mpi4py, Open MPI with its
compilers, iproute2 and util-linux. It makes two network namespaces that a virtual cable joins. One is the other node: `sublet up` runs
there on one core, with a boot id of its own, so that a program shares no memory with it. Each use case runs in the other namespace, on
another core. The numbers are seconds; each is the median of several measurements, in which the ways take turns. The exit status is 1 if a
result differs from the one of a single process. Without root the namespaces belong to a user namespace.
"""

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
RESULTS = EXAMPLES / "README.md"
# Lines of README.md between which `--write` puts the results.
BEGIN, END = "<!-- begin of the results of use_cases.py -->\n", "<!-- end of the results of use_cases.py -->\n"
# 198.18.0.0/15 is kept free for measurements (RFC 2544).
PROGRAM_ADDRESS, NODE_ADDRESS = "198.18.0.1", "198.18.0.2"
# How long one program may take, in seconds.
LIMIT_S = 900
# Times of an example with `--json`: here, on the leased core, and on both.
WAYS = ("local", "leased", "both")


@dataclasses.dataclass(frozen=True)
class UseCase:
    """A use case: a program, its sizes, and its number of threads or ranks."""

    name: str
    title: str
    # Description of the sizes `full`.
    work: str
    command: tuple
    full: tuple
    quick: tuple
    ranks: bool = False
    # The module that has the requirements of its functions.
    module: str = ""
    # Where the times are in the program's output, and the names that they have there.
    part: tuple = ()
    names: tuple = ("local_s", "leased_s", "both_s")

    def words(self, quick, cores):
        """The command with its options, for this number of threads or ranks."""
        sizes = self.quick if quick else self.full
        if self.ranks:
            return ("mpirun", "-n", str(cores), "--bind-to", "none", *self.command, *sizes, "--json")
        return (*self.command, *sizes, "--threads", str(cores), "--json")

    def seconds(self, printed):
        """The times in what the program has printed. Ranks have none for leased cores only: they always compute, too."""
        for key in self.part:
            printed = printed[key]
        if self.ranks:
            return dict(zip(WAYS, (printed["local_s"], None, printed["leased_s"])))
        return dict(zip(WAYS, (printed[name] for name in self.names)))


def use_cases(build):
    python = (sys.executable,)
    offload = (sys.executable, "-m", "mpi4py", str(EXAMPLES / "python/mpi_offload.py"))
    thumbnailer, resnet = (str(EXAMPLES / f"python/{name}.py") for name in ("thumbnailer", "resnet"))
    few, more = ("--repeat", "1"), ("--repeat", "5")
    solve, solve_little = ("--size", "3000", "--iterations", "50", *more), ("--size", "150", "--iterations", "10", *few)
    product, product_little = ("--size", "1500", *more), ("--size", "120", *few)

    def of_ranks(name, title, work, command, full, quick):
        return UseCase(name, f"{title}, MPI", work, command, full, quick, ranks=True)

    def in_every_language(name, title, work, full, quick):
        c_plus_plus = (f"{build}/{name}", "--library", f"{build}/libkernels.so")
        fortran = (f"{build}/{name}_fortran", "--library", f"{build}/libkernels_fortran.so")
        return [
            of_ranks(f"{name}-cpp", f"{title}, C++", work, c_plus_plus, full, quick),
            of_ranks(f"{name}-fortran", f"{title}, Fortran", work, fortran, full, quick),
            of_ranks(f"{name}-python", f"{title}, Python", work, (*offload, name), full, quick),
        ]

    def thumbnails(name, size):
        return UseCase(
            name,
            f"Thumbnails of {size}, Python",
            "40 images",
            (*python, thumbnailer, "--cores", "1"),
            ("--images", "40", *more),
            ("--images", "2", *few),
            module="thumbnailer",
            part=("sizes", size),
        )

    return [
        thumbnails("thumbnailer-small", "97 kB"),
        thumbnails("thumbnailer-large", "3.6 MB"),
        UseCase(
            "resnet",
            "ResNet-50, Python",
            "20 images of 224 x 224",
            (*python, resnet, "--cores", "1"),
            ("--images", "20", *more),
            ("--images", "2", "--pixels", "64", *few),
            module="resnet",
        ),
        UseCase(
            "blackscholes",
            "Black-Scholes, C++",
            "1,000,000 options, 20 times",
            (f"{build}/blackscholes", "--library", f"{build}/libblackscholes.so", "--workers", "1"),
            ("--options", "1000000", "--runs", "20", *more),
            ("--options", "1000", "--runs", "2", *few),
            names=("local_s", "offloaded_s", "half_s"),
        ),
        *in_every_language("multiply", "Matrix multiplication", "1500 x 1500", product, product_little),
        *in_every_language("jacobi", "Jacobi", "3000 unknowns, 50 iterations", solve, solve_little),
    ]


def run(command, **more):
    """Runs a command, and returns what it prints. If it fails, this program ends with what it has said."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, **more)
    except FileNotFoundError as error:
        sys.exit(f"{command[0]} is missing: {error.strerror}")
    if ended.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed with status {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


class Namespaces:
    """Two network namespaces with a cable: of programs, and of a node. They end with the processes in them."""

    def __init__(self, stack):
        self._users = [] if os.getuid() == 0 else ["--user"]
        rights = ["--user", "--map-root-user"] if self._users else []
        self.programs = self._hold(stack, ["unshare", *rights, "--net", "--mount"])
        self.node = self._hold(stack, [*self.enter(self.programs), "unshare", "--net", "--mount"])
        path = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
        cable = ["type", "veth", "peer", "name", "cable", "netns", str(self.node)]
        run([*self.enter(self.programs), "ip", "link", "add", "cable", *cable], env=path)
        for process, address in (self.programs, PROGRAM_ADDRESS), (self.node, NODE_ADDRESS):
            run([*self.enter(process), "ip", "address", "add", f"{address}/30", "dev", "cable"], env=path)
            for device in "lo", "cable":
                run([*self.enter(process), "ip", "link", "set", device, "up"], env=path)

    def _hold(self, stack, command):
        """Starts a process in new namespaces, which ends when this program does."""
        holder = subprocess.Popen(
            [*command, "sh", "-c", "echo ready && exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        stack.callback(holder.communicate)
        if holder.stdout.readline() != "ready\n":
            sys.exit(f"no network namespaces can be made here: {holder.stderr.read().strip()}")
        return holder.pid

    def enter(self, process):
        """The command that executes another one in the namespaces of a process."""
        users = [*self._users, "--preserve-credentials"] if self._users else []
        return ["nsenter", "--target", str(process), *users, "--net", "--mount"]


@contextlib.contextmanager
def node(spaces, prefix, state, cores):
    """A node that lends these cores, in its own namespace, and its manager."""
    boot_id = state.with_suffix(".boot_id")
    boot_id.write_text(f"{uuid.uuid4()}\n")
    enter = spaces.enter(spaces.node)
    up = f'mount --bind "{boot_id}" /proc/sys/kernel/random/boot_id && exec taskset --cpu-list "$0" "$@"'
    options = ["--json", "--state", str(state), "--name", "other-node", "--listen", f"{NODE_ADDRESS}:0", "--python", sys.executable]
    command = [*enter, "sh", "-c", up, _list(cores), f"{prefix}/bin/sublet", "up", *options, "--with-parent", str(os.getpid())]
    with open(state.with_suffix(".log"), "w+") as log:
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            if not running.stdout.readline().startswith("{"):
                log.seek(0)
                sys.exit(f"sublet up does not start:\n{log.read()}")
            yield
        finally:
            running.terminate()
            running.communicate()


def _list(cores):
    return ",".join(map(str, cores))


def deploy(cases, environment):
    """Resolves and stores the requirements of the use cases, where the registry of packages can be reached."""
    for module in {case.module for case in cases if case.module}:
        program = f"import sublet, {module}; sublet.Environment({module}.requirements()).deploy()"
        run([sys.executable, "-c", program], env={**environment, "PYTHONPATH": str(EXAMPLES / "python")})


def measure(spaces, prefix, build, state, cases, quick):
    """Returns the seconds of each use case: on one core here, on two, on the leased core, and on one of each."""
    here, there = _two_cores()
    environment = {
        **os.environ,
        "SUBLET_MANAGER": f"unix:{state}/manager.sock",
        "SUBLET_FABRIC": "tcp",
        # By default, Open MPI refuses to run as root.
        **{name: "1" for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")},
    }
    # Several use cases may be of one program.
    runs = {}
    found = {case.name: {"title": case.title if quick else f"{case.title}: {case.work}"} for case in cases}
    # With two threads or ranks the program has both cores; times with leased cores are ignored then.
    for cores, lent, key in (((here,), (there,), "one"), ((here, there), (here, there), "two")):
        with node(spaces, prefix, state, lent):
            deploy(cases, environment)
            for case in cases:
                words = case.words(quick, len(cores))
                if words not in runs:
                    print(f"{case.title}, {len(cores)} of this node's cores", file=sys.stderr)
                    command = [*spaces.enter(spaces.programs), "taskset", "--cpu-list", _list(cores), *words]
                    runs[words] = json.loads(run(command, env=environment, cwd=EXAMPLES / "python"))
                printed = runs[words]
                if printed.get("equal", printed.get("largest_difference") == 0) is not True:
                    sys.exit(f"the results of {case.title} differ: {printed}")
                seconds = case.seconds(printed)
                found[case.name][f"{key}_s"] = seconds["local"]
                if key == "one":
                    found[case.name].update(leased_s=seconds["leased"], both_s=seconds["both"])
    return found


def _two_cores():
    """The core of programs, and the core of the node."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("two cores are needed, one for the programs and one for the other node; this machine has 1")
    return cores[0], cores[-1]


def compile_programs(prefix, build):
    for folder in "blackscholes", "mpi":
        run(["make", f"--directory={EXAMPLES / folder}", f"PREFIX={prefix}", f"BUILD={build}"])


def table(found):
    """The results as a table of Markdown."""
    lines = [
        "| use case | one core | two cores | leased core | one core and a leased one | speedup by leasing |\n",
        "|---|---|---|---|---|---|\n",
    ]
    for row in found.values():
        times = [_shown(row[name]) for name in ("one_s", "two_s", "leased_s", "both_s")]
        lines.append(f"| {row['title']} | {' | '.join(times)} | {row['one_s'] / row['both_s']:.2f} |\n")
    return "".join(lines)


def _shown(seconds):
    return "" if seconds is None else f"{seconds:.3f} s"


def write(text):
    """Puts the results and their circumstances into README.md."""
    before, rest = RESULTS.read_text().split(BEGIN)
    after = rest.split(END)[1]
    commit = run(["git", "-C", EXAMPLES, "rev-parse", "--short", "HEAD"]).strip()
    circumstances = (
        f"{_processor()}, {os.cpu_count()} cores, Linux {platform.release()}; {datetime.date.today().isoformat()}, commit {commit}; "
        f"`{' '.join(['python', 'examples/use_cases.py', '--write'])}`\n"
    )
    RESULTS.write_text(f"{before}{BEGIN}{circumstances}\n{text}{END}{after}")


def _processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description="Measures use cases with leased cores on another node.")
    parser.add_argument("--prefix", default="/usr/local", help="where Sublet is installed [%(default)s]")
    parser.add_argument("--build", help="folder for the programs, which are compiled if they are not there [a temporary one]")
    parser.add_argument("--case", action="append", help="run only the use case of this name; may be repeated")
    parser.add_argument("--quick", action="store_true", help="use small sizes, as a test does: the times mean nothing")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--write", action="store_true", help=f"write the results to {RESULTS.name}")
    options = parser.parse_args()

    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sublet-use-cases.")))
        build = Path(options.build or scratch / "build").resolve()
        cases = use_cases(build)
        names = [case.name for case in cases]
        for name in options.case or ():
            if name not in names:
                parser.error(f"there is no use case {name}; there are {', '.join(names)}")
        cases = [case for case in cases if not options.case or case.name in options.case]
        compile_programs(options.prefix, build)
        found = measure(Namespaces(stack), options.prefix, build, scratch / "state", cases, options.quick)
    print(json.dumps(found) if options.json else table(found))
    if options.write:
        write(table(found))


if __name__ == "__main__":
    main()
