"""The verb `facts`, called by `inv doctor`. Runs on the host; read-only, and takes seconds at most."""

from __future__ import annotations

from pathlib import Path

from remote.context import Context
from remote.facts.gpu import gpu_facts
from remote.facts.machine import limit_facts, machine_facts, space_facts
from remote.facts.ports import port_facts
from remote.facts.programs import tools
from remote.facts.software import capture_facts, model_facts, python_facts
from remote.logind import login_facts
from remote.servers.lifecycle.records import servers
from remote.servers.probing.holders import other_people
from remote.shared.messages.facts import Facts, FactsRequest
from remote.shared.messages.server import ServersRequest


def facts(request: FactsRequest, context: Context) -> Facts:
    """Gather every fact about this host that extraction depends on."""
    report = context.report
    report.progress("checking GPUs")
    gpu = gpu_facts(context.workdir)
    report.progress("checking Python and SGLang")
    capture = capture_facts(request, context.payload)
    model = None
    if request.model is not None:
        report.progress(f"checking {request.model}")
        model = model_facts(request.model)
    return Facts(
        gpu=gpu,
        python=python_facts(),
        capture=capture,
        model=model,
        workdir=space_facts(context.workdir.root),
        ram_disk=space_facts(Path(request.dump_dir).expanduser()),
        ports=port_facts(request.needs, context.workdir),
        limits=limit_facts(),
        tools=tools(),
        machine=machine_facts(),
        logins=login_facts(),
        other_people=other_people(),
        servers=servers(ServersRequest(ask=True), context).servers if request.ask_servers else [],
    )
