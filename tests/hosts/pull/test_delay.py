"""The benchmark's long way: every byte arrives, in order, no earlier than it may."""

from __future__ import annotations

import os
import socket
import threading
import time

from benchmarks.delay import TICK_SECONDS, delayed

ONE_WAY_SECONDS = 0.03


def echo(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(1 << 16):
            connection.sendall(data)


def send(connection: socket.socket, content: bytes) -> None:
    connection.sendall(content)
    connection.shutdown(socket.SHUT_WR)


def test_bytes_through_the_delaying_proxy_arrive_whole_and_late() -> None:
    content = os.urandom(5_000_000)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=echo, args=(listener,))
        thread.start()
        with (
            delayed(listener.getsockname()[1], ONE_WAY_SECONDS) as port,
            socket.create_connection(("127.0.0.1", port)) as connection,
        ):
            asked = time.monotonic()
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"
            assert time.monotonic() - asked >= 2 * (ONE_WAY_SECONDS - TICK_SECONDS)
            sending = threading.Thread(target=send, args=(connection, content))
            sending.start()
            back = bytearray()
            while data := connection.recv(1 << 16):
                back += data
            sending.join()
        thread.join()
    assert back == content
