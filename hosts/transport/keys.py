"""Chooses the keys that paramiko offers to a server: the same keys as OpenSSH, in the same order.

Keys of the agent that belong to a configured IdentityFile come first. The agent's other keys follow (without
IdentitiesOnly), and then the files whose keys the agent does not hold. Roost never asks for a password.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.auth_strategy import AuthSource, AuthStrategy, InMemoryPrivateKey, NoneAuth, SourceResult
from paramiko.ssh_exception import AuthenticationException, BadAuthenticationType, SSHException

from hosts.errors import AuthenticationError
from hosts.transport.settings import Hop

PLAIN_KINDS = ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")
"""Key types that paramiko can sign with, itself or through an agent."""


@dataclass(frozen=True)
class Identity:
    """One IdentityFile: its public key if it is known, and its private key if it can be read without a passphrase."""

    path: Path
    public: bytes = b""
    private: paramiko.PKey | None = None
    problem: str = ""


class OfferedKeys(AuthStrategy):
    """Logs in to one server with the person's keys."""

    def __init__(self, hop: Hop) -> None:
        super().__init__(ssh_config=paramiko.SSHConfig())
        self._hop = hop
        self._identities = [read_identity(path) for path in hop.paths("identityfile")]

    def get_sources(self) -> Iterator[AuthSource]:
        """Yield the keys to try. The last attempt is without a key, which some servers (Tailscale's) accept."""
        only = self._hop.is_on("identitiesonly")
        held = [key for key in agent_keys() if key.get_name() in PLAIN_KINDS]
        wanted = {identity.public for identity in self._identities if identity.public}
        ours = [key for key in held if key.asbytes() in wanted]
        offered = [*ours, *([] if only else [key for key in held if key.asbytes() not in wanted])]
        in_agent = {key.asbytes() for key in ours}
        files = [one.private for one in self._identities if one.private and one.public not in in_agent]
        for key in [*offered, *files]:
            yield InMemoryPrivateKey(self._hop.user, key)
        yield NoneAuth(self._hop.user)

    def authenticate(self, transport: paramiko.Transport) -> list[SourceResult]:
        """Try each key. Raises AuthenticationError, which has the number of refused keys and the unusable files."""
        refused, ended = 0, ""
        for source in self.get_sources():
            try:
                left = source.authenticate(transport)
            except BadAuthenticationType as error:
                ended = f"it accepts only {' or '.join(error.allowed_types)}"
                if not isinstance(source, NoneAuth):
                    break
                continue
            except AuthenticationException:
                refused += not isinstance(source, NoneAuth)
                if not transport.is_active():
                    ended = "it closed the connection"
                    break
                continue
            except (SSHException, EOFError, OSError) as error:
                if refused == 0:
                    raise
                ended = f"it closed the connection ({str(error).rstrip('.') or type(error).__name__})"
                break
            if not left:
                return [SourceResult(source, left)]
            ended = f"it requires {' and '.join(left)} too"
        raise self._refusal(refused, ended)

    def _refusal(self, refused: int, ended: str) -> AuthenticationError:
        locked = next((one for one in self._identities if one.problem == LOCKED), None)
        unusable = [f"{one.path} {one.problem}" for one in self._identities if one.problem and one.problem != ABSENT]
        if self._hop.options.get("identityfile", ())[:1] != ("~/.ssh/id_rsa",):  # not the default list
            unusable = [f"{one.path} {one.problem}" for one in self._identities if one.problem]
        tried = f"{refused} key{'' if refused == 1 else 's'} refused" if refused else "there was no key to offer"
        reasons = "; ".join(part for part in (tried, ended, *unusable) if part)
        remedy = (
            f"Run ssh-add {locked.path} first." if locked else "Check `user` and `identity_file`, or ssh-add the key."
        )
        return AuthenticationError(f"{self._hop.where} refused the login: {reasons}.", remedy=remedy)


LOCKED = "has a passphrase, and no agent holds its key"
ABSENT = "does not exist"


def read_identity(path: Path) -> Identity:
    """Return what OpenSSH reads from an IdentityFile: a private key, or the public key of an agent's key."""
    public = _public_key(path if path.suffix == ".pub" else path.with_name(f"{path.name}.pub"))
    if path.suffix == ".pub":
        return Identity(path, public, problem="" if public else ABSENT if not path.exists() else "is no public key")
    try:
        key = paramiko.PKey.from_path(path)
    except FileNotFoundError:
        return Identity(path, public, problem="" if public else ABSENT)
    except OSError as error:
        return Identity(path, public, problem=f"cannot be read: {(error.strerror or str(error)).lower()}")
    except paramiko.PasswordRequiredException:
        return Identity(path, public or _public_half(path), problem=LOCKED)
    except Exception as error:  # paramiko and cryptography raise a dozen exception classes for a file that is no key
        problem = (
            LOCKED if "password" in str(error) or "encrypted" in str(error) else "is no private key that Fabric can use"
        )
        return Identity(path, public or _public_half(path), problem=problem)
    return Identity(path, key.asbytes(), key)


def agent_keys() -> list[paramiko.AgentKey]:
    """Return the keys that the agent holds now; none without an agent, or if the agent does not answer."""
    try:
        return list(paramiko.Agent().get_keys())
    except (SSHException, OSError, EOFError):
        return []


def kind_of(identity: Identity) -> str:
    """Return the key's type, such as `ssh-ed25519`; "" if it is unknown."""
    length = int.from_bytes(identity.public[:4], "big")
    return identity.public[4 : 4 + length].decode("ascii", "replace") if 0 < length < 100 else ""


def _public_key(path: Path) -> bytes:
    """Return the key of a `.pub` file; b"" if there is none."""
    try:
        words = path.read_text(encoding="utf-8", errors="replace").split()
        return base64.b64decode(words[1], validate=True) if len(words) > 1 else b""
    except (OSError, binascii.Error, ValueError):
        return b""


def _public_half(path: Path) -> bytes:
    """Return the public key that OpenSSH's own format keeps beside the private key; b"" for another format."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
        body = text.split("-----BEGIN OPENSSH PRIVATE KEY-----")[1].split("-----END")[0]
        blob = base64.b64decode("".join(body.split()))
    except (OSError, IndexError, binascii.Error, ValueError):
        return b""
    message = paramiko.Message(blob[len(b"openssh-key-v1\0") :])
    for _ in range(3):  # cipher, KDF and its options
        message.get_binary()
    return message.get_binary() if message.get_int() == 1 else b""
