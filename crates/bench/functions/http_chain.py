"""An HTTP server with the function of chain.py, for `sublet bench chain`: counts itself in the payload, and answers with it.

Prints its port, and serves until its standard input ends.
"""

import os
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HEAD = struct.Struct("<II")


def stage(data):
    length, executed = HEAD.unpack_from(data)
    return HEAD.pack(length, executed + 1) + data[HEAD.size :]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self):
        answer = stage(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
server.serve_forever()
