"""Turns a ServerSpec into the exact command and environment of one start, before anything is stopped.

Runs on the host, called by `serve`. Asks the installed SGLang for its version and its parser; changes nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlparse

from remote.attach import check_flags, choose, find_installation, refusals
from remote.attach import environment as attach_environment
from remote.capture import VERSION as CAPTURE_VERSION
from remote.capture.environment import VARIABLES as CAPTURE_VARIABLES
from remote.capture.environment import environment as capture_environment
from remote.context import Context
from remote.servers.probing import gpu
from remote.servers.probing.gpu import gpus, indices
from remote.servers.probing.holders import other_people
from remote.servers.probing.model import check_format, check_model, depth
from remote.shared.errors import HostError, UsageError
from remote.shared.messages.attach import CheckedFlags
from remote.shared.messages.server import CaptureState, GpuId, ServerSpec
from remote.shared.shard.boundaries import boundaries_of

LAUNCH_MODULE = "sglang.launch_server"
TRUSTED = "ROOST_TRUST_LOCAL_USERS"
"""Set to 1 in a mode's `env`, it says that the operator trusts everybody who can log in on the host."""
RENDEZVOUS = "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"
LISTEN = "127.0.0.1"
"""Servers are for this host's own extractor; people reach a server over SSH port forwarding."""
_OWNED = {
    "--model-path": "model",
    "--model": "model",
    "--host": "nothing: servers listen on 127.0.0.1 alone",
    "--port": "port",
    "--api-key": "nothing: every start has a key of its own",
    "--admin-api-key": "nothing: every start has a key of its own",
    "--tp-size": "tp",
    "--tp": "tp",
    "--tensor-parallel-size": "tp",
    "--nnodes": "nodes",
    "--node-rank": "nodes",
    "--dist-init-addr": "nodes",
}


@dataclass(frozen=True)
class Launch:
    """The command and environment of one start."""

    spec: ServerSpec
    argv: list[str]
    added_env: dict[str, str]
    """What is added to the verb's own environment."""
    removed_env: list[str] = field(default_factory=list)
    config: dict[str, object] = field(default_factory=dict)
    """The content of the operator's own `--config` file; it goes into the start's file, beside the key."""
    closes_admin: bool = False
    sglang: str = ""
    capture: CaptureState | None = None

    def environ(self) -> dict[str, str]:
        """Return the server's whole environment."""
        kept = {key: value for key, value in os.environ.items() if key not in self.removed_env}
        return {**kept, **self.added_env}


def plan_launch(spec: ServerSpec, context: Context, cwd: Path) -> Launch:
    """Return the command and environment that start the server `spec`.

    Raises UsageError for a flag that the installed SGLang does not take or that a key of the inventory sets. Raises
    HostError if the model or SGLang is missing, or if capture would be wrong.
    """
    _refuse_owned_flags(spec)
    config = check_model(spec.model)
    known = gpus() if spec.gpus else []
    check_format(spec.model, config, [gpu.name for gpu in known if gpu.index in indices(spec.gpus, known)])
    env = {**spec.env, **_devices(spec)}
    installation = find_installation(payload=context.payload, env=env, cwd=cwd)
    way = choose(spec.capture.attach, installation).way if spec.capture else None
    if way is not None:
        env |= attach_environment(way, context.payload, {**os.environ, **env})
    checked = check_flags(
        _arguments(spec),
        version=installation.version,
        payload=context.payload,
        capture=way is not None,
        env=env,
        cwd=cwd,
        cache=context.workdir.sglang_cache,
        fingerprint=installation.fingerprint,
    )
    _refuse_keyless(checked)
    _refuse_open_sockets(checked, env)
    paths = context.workdir.server(spec.name)
    env = _meeting(spec, checked, paths.rendezvous) | env
    given, flags = _split_config(checked.flags)
    own = paths.config
    argv = [sys.executable, "-m", LAUNCH_MODULE, "--config", str(own), *flags]
    if spec.capture is None or way is None:
        return Launch(spec, argv, env, list(CAPTURE_VARIABLES), config=given, sglang=installation.version)
    _refuse_wrong_capture(checked, config, env)
    state = CaptureState(
        attach=way,
        payload=context.payload.name,
        version=CAPTURE_VERSION,
        boundaries=boundaries_of(spec.capture.layers, depth(dict(config))),
        final=spec.capture.final,
        dump_dir=spec.capture.dump_dir,
    )
    return Launch(
        spec,
        argv,
        env | capture_environment(spec.capture),
        config=given,
        closes_admin="admin_api_key" in checked.values,
        sglang=installation.version,
        capture=state,
    )


def _arguments(spec: ServerSpec) -> list[str]:
    owned = [f"--model-path={Path(spec.model).expanduser()}", f"--host={LISTEN}", f"--port={spec.port}"]
    owned.append(f"--tp-size={spec.tp}")
    if spec.nodes:
        if spec.dist_init_addr is None:
            raise UsageError(f"Server {spec.name!r} spans {len(spec.nodes)} hosts and has no rendezvous address.")
        owned += [f"--nnodes={len(spec.nodes)}", f"--node-rank={spec.node_rank}"]
        owned.append(f"--dist-init-addr={spec.dist_init_addr}")
    return [*owned, *spec.flags]


