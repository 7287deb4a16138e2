# Reports on this interpreter, of any version, in one line: see `PythonReport`.
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
    import os

    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        return ""


implementation = getattr(getattr(sys, "implementation", None), "name", "cpython")
lock = "free" if "t" in getattr(sys, "abiflags", "") else "lock"
can_load = sys.version_info >= (3, 11) and implementation == "cpython" and lock == "lock"
fields = ["%d.%d" % sys.version_info[:2], implementation, lock, libc(), sys.executable or "", load() if can_load else ""]
sys.stdout.write("\nsublet-python\t" + "\t".join(fields) + "\n")
