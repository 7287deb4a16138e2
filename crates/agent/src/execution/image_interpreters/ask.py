# Reports on this interpreter, of any version, in one line: see `PythonReport`. Its argument is the name of the C library with
# which the library of workers is linked that the sandbox sees.
import sys


def load():
    """Loads the library of workers, as a worker does, which cannot be undone. Returns why that fails, if it does."""
    from importlib.machinery import ExtensionFileLoader
    from importlib.util import module_from_spec, spec_from_loader

    spec = spec_from_loader("sublet_template", ExtensionFileLoader("sublet_template", "/program"))
    try:
        spec.loader.exec_module(module_from_spec(spec))
    except ImportError as error:
        return " ".join(str(error).split())
    return ""


def libc():
    """Returns the C library: `glibc` with its version, `musl`, or nothing for another one."""
    import os

    try:
        version = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError, OSError):
        version = None
    if version:
        return version
    # No function reports musl. The path of the loader is at the beginning of the program.
    try:
        with open("/proc/self/exe", "rb") as program:
            return "musl" if b"/ld-musl-" in program.read(4096) else ""
    except (IOError, OSError):
        return ""


implementation = getattr(getattr(sys, "implementation", None), "name", "cpython")
lock = "free" if "t" in getattr(sys, "abiflags", "") else "lock"
can_load = sys.version_info >= (3, 11) and implementation == "cpython" and lock == "lock"
of_libc = libc()
fault = load() if can_load and of_libc.split(" ")[0] == sys.argv[1] else ""
fields = ["%d.%d" % sys.version_info[:2], implementation, lock, of_libc, sys.executable or "", fault]
sys.stdout.write("\nsublet-python\t" + "\t".join(fields) + "\n")
