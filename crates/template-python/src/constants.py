"""Constants of the caller's modules whose values differ from those in the modules' sources.

They are set when a module has been imported here, and at once in one that is here already. The other end is `sublet/_constants.py`.
"""

import sys

# By module: the values of the caller, and the values that were set here. Functions may have changed the constants
# since.
wanted = {}
done = {}


def take(constants):
    """Sets the constants, by module and name, whose values have changed."""
    if constants and finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)
    for name, values in constants.items():
        wanted.setdefault(name, {}).update(values)
        if name in sys.modules:
            _set(sys.modules[name], name)


def _set(module, name):
    known, new = done.setdefault(name, {}), wanted[name]
    vars(module).update((key, value) for key, value in new.items() if key not in known or not _is_same(known[key], value))
    known.update(new)


def _is_same(one, other):
    return type(one) is type(other) and one == other


class _Finder:
    """Finds modules by the other finders, and sets constants in the module that is loaded."""

    def find_spec(self, name, path=None, target=None):
        if name not in wanted:
            return None
        for other in sys.meta_path:
            spec = None if other is self else other.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader:
    """Loads a module by another loader, and then sets its constants."""

    def __init__(self, loader):
        self._loader = loader

    def exec_module(self, module):
        self._loader.exec_module(module)
        done.pop(module.__name__, None)
        _set(module, module.__name__)

    def __getattr__(self, name):
        return getattr(self._loader, name)


finder = _Finder()
