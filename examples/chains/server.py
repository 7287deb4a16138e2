"""One stage behind HTTP, as a plain server of a service has it: the function's input is a request's body, and its output the answer's.

    server.py STAGE [LIBRARY]

With a library the stage is that of stages.c. It says at which port it listens, and serves until its standard input ends.
"""

import ctypes
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import stages

# The most bytes that a stage in C writes: PICTURE_BYTES of stages.h.
ROOM = (1 << 18) + 8


def native(library, name):
    function = getattr(ctypes.CDLL(library), name)
    function.argtypes, function.restype = [ctypes.c_char_p, ctypes.c_uint32, ctypes.c_void_p], ctypes.c_uint32
    output = ctypes.create_string_buffer(ROOM)
    return lambda text: ctypes.string_at(output, function(text, len(text), output))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self):
        output = stage(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", str(len(output)))
        self.end_headers()
        self.wfile.write(output)

    def log_message(self, *_):
        pass


stage = native(sys.argv[2], sys.argv[1]) if len(sys.argv) > 2 else getattr(stages, sys.argv[1])
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
server.serve_forever()
