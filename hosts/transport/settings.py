"""Resolves with OpenSSH itself (`ssh -G`) how a host is reached: every SSH server on the way, with its settings.

Control connections and bulk data read the same generated configuration (`openssh.py`); only this module interprets it.
A `SshBackend` resolves its host once, and so once in a command.
"""

from __future__ import annotations

import atexit
import getpass
import hashlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from hosts.errors import AuthenticationError, HostUnreachableError
from hosts.inventory.model import DEFAULT_SSH_CONFIG, Host
from hosts.transport.known_hosts import KnownHosts, names_of, read
from hosts.transport.openssh import destination, login_options, ssh_arguments, ssh_config

RESOLVE_SECONDS = 60.0
"""A `Match exec` may run a slow program."""
MOST_HOPS = 8

Options = dict[str, tuple[str, ...]]


class UnknownTokenError(ValueError):
    """A `%` token of ssh_config(5) that only OpenSSH can expand."""


@dataclass(frozen=True)
class Hop:
    """One SSH server: a jump host, or the host itself."""

    name: str
    """The name as a person typed it, such as an alias. Messages and `ssh` use it."""
    hostname: str
    user: str
    port: int
    options: Options = field(repr=False)
    """The output of `ssh -G`, by lower-case keyword. Values that OpenSSH does not expand are as written."""
    known_hosts_files: tuple[Path, ...] = ()
    """The known_hosts files, the person's own first. `inv trust` adds to the first file."""
    global_files: tuple[Path, ...] = ()
    jump: bool = False

    @property
    def where(self) -> str:
        """The server's name in messages: `me@10.0.0.1:22`, or `the jump host me@bastion:22`."""
        address = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{'the jump host ' if self.jump else ''}{self.user}@{address}:{self.port}"

    @property
    def names(self) -> list[str]:
        """The server's names in known_hosts, the decisive name first."""
        return names_of(self.hostname, self.port, self.option("hostkeyalias"))

    def known(self) -> KnownHosts:
        """Return the present content of the known_hosts files."""
        return read([*self.known_hosts_files, *self.global_files])

    def option(self, keyword: str) -> str:
        """Return the first value of a keyword; "" if there is none or it is `none`."""
        value = self.options.get(keyword, ("",))[0]
        return "" if value == "none" else value

    def is_on(self, keyword: str) -> bool:
        """Return whether a yes/no keyword is on."""
        return self.option(keyword) in {"yes", "true", "always"}

    def paths(self, keyword: str) -> list[Path]:
        """Return the expanded files of a keyword (IdentityFile); raises UnknownTokenError."""
        values = [value for value in self.options.get(keyword, ()) if value != "none"]
        return [Path(self.expanded(value)).expanduser() for value in values]

    def expanded(self, value: str) -> str:
        """Expand the tokens and `${VARIABLES}` of ssh_config(5); raises UnknownTokenError for any other.

        `~` is left to the caller, because only file names have it.
        """
        return re.sub(r"%(.?)|\$\{([^}]*)\}", self._token, value)

    def _token(self, match: re.Match[str]) -> str:
        token, variable = match[1], match[2]
        if variable is not None:
            if variable not in os.environ:
                raise UnknownTokenError(f"${{{variable}}} is not set")
            return os.environ[variable]
        own = socket.gethostname()
        jump = self.option("proxyjump").rpartition(",")[2].rpartition("@")[2].split(":")[0]
        values = {
            "%": "%",
            "d": str(Path.home()),
            "h": self.hostname,
            "i": str(os.getuid()),
            "j": jump,
            "k": self.option("hostkeyalias") or self.name,
            "L": own.partition(".")[0],
            "l": own,
            "n": self.name,
            "p": str(self.port),
            "r": self.user,
            "u": getpass.getuser(),
        }
        if token == "C":  # noqa: S105
            text = "".join(values[part] for part in "lhprj")
            return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        if token not in values:
            raise UnknownTokenError(f"%{token} is not known")
        return values[token]


@dataclass(frozen=True)
class Route:
    """The way to a host: its jump hosts in order, then the host itself, and the configuration file for every `ssh`."""

    host: Host
    hops: tuple[Hop, ...]
    config: Path

    @property
    def target(self) -> Hop:
        """The host itself."""
        return self.hops[-1]


def resolve(host: Host) -> Route:
    """Ask OpenSSH how `host` is reached; changes nothing and connects to nothing.

    Raises HostUnreachableError with OpenSSH's own sentence if OpenSSH refuses the configuration, AuthenticationError
    if the inventory's `identity_file` cannot be read.
    """
    if host.identity_file and not os.access(Path(host.identity_file).expanduser(), os.R_OK):
        raise AuthenticationError(
            f"The key {host.identity_file} does not exist or cannot be read.",
            remedy="Correct `identity_file` in the inventory.",
        )
    config = _config_file(ssh_config(host))
    resolver = _Resolver(host, config)
    return Route(host, tuple(resolver.way(destination(host), ssh_arguments(host, config)[2:])), config)


