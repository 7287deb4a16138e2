"""A warm interpreter: it imports the modules in its arguments, waits to be forked, and is the program in each copy.

The template executes this file with `adapter`, the module that forks, and the names of modules as arguments. The
statements after `serve` run in a copy, and those after `program` in the copy's sandbox. A copy has one thread and no
open files, and shares with other copies only the memory that the template had. A copy on standby imports modules in its
sandbox before its program is known; they may start threads, and keep files open.

An interpreter of an image is the program of its sandboxes: there a copy executes the code of the program's `-c`, as an
interpreter does that has just been started.

A template never imports modules of an environment or an image that a tenant has brought. A copy on standby does that for an
environment. The interpreter of an image is started in its container, and is on standby there: it is never forked.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import site
import sys
import time
import types

# Folder of the environment, if this interpreter has no modules beside the standard library; the variable below names another.
ENVIRONMENT = "/environment"
ENVIRONMENT_VARIABLE = "SUBLET_ENVIRONMENT"

# Variable of an interpreter that is on standby in a container.
CONTAINED_STANDBY = "SUBLET_STANDBY"

# Whether this is the interpreter of an image, to which the variables of the image apply. Others are isolated from theirs.
IN_IMAGE = not sys.flags.isolated

# Functions that set the number of threads in libraries that compute with several threads.
SETTERS = (
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "scipy_openblas_set_num_threads64_",
    "MKL_Set_Num_Threads",
    "bli_thread_set_num_threads",
    "omp_set_num_threads",
)
# Parts of the file names of these libraries.
LIBRARIES = ("blas", "mkl", "blis", "gomp", "iomp", "libomp")


def thread_setters():
    """Returns the functions of the loaded libraries, which began with one thread."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line}
    found = []
    for path in sorted(paths):
        if any(part in os.path.basename(path) for part in LIBRARIES):
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            found += [getattr(library, name) for name in SETTERS if hasattr(library, name)]
    return found


def cores():
    """Returns the number of computing threads: OMP_NUM_THREADS in the environment, or the number of cores."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdecimal() and int(said) > 0 else len(os.sched_getaffinity(0))


def renew():
    """Prepares a copy before its program is known."""
    # Python's own generator seeds itself again after a fork.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    # A write ends the sharing of a page with the template: these pages are written now, before a client waits for the
    # program.
    os.environ.clear()
    # The first process of the sandbox may be changing the root, which has no devices then.
    with contextlib.suppress(OSError):
        execute(os.devnull)


def use_environment(folder):
    """Lets this interpreter find the modules of an environment, as an interpreter of a virtual environment does."""
    if sys.prefix == folder or not os.path.isdir(os.path.join(folder, "lib")):
        return
    sys.prefix = sys.exec_prefix = folder
    site.addsitedir(os.path.join(folder, "lib", "python%d.%d" % sys.version_info[:2], "site-packages"))


def import_ahead(modules):
    """Imports modules in a process on standby, and discards what they print."""
    try:
        for module in modules:
            importlib.import_module(module)
        # A module may have replaced them.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        gc.collect()
    except BaseException:
        # The spawner notices the end. Threads of the modules may never end.
        os._exit(1)


def stand_by(modules, environment):
    """Imports modules with the environment of the program, which is not known yet, and waits for the program."""
    os.environ.update(named(environment))
    time.tzset()
    if sys.flags.no_site:
        use_environment(ENVIRONMENT)
    import_ahead(modules)
    adapter.stand_by()


def contained_program(modules):
    """Imports modules in a container, and returns the program once it is to be started."""
    # The working folder, which an interpreter adds for `-c`.
    if sys.path[:1] == [""]:
        del sys.path[0]
    import_ahead(modules)
    return adapter.contained_program()


def named(environment):
    """Returns the values of variables that are written as NAME=VALUE."""
    return dict(variable.split("=", 1) for variable in environment)


def begin(environment, setters):
    """Sets environment and threads as if this process had just been started."""
    variables = named(environment)
    folder = variables.pop(ENVIRONMENT_VARIABLE, ENVIRONMENT)
    if sys.flags.no_site:
        use_environment(folder)
    os.environ.update(variables)
    # The C library read the time zone when the template started.
    time.tzset()
    threads = cores()
    if threads > 1:
        for set_threads in setters:
            set_threads(threads)


def main_module():
    """Makes a new main module."""
    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    return main


def execute(path):
    """Runs a file as the main module."""
    main = main_module()
    main.__file__ = path
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec"), main.__dict__)


def execute_code(arguments):
    """Runs the code of an interpreter's `-c` as the main module."""
    at = arguments.index("-c")
    sys.argv = arguments[at:at + 1] + arguments[at + 2:]
    if not sys.flags.safe_path:
        sys.path.insert(0, "")
    exec(compile(arguments[at + 1], "<string>", "exec"), main_module().__dict__)


def run(path, arguments):
    """Runs a program. The traceback of an error in it has only the program's own frames."""
    try:
        if IN_IMAGE:
            execute_code(arguments)
        else:
            sys.argv = [path, *arguments]
            sys.path.insert(0, os.path.dirname(path))
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
    # A longer reason would not fit into a packet.
    adapter.refuse(module, reason[:1000], round(took * 1000))
    # Threads of the modules may never end.
    os._exit(1)


def let_fork():
    """Has `multiprocessing` fork by default, as before Python 3.14: its server of forks needs sockets, which a sandbox does not have."""
    if sys.version_info >= (3, 14):
        from multiprocessing import context

        # Sets the default and not the method: a program may still set another method, once.
        context._default_context._default_context = context._concrete_contexts["fork"]


def use_search_path():
    """Sets the search path of this interpreter, if its node has one for it."""
    paths = os.environ.get("SUBLET_SEARCH_PATH")
    if paths:
        sys.path[:] = paths.split(":")


def warm():
    """Imports the modules, and prepares all that no program changes. Does not return if the modules prevent a fork."""
    if sys.flags.no_site:
        # A start with installed modules does this, too.
        site.setquit()
        site.setcopyright()
        site.sethelper()
        use_environment(os.environ.get(ENVIRONMENT_VARIABLE, ENVIRONMENT))
    use_search_path()
    # The working folder, which an interpreter adds for `-c`.
    if sys.path[:1] == [""]:
        del sys.path[0]
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
    # Runs an empty program, so that the first real one need not load the modules and files that running a program
    # takes.
    execute(os.devnull)
    let_fork()
    setters = thread_setters()
    gc.collect()
    # Collections in copies skip these objects: they would write to their memory, which then is no longer shared.
    gc.freeze()
    obstacle = adapter.obstacle()
    if obstacle:
        refuse(culprit, obstacle, took)
    return setters


# For programs that are workers.
sys.modules[adapter.__name__] = adapter
if os.environ.pop(CONTAINED_STANDBY, None):
    path, arguments, environment = contained_program(sys.argv[1:])
    os.environ.update(named(environment))
else:
    found = warm()
    adapter.serve()
    renew()
    standby = adapter.imports()
    if standby is not None:
        stand_by(*standby)
    path, arguments, environment = adapter.program()
    begin(environment, found)
run(path, arguments)
