"""A warm interpreter: it imports what it is told, waits to be forked, and is the program in each copy.

Executed with `adapter`, the module that forks, and the names of modules as arguments. What follows `serve` happens in
a copy, and what follows `program` in its sandbox: it has one thread, no open files, and nothing of other copies but what the template had.
"""

import ctypes
import gc
import importlib
import os
import sys
import time
import types

# Of libraries that compute with several threads: what says with how many.
SETTERS = (
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "scipy_openblas_set_num_threads64_",
    "MKL_Set_Num_Threads",
    "bli_thread_set_num_threads",
    "omp_set_num_threads",
)
# In whose names the libraries are known.
LIBRARIES = ("blas", "mkl", "blis", "gomp", "iomp", "libomp")


def thread_setters():
    """The functions of the libraries that are loaded: they began with one thread."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line}
    found = []
    for path in sorted(paths):
        if any(part in os.path.basename(path) for part in LIBRARIES):
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            found += [getattr(library, name) for name in SETTERS if hasattr(library, name)]
    return found


def cores():
    """How many threads are to compute: as many as the program's environment says, or as it has cores."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdecimal() and int(said) > 0 else len(os.sched_getaffinity(0))


def renew():
    """What a copy does before anybody knows what it will be."""
    # Python's own generator sees to that itself.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    # What is written to is no longer shared: better now than when somebody waits.
    os.environ.clear()
    execute(os.devnull)


def begin(path, arguments, environment, setters):
    """Makes this process what it would be, had it just been started."""
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(path))
    os.environ.update(variable.split("=", 1) for variable in environment)
    # The C library read the time zone when the template started.
    time.tzset()
    threads = cores()
    if threads > 1:
        for set_threads in setters:
            set_threads(threads)


def execute(path):
    """Runs a file as the main module."""
    main = types.ModuleType("__main__")
    main.__file__ = path
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec"), main.__dict__)


def run(path):
    """Runs a file; an error in it looks as if there were nothing around it."""
    try:
        execute(path)
    except SystemExit:
        raise
    except BaseException as error:
        within = error.__traceback__
        while within and within.tb_frame.f_code.co_filename == "sublet_template":
            within = within.tb_next
        sys.excepthook(type(error), error, within)
        sys.exit(1)


def refuse(module, reason, took):
    """Ends this process, which never becomes a template, and tells the spawner why."""
    # A longer one would not fit into a packet.
    adapter.refuse(module, reason[:1000], round(took * 1000))
    # Threads of the modules may never end.
    os._exit(1)


def let_fork():
    """Has `multiprocessing` fork by default, as before Python 3.14: its server of forks needs sockets, which a sandbox does not have."""
    if sys.version_info >= (3, 14):
        from multiprocessing import context

        # As if it had been so from the beginning: a program may still set another method, once.
        context._default_context._default_context = context._concrete_contexts["fork"]


def warm():
    """Everything that does not depend on the program. Does not return if a copy could not have what the modules have."""
    begun, culprit = time.monotonic(), ""
    for module in sys.argv[1:]:
        try:
            importlib.import_module(module)
        except BaseException as error:
            refuse(module, f"fails with {type(error).__name__}: {error}", time.monotonic() - begun)
        if not adapter.obstacle():
            culprit = ""
        elif not culprit:
            culprit = module
    took = time.monotonic() - begun
    # What the first program would have to find.
    execute(os.devnull)
    let_fork()
    setters = thread_setters()
    gc.collect()
    # Collections in copies leave these alone: they would write to their memory, and share it no more.
    gc.freeze()
    obstacle = adapter.obstacle()
    if obstacle:
        refuse(culprit, obstacle, took)
    return setters


# For programs that are workers.
sys.modules[adapter.__name__] = adapter
found = warm()
adapter.serve()
renew()
path, arguments, environment = adapter.program()
begin(path, arguments, environment, found)
run(path)
