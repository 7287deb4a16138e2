"""A chain of functions, for `sublet bench chain`: each counts itself in what it is given and calls the next."""

import struct

from sublet_worker import call

HEAD = struct.Struct("<II")


def stage(data):
    length, executed = HEAD.unpack_from(data)
    executed += 1
    payload = HEAD.pack(length, executed) + data[HEAD.size :]
    return payload if executed >= length else call(f"f{executed + 1}", payload)