@cache
def private_folder() -> Path:
    """A folder of this process (0700) for configuration files and control sockets, removed when the process ends.

    The folder's name is short and plain, because a socket's path has at most 104 bytes, and OpenSSH passes the name of
    the configuration file to a shell.
    """
    candidates = [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]  # noqa: S108
    usable = [path for path in candidates if re.fullmatch(r"/[A-Za-z0-9_./-]{2,48}", path) and os.access(path, os.W_OK)]
    folder = Path(tempfile.mkdtemp(prefix="roost-", dir=usable[0] if usable else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class _Resolver:
    """Makes the `ssh -G` calls for one host."""

    def __init__(self, host: Host, config: Path) -> None:
        self._host = host
        self._config = config

    def way(self, name: str, arguments: Sequence[str], jump: bool = False, depth: int = 0) -> list[Hop]:
        """Return the hops to `name`. OpenSSH reaches each hop through the hops before it."""
        if depth > MOST_HOPS:
            raise HostUnreachableError(
                f"The way to {destination(self._host)} has over {MOST_HOPS} jump hosts, which "
                f"may be a loop in ProxyJump."
            )
        hop = self._hop(name, arguments, jump)
        jumps = [part for part in hop.option("proxyjump").split(",") if part]
        if not jumps:
            return [hop]
        first, *others = [_jump(part) for part in jumps]
        way = self.way(*first, jump=True, depth=depth + 1)
        through = ["-J", "placeholder"]  # a jump host of the command line wins over the configuration
        return [*way, *(self._hop(one, [*through, *options], True) for one, options in others), hop]

    def _hop(self, name: str, arguments: Sequence[str], jump: bool) -> Hop:
        options = dict(self._options(name, arguments))
        hop = Hop(
            name=name,
            hostname=options["hostname"][0],
            user=options["user"][0],
            port=int(options["port"][0]),
            options=options,
            jump=jump,
        )
        own = [self._host.known_hosts] if self._host.known_hosts else _files(hop.option("userknownhostsfile"))
        system = _files(hop.option("globalknownhostsfile"))
        return replace(
            hop,
            known_hosts_files=tuple(Path(path).expanduser() for path in own),
            global_files=tuple(Path(path).expanduser() for path in system),
        )

    def _options(self, name: str, arguments: Sequence[str]) -> Options:
        if self._is_plain():
            return {**_common_options(self._config), **_own_options(self._host)}
        return _ask_openssh(self._config, name, arguments)

    def _is_plain(self) -> bool:
        """Return whether the person's configuration is empty, so that one `ssh -G` answers for every host."""
        if self._host.ssh_config == DEFAULT_SSH_CONFIG:
            return False
        return _says_nothing(Path(self._host.ssh_config).expanduser())


def _own_options(host: Host) -> Options:
    """Return the output of `ssh -G` for the inventory's settings and an empty configuration, without calling `ssh`."""
    own: Options = {
        "hostname": (destination(host).lower(),),
        "user": (host.user or getpass.getuser(),),
        "port": (str(host.ssh_port or 22),),
    }
    if host.identity_file:
        path = str(Path(host.identity_file).expanduser()).replace("%", "%%")
        return {**own, "identityfile": (path,), "identitiesonly": ("yes",)}
    return own


def _ask_openssh(config: Path, name: str, arguments: Sequence[str]) -> Options:
    command = ["ssh", "-G", "-T", "-F", str(config), *arguments, "--", name]
    try:
        said = subprocess.run(
            command, capture_output=True, timeout=RESOLVE_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError as error:
        raise HostUnreachableError(
            "There is no OpenSSH client (ssh) on this machine.", remedy="Install openssh-client (make system)."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise HostUnreachableError(
            f"`ssh -G {name}` did not answer within {RESOLVE_SECONDS:.0f} s.",
            remedy="Look at the `Match exec` lines of the OpenSSH configuration.",
        ) from error
    if said.returncode != 0:
        words = [line for line in said.stderr.decode("utf-8", "replace").splitlines() if "terminating, " not in line]
        reason = (" ".join(words).strip() or f"it ended with status {said.returncode}").rstrip(".")
        raise HostUnreachableError(
            f"OpenSSH refuses its configuration for {name}: {reason}.",
            remedy=f"Correct the configuration file; `ssh -G {name}` shows the same error.",
        )
    found: dict[str, list[str]] = {}
    for line in said.stdout.decode("utf-8", "replace").splitlines():
        keyword, _, value = line.partition(" ")
        found.setdefault(keyword.lower(), []).append(value)
    return {keyword: tuple(values) for keyword, values in found.items()}


_ASKING = threading.Lock()


@cache
def _answer_for_all(config: Path) -> Options:
    return _ask_openssh(config, "placeholder", [])


def _common_options(config: Path) -> Options:
    with _ASKING:  # the threads of 64 hosts ask the same
        return _answer_for_all(config)


def _says_nothing(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return all(not line.strip() or line.strip().startswith("#") for line in text.splitlines())


def _jump(text: str) -> tuple[str, list[str]]:
    """Return the name and the options of `ssh` for `[ssh://][user@]host[:port]` of a ProxyJump."""
    rest = text.removeprefix("ssh://").rstrip("/")
    user, _, address = rest.rpartition("@")
    found = re.fullmatch(r"\[(?P<six>[^\]]+)\](?::(?P<port6>\d+))?|(?P<name>[^:]+)(?::(?P<port>\d+))?", address)
    name, port = address, None
    if found:
        name, port = found["six"] or found["name"], found["port6"] or found["port"]
    return name, login_options(user, port)


def _files(text: str) -> list[str]:
    """Return the file names in the output of `ssh -G`, which separates them by spaces without quoting."""
    files: list[str] = []
    for word in text.split(" "):
        joined = f"{files[-1]} {word}" if files else word
        if files and not word.startswith(("/", "~")) and word:
            files[-1] = joined
        elif word and word != "none":
            files.append(word)
    return files


def _config_file(text: str) -> Path:
    """Return the file in this process's folder that holds `text`; hosts with the same settings share it."""
    path = private_folder() / f"config-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not path.exists():
        aside = path.with_name(f"{path.name}-{threading.get_ident()}")
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        aside.replace(path)
    return path
