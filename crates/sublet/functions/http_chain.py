"""The same function as chain.py has, in a server of its own: it gets the payload by HTTP and sends it to the next server, if there is one.

It says at which port it listens, and serves until its standard input ends.
"""

import http.client
import os
import socket
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HEAD = struct.Struct("<II")
following = None


def stage(data):
    length, executed = HEAD.unpack_from(data)
    executed += 1
    payload = HEAD.pack(length, executed) + data[HEAD.size :]
    if executed >= length or following is None:
        return payload
    following.request("POST", "/", payload)
    return following.getresponse().read()


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


class Connection(http.client.HTTPConnection):
    def connect(self):
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


if len(sys.argv) > 1:
    following = Connection("127.0.0.1", int(sys.argv[1]))
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
server.serve_forever()
