"""What `attach`, `attached` and `detach` ask of a host, and what the host's SGLang turned out to be."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.shared.messages.envelope import Message
from remote.shared.messages.server import Attach

Way = Literal["plugin", "patch"]
FileState = Literal["original", "attached", "outdated", "unknown", "missing"]
"""`attached`: carries this payload's block. `outdated`: carries a block of Roost's that is not this one's.
`unknown`: edited by somebody else, or not the file that its wheel installed."""


class Installation(Message):
    """The SGLang that this host's Python imports, found without importing it."""

    python: str
    version: str
    """`unknown` where a bare checkout names none."""
    package: str
    """Folder of the `sglang` package that an import really uses."""
    metadata: str | None = None
    """The `*.dist-info` or `*.egg-info` folder that describes this package; None for a bare checkout."""
    editable: bool = False
    """The package lies outside the environment's site-packages (a git checkout)."""
    has_plugins: bool
    """SGLang's scheduler loads entry points of the group `sglang.srt.plugins`."""
    writable: bool
    """The model files can be replaced by this user."""
    others: list[str] = Field(default_factory=list)
    """Further `sglang` packages on the path, which an import does not use."""
    fingerprint: str = ""
    """Changes with the files of this package and with the packages beside it."""


class Choice(Message):
    """The way that capture gets into a server, and why this one."""

    way: Way
    reason: str


class Refusal(Message):
    """Why capture could not be right with this configuration."""

    name: str
    """Short and stable, as `radix-cache`."""
    sentence: str
    cure: str
    """What to put on the command line, or into the environment, instead."""


class CheckedFlags(Message):
    """A server's arguments after the installed SGLang's own parser has read them."""

    sglang: str
    flags: list[str]
    """As they were given, and behind them what capture needs."""
    added: list[str]
    """What capture needed and nobody had set."""
    values: dict[str, object]
    """Every option's value by its `dest`, defaults included; None, bool, int, float, str, list or dict."""
    defaults: dict[str, object]
    """The parser's own default of every option, by its `dest`."""


class FamilyFile(Message):
    """One model file of the host's SGLang."""

    family: str
    path: str
    state: FileState
    digest: str = ""
    """sha256 of the file as it is now, 64 hex digits."""
    original_digest: str = ""
    """Of the file without the block; empty where that is not known."""
    problem: str = ""
    """One sentence on what is unknown about it."""
    diff: str = ""
    """From the original to what was found, where the original is at hand."""


class ModuleCheck(Message):
    """What an import of a model module by the host's Python came to."""

    module: str
    file: str
    """The file really used, as the interpreter reports it."""
    attached: bool
    """The module ran Roost's block, or SGLang's plugin loader would find the plugin and its code."""
    problem: str = ""
    """One sentence on why it is not."""


class AttachRequest(Message):
    """Bring capture into this host's SGLang."""

    attach: Attach = "auto"
    families: list[str] = Field(default_factory=list)
    """Model families to patch; empty means all that this SGLang has. The plugin serves all of them."""
    env: dict[str, str] = Field(default_factory=dict)
    """The environment that servers on this host are started with, on top of the login's."""
    dry_run: bool = False
    wait_for_lock: bool = False
    """Wait for another operator's command to end instead of refusing."""
    check_import: bool = True
    """Import the model module with the host's Python afterwards; takes some seconds."""


class AttachedRequest(Message):
    """Report how capture stands on this host; changes nothing."""

    env: dict[str, str] = Field(default_factory=dict)
    check_import: bool = False


class DetachRequest(Message):
    """Put the original model files back, byte for byte."""

    env: dict[str, str] = Field(default_factory=dict)
    dry_run: bool = False
    wait_for_lock: bool = False


class ServerCapture(Message):
    """Whether capture is active in a running server, and from which payload."""

    server: str
    way: Way | None
    payload: str = ""
    current: bool = False
    """The server's capture code is this payload's."""


class AttachReport(Message):
    """The answer of all three verbs."""

    installation: Installation
    choice: Choice
    files: list[FamilyFile] = Field(default_factory=list)
    changed: list[str] = Field(default_factory=list)
    """Files that were replaced, or would be with `dry_run`."""
    checks: list[ModuleCheck] = Field(default_factory=list)
    servers: list[ServerCapture] = Field(default_factory=list)
