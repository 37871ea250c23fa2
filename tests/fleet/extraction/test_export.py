"""`inv pull --export`: the run in the inventory's format, as soon as nothing of it is missing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from hosts.commands import extract as extraction
from tests.fleet.extraction.conftest import LENGTHS, RUN, Site


def test_a_whole_run_is_exported_in_the_inventory_s_format_and_not_before(site: Site, clone: Path) -> None:
    site.inventory.write_text(site.inventory.read_text().replace("defaults:", "defaults:\n  format: speculators-v1"))
    to, out = site.root / "there", site.root / "export"

    def pull(*hosts: str, more: tuple[str, ...] = ()) -> str:
        fleet = site.fleet(*hosts)
        for host in fleet.hosts:
            site.serve(host.name)
        extraction.start(site.fleet(), RUN)
        extraction.follow(fleet, RUN, lambda *_: None)
        inv = [str(clone / ".venv/bin/inv"), "pull", "--hosts", ",".join(hosts), "--run", RUN, "--to", str(to)]
        command = [*inv, "--export", str(out), "--inventory", str(site.inventory), *more]
        return subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=300, check=True).stderr

    assert "Not exported yet" in pull("a")
    assert not out.exists()
    pull("b")
    lengths = json.loads((out / "data" / "sample_lengths.json").read_text())
    assert {int(index): length for index, length in lengths.items()}.keys() == set(range(len(LENGTHS)))
    assert len(list((out / "data").glob("data_*.pt"))) == len(LENGTHS)

    site.inventory.write_text(site.inventory.read_text().replace("speculators-v1", "speculators"))
    out = site.root / "smaller"
    pull("b", more=("--dtype", "fp8"))
    card = json.loads((out / "roost" / "export.json").read_text())
    assert (card["format"], card["dtype"], card["records"]) == ("speculators", "fp8", len(LENGTHS))
