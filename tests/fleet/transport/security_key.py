"""An SSH agent that holds one security key (sk-ssh-ed25519): it signs as a token would that somebody touches.

Stands in for the hardware alone: the key, the agent's protocol and the signatures are real, and a real sshd checks
them.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

KIND = b"sk-ssh-ed25519@openssh.com"
APPLICATION = b"ssh:"
TOUCHED = 1
_LIST, _LISTED, _SIGN, _SIGNED, _FAILURE = 11, 12, 13, 14, 5


class SecurityKeyAgent:
    """Listens at `address` until `close`; `signatures` counts what it signed."""

    def __init__(self, address: Path) -> None:
        self.signatures = 0
        self._key = Ed25519PrivateKey.generate()
        public = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.blob = _string(KIND) + _string(public) + _string(APPLICATION)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(address))
        self._listening.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(client,), daemon=True).start()

    def _talk(self, client: socket.socket) -> None:
        with client, client.makefile("rwb") as stream:
            while head := stream.read(4):
                request = stream.read(struct.unpack(">I", head)[0])
                stream.write(_string(self._answer(request)))
                stream.flush()

    def _answer(self, request: bytes) -> bytes:
        if request[0] == _LIST:
            return struct.pack(">BI", _LISTED, 1) + _string(self.blob) + _string(b"a token")
        if request[0] != _SIGN:
            return bytes([_FAILURE])
        size = struct.unpack(">I", request[1:5])[0]
        (length,) = struct.unpack(">I", request[5 + size : 9 + size])
        return bytes([_SIGNED]) + _string(self._signature(request[9 + size : 9 + size + length]))

    def _signature(self, message: bytes) -> bytes:
        self.signatures += 1
        state = struct.pack(">BI", TOUCHED, self.signatures)
        signed = hashlib.sha256(APPLICATION).digest() + state + hashlib.sha256(message).digest()
        return _string(KIND) + _string(self._key.sign(signed)) + state


def _string(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content
