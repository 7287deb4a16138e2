"""Leases a core, calls two functions on it, and gives it back. The same program is in c/, cpp/, rust/, fortran/ and go/.

The functions are in functions/; those of a Python program itself need no package, as calls.py shows. With `sublet up` running:

    python hello.py ./libhello.so
"""

import sys

import sublet

OUTPUT_BYTES = 64


def run(package):
    # A lease of one core. It takes some milliseconds; calls take less than one thousandth of that.
    with sublet.lease(package=package) as lease:
        greeting = lease.call("greet", b"world", out=OUTPUT_BYTES)
        print(greeting.decode())

        # The output of one call is the input of the next.
        loud = lease.call("shout", greeting, out=OUTPUT_BYTES)
        print(loud.decode())

        # A call that fails says why.
        try:
            lease.call("greet", b"", out=OUTPUT_BYTES)
        except sublet.FunctionFailed as error:
            print(f"{error.code}: {error}")

    print(f"{lease.usage['calls']} calls, {lease.usage['failed_calls']} of them failed")


def main():
    try:
        run(sys.argv[1] if len(sys.argv) > 1 else "./libhello.so")
    except sublet.Error as error:
        print(f"{error.code}: {error}", file=sys.stderr)
        return error.number
    return 0


if __name__ == "__main__":
    sys.exit(main())
