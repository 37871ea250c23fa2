"""A dry run over a ledger of a million rows: the laptop counts them and keeps none."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest

from hosts.inventory.kept import Kept
from hosts.plan.plan import load, save
from tests.fleet.pull.conftest import RUN, SMALL, Site
from tests.manifests import manifest
from tests.shards import rows_in

pytestmark = pytest.mark.ssh

PEAK = (
    "import resource, subprocess, sys\n"
    "code = subprocess.run(sys.argv[1:]).returncode\n"
    "print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)\n"
    "sys.exit(code)\n"
)
MILLION = 1_000_000


def test_a_dry_run_over_a_ledger_of_a_million_rows_takes_less_than_300_mib(site: Site, clone: Path) -> None:
    counts = manifest(records=MILLION, tokens=MILLION * rows_in(SMALL), loss_tokens=1, max_tokens=9, vocab_size=8)
    (site.dataset / "manifest.json").write_text(counts.model_dump_json())
    np.save(site.dataset / "lengths.npy", np.full(MILLION, rows_in(SMALL), np.int32))
    path = Kept(site.root).plan(RUN)
    save(load(path).model_copy(update={"records": MILLION}), path)
    with sqlite3.connect(site.run_paths("one").ledger) as ledger:
        ledger.execute(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ? - 1) INSERT INTO records "
            "(idx, state, rows, size_bytes, xxh3, epoch, finished_at) SELECT i, 'done', ?, ?, printf('%032x', i), 1, 0 "
            "FROM n",
            (MILLION, rows_in(SMALL), SMALL),
        )
    ledger.close()
    done = site.inv_pull(clone, "--dry-run", under=(sys.executable, "-c", PEAK))
    assert done.returncode == 0, done.stderr
    assert "1,000,000" in done.stdout, done.stdout
    assert int(done.stderr.split("peak ")[-1]) < 300 << 10
