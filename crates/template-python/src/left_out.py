"""Modules of the caller that could not be sent: an import says why, or warns that the worker has another one."""

import json
import logging
import os
import sys

# In the package's folder: the modules, each with the reason why it was not sent.
FILE = "sublet_left_out.json"

reasons = {}


def read(folder):
    """Reads the list in the package's folder. From now on imports of its modules are watched."""
    path = os.path.join(folder, FILE)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            reasons.update(json.load(file))
        sys.meta_path.insert(0, Finder())


class Finder:
    """Finds modules by the other finders; warns if the found module is not the caller's."""

    def __init__(self):
        self.seen = set()

    def find_spec(self, name, path=None, target=None):
        if name not in reasons or name in self.seen:
            return None
        self.seen.add(name)
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.origin is not None:
            message = "workers use module %s of their own Python (%s): the caller's was not sent: %s"
            logging.getLogger("sublet").warning(message, name, spec.origin, reasons[name])
        return spec


def explain(error):
    """Adds the reason why a module was not sent to the exception that reports it as missing."""
    if isinstance(error, ModuleNotFoundError) and isinstance(error.name, str) and isinstance(error.msg, str):
        reason = reasons.get(error.name.partition(".")[0])
        if reason is not None and reason not in error.msg:
            error.msg = f"{error.msg}: it was not sent to workers: {reason}"
            error.args = (error.msg,)
