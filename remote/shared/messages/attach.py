"""The requests and answers of `attach`, `attached` and `detach`, and the description of a host's SGLang."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.shared.messages.envelope import Message
from remote.shared.messages.server import Attach

Way = Literal["plugin", "patch"]
FileState = Literal["original", "attached", "outdated", "unknown", "missing"]
"""`attached`: has this payload's block. `outdated`: has another block of Roost's. `unknown`: edited by another program
or person, or not the file that its wheel installed.
"""


class Installation(Message):
    """The SGLang that this host's Python imports, found without importing it."""

    python: str
    version: str
    """The version; `unknown` for a bare checkout that names none."""
    package: str
    """The folder of the `sglang` package that an import really uses."""
    metadata: str | None = None
    """The `*.dist-info` or `*.egg-info` folder that describes this package; None for a bare checkout."""
    editable: bool = False
    """Whether the package lies outside the environment's site-packages (a git checkout)."""
    has_plugins: bool
    """Whether SGLang's scheduler loads entry points of the group `sglang.srt.plugins`."""
    writable: bool
    """Whether this user can replace the model files."""
    others: list[str] = Field(default_factory=list)
    """The other `sglang` packages on the path, which an import does not use."""
    fingerprint: str = ""
    """A digest that changes with the files of this package and with the packages installed beside it."""


class Choice(Message):
    """The chosen way to get capture into a server, and the reason."""

    way: Way
    reason: str


class Refusal(Message):
    """Why capture would be wrong with this configuration."""

    name: str
    """A short and stable name, such as `radix-cache`."""
    sentence: str
    cure: str
    """The flag or variable to set instead."""


class CheckedFlags(Message):
    """A server's arguments as the installed SGLang's own parser read them."""

    sglang: str
    flags: list[str]
    """The given flags, followed by those that capture needs."""
    added: list[str]
    """The flags that capture needs and the operator had not set."""
    values: dict[str, object]
    """The value of every option by its `dest`, including defaults; None, bool, int, float, str, list or dict."""
    defaults: dict[str, object]
    """The parser's own default of every option, by its `dest`."""


class FamilyFile(Message):
    """One model file of the host's SGLang."""

    family: str
    path: str
    state: FileState
    digest: str = ""
    """The sha256 of the file as it is now, 64 hex digits."""
    original_digest: str = ""
    """The sha256 of the file without the block; empty if unknown."""
    problem: str = ""
    """A sentence on what is unknown about the file."""
    diff: str = ""
    """The difference from the original to the file found, if the original is available."""


class ModuleCheck(Message):
    """The result of importing a model module with the host's Python."""

    module: str
    file: str
    """The file that was imported, as the interpreter reports it."""
    attached: bool
    """Whether the module ran Roost's block, or SGLang's plugin loader would find the plugin and its code."""
    problem: str = ""
    """A sentence on why capture is not attached."""


class AttachRequest(Message):
    """Get capture into this host's SGLang."""

    attach: Attach = "auto"
    families: list[str] = Field(default_factory=list)
    """The model families to patch; if empty, all families that this SGLang has. The plugin serves all families."""
    env: dict[str, str] = Field(default_factory=dict)
    """The environment of servers on this host, in addition to the login's."""
    dry_run: bool = False
    wait_for_lock: bool = False
    """Wait for another operator's command to end instead of refusing."""
    check_import: bool = True
    """Import the model module with the host's Python afterwards, which takes seconds."""


class AttachedRequest(Message):
    """Report whether capture is attached on this host; changes nothing."""

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
    """Whether the server's capture code is this payload's."""


class AttachReport(Message):
    """The answer of all three verbs."""

    installation: Installation
    choice: Choice
    files: list[FamilyFile] = Field(default_factory=list)
    changed: list[str] = Field(default_factory=list)
    """The files that were replaced (with `dry_run`: that would be)."""
    checks: list[ModuleCheck] = Field(default_factory=list)
    servers: list[ServerCapture] = Field(default_factory=list)


class ProbeRequest(Message):
    """Read from SGLang's source whether a model's loop over its blocks has the shape of a known family's."""

    model: str
    """The model's folder on this host."""
    env: dict[str, str] = Field(default_factory=dict)


class ProbeReport(Message):
    """The facts that were read from the source. No code of SGLang was run, and nothing was changed."""

    architecture: str
    """The first architecture in the model's `config.json`."""
    served: str = ""
    """The family that captures the architecture; empty if none does."""
    refused: str = ""
    """Why capture refuses the architecture, if it is refused by name."""
    sglang: str
    module: str = ""
    """The module of the class that runs the blocks; empty if this SGLang has none for the architecture."""
    model_class: str = ""
    shape: str = ""
    """How a block passes the residual stream on, as a phrase; empty if the way is not known."""
    near: list[str] = Field(default_factory=list)
    """Families with the same shape, the most similar loop first."""
