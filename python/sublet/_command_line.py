"""Command lines of the commands that are modules of this package: their errors have the codes of the command `sublet`."""

import argparse
import json
import sys

from . import _errors


class Parser(argparse.ArgumentParser):
    """Parser whose errors have the code of an invalid command line."""

    def error(self, message):
        raise _errors.InvalidArgument(f"{message}: see `{self.prog} --help`")


def run(command, given=None):
    """Calls a command with its arguments; prints its error, whose number is then the exit status."""
    given = sys.argv[1:] if given is None else given
    try:
        command(given)
    except _errors.Error as error:
        if "--json" in given:
            print(json.dumps({"error": {"code": error.code, "number": error.number, "message": str(error)}}), file=sys.stderr)
        else:
            print(f"error[{error.code}]: {error}", file=sys.stderr)
        raise SystemExit(error.number or 1) from None
