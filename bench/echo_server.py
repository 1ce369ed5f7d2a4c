"""The lower limit of a Python store: a socket that answers with bytes and does nothing else.

A request is ``<B op><I bytes><I count>`` padded to 64 bytes per key; the payload of a put follows
it. The answer to a get is the payload, to a put 16 bytes.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys

HEAD = struct.Struct("<BII")
KEY_BYTES = 64
GET, PUT = 0, 1
POOL_BYTES = 256 << 20


def read_into(peer: socket.socket, view: memoryview) -> None:
    """Fills the view or raises EOFError."""
    while len(view):
        got = peer.recv_into(view)
        if got == 0:
            raise EOFError
        view = view[got:]


def serve(peer: socket.socket) -> None:
    """Answers one client until it disconnects."""
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    pool = memoryview(bytearray(POOL_BYTES))
    pool[:] = bytes(range(256)) * (POOL_BYTES // 256)
    head = memoryview(bytearray(KEY_BYTES))
    rest = memoryview(bytearray(1 << 20))
    place = 0
    while True:
        read_into(peer, head)
        op, size, count = HEAD.unpack_from(head)
        if count > 1:
            read_into(peer, rest[: KEY_BYTES * (count - 1)])
        total = size * count
        if place + total > POOL_BYTES:
            place = 0
        if op == PUT:
            read_into(peer, pool[place : place + total])
            peer.sendall(b"stored..stored..")
        else:
            peer.sendall(pool[place : place + total])
        place += total


def main() -> None:
    """Listens on the given port and serves one client after the other."""
    with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
        while True:
            peer, _ = listener.accept()
            with peer, contextlib.suppress(EOFError, ConnectionError):
                serve(peer)


if __name__ == "__main__":
    main()