def _refuse_owned_flags(spec: ServerSpec) -> None:
    for flag in spec.flags:
        name = flag.partition("=")[0].replace("_", "-")
        if name in _OWNED:
            raise UsageError(f"`flags` holds {name}, which Roost sets itself.", remedy=f"Use: {_OWNED[name]}.")


def _refuse_keyless(checked: CheckedFlags) -> None:
    """Raise UsageError for several tokenizer workers: SGLang then checks no API key."""
    if checked.values.get("tokenizer_worker_num", 1) not in (None, 1):
        raise UsageError(
            "With --tokenizer-worker-num above 1, SGLang checks no API key, so any user of the host could change it.",
            remedy="Remove that flag.",
        )


def _refuse_open_sockets(checked: CheckedFlags, env: Mapping[str, str]) -> None:
    """Raise HostError for DP attention beside other users' processes, unless the operator trusts them.

    With DP attention, SGLang's processes talk over TCP ports on 127.0.0.1 without authentication, and the scheduler
    unpickles what it receives: any local user can run code in it (0.5.23 and all versions before it).
    """
    if not checked.values.get("enable_dp_attention") or env.get(TRUSTED) == "1":
        return
    if others := other_people():
        raise HostError(
            f"With --enable-dp-attention any user of this host can run code as this server's user, and {others[0]} "
            f"{f'and {len(others) - 1} more ' if len(others) > 1 else ''}{'have' if len(others) > 1 else 'has'} "
            "processes here.",
            remedy=f"Use a host of your own, leave the flag out, or set {TRUSTED}: 1 in the mode's `env`, if you "
            "trust them as yourself.",
        )


def _meeting(spec: ServerSpec, checked: CheckedFlags, rendezvous: Path) -> dict[str, str]:
    """Return the variables that keep the ranks of a server on one host from listening on the network.

    torch's store listens on every interface, whatever address it is given, and asks nobody for a password; a file in
    the server's own folder takes its place (SGLang 0.5.9 to 0.5.23). Several replicas would meet in one file, so they
    keep their ports.
    """
    if spec.nodes or checked.values.get("dist_init_addr"):
        return {}
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    url = f"file://{rendezvous}"
    several = checked.values.get("dp_size", 1) not in (None, 1) and not checked.values.get("enable_dp_attention")
    return loopback if several or urlparse(url).path != str(rendezvous) else {**loopback, RENDEZVOUS: url}


def _split_config(flags: list[str]) -> tuple[dict[str, object], list[str]]:
    """Return the content of the operator's `--config` file and the flags without it.

    SGLang reads a single file, and the start's own file is that one.
    """
    if "--config" not in flags:
        return {}, flags
    import yaml

    at = flags.index("--config")
    content = yaml.safe_load(Path(flags[at + 1]).read_text()) or {}
    for name in content:
        if f"--{name}".replace("_", "-") in ("--api-key", "--admin-api-key"):
            raise UsageError(f"{flags[at + 1]} holds {name}, which Roost sets itself.", remedy="Remove it there.")
    return content, [*flags[:at], *flags[at + 2 :]]


def _refuse_wrong_capture(checked: CheckedFlags, config: Mapping[str, object], env: Mapping[str, str]) -> None:
    reasons = refusals(checked, config, {**os.environ, **env})
    if reasons:
        first = reasons[0]
        more = f" ({len(reasons) - 1} more reasons)" if len(reasons) > 1 else ""
        raise HostError(
            f"Capture cannot be right here ({first.name}): {first.sentence}{more}.",
            remedy=f"Use {first.cure}.",
            details={"refusals": [reason.model_dump() for reason in reasons]},
        )


def _devices(spec: ServerSpec) -> dict[str, str]:
    """Return the variables that name the server's GPUs by ordinal.

    SGLang's custom all-reduce reads CUDA_VISIBLE_DEVICES as integers. A MIG slice has no ordinal; it serves one rank,
    which needs no all-reduce.
    """
    if not spec.gpus:
        return {}
    known = gpu.gpus() if any(isinstance(one, str) for one in spec.gpus) else []
    chosen = [str(one) if _is_plain(one) else _ordinal(one, known) for one in spec.gpus]
    return {"CUDA_VISIBLE_DEVICES": ",".join(chosen), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _is_plain(one: GpuId) -> bool:
    return isinstance(one, int) or one.startswith("MIG-")


def _ordinal(uuid: GpuId, known: list[gpu.Gpu]) -> str:
    found = gpu.indices([uuid], known)
    if len(found) != 1:
        here = ", ".join(one.uuid for one in known) or "none"
        which = "no GPU" if not found else f"{len(found)} GPUs"
        raise HostError(f"{uuid} is {which} of this host.", remedy=f"`nvidia-smi -L` shows the UUIDs; here: {here}.")
    return str(found.pop())
