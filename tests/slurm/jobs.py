"""`python -m tests.slurm.jobs`: `prepare`, `verify`, `export` and `compress` as jobs on a real Slurm. In namespaces.

Ends with 0 if every command said and did what it should, and the dataset is the one that the laptop makes.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import psutil

from hosts.practice import namespaces
from hosts.practice.nodes import until
from hosts.practice.slurm.lab import Lab
from tests.clusters.suite import tried
from tests.clusters.trial import CLUSTER, RECORDS, RUN, Site
from tests.faults.box import CLONE

ON = ["--cluster", CLUSTER]


def type_everything(site: Site[Lab]) -> None:
    """Each verb as a job, and what a person sees if a job waits, is refused, is cancelled, is killed or fails."""
    source, out = site.shared / "records.jsonl", site.shared / "dataset"
    prepare = ["prepare", *ON, "--input", str(source), "--out", str(out), "--tokenizer", _model(site), "--keep-order"]
    missing_is_refused(site, prepare)
    shutil.copyfile(site.root / "records.jsonl", source)
    script_is_shown(site, prepare)
    hidden_input_is_refused(site, prepare)
    said = typed(site, *prepare)
    assert json.loads((out / "manifest.json").read_text())["digest"] == _digest(site), said
    assert not list(site.shared.glob(".roost-*")), "the mark for the node was left behind"
    failure_is_the_verb_s(site)
    waiting_job_is_shown_and_cancelled(site, prepare)
    detached_job_is_found_again(site, prepare)
    killed_job_has_a_cause(site)
    typed(site, "extract", *ON, "--run", RUN)
    until(lambda: site.done() == RECORDS, 300)
    until(site.lab.is_idle)
    results(site)


def missing_is_refused(site: Site[Lab], prepare: list[str]) -> None:
    refused = typed(site, *prepare, code=2)
    assert "is not there on the cluster's login host" in refused, refused
    assert site.lab.is_idle()


def script_is_shown(site: Site[Lab], prepare: list[str]) -> None:
    script = typed(site, *prepare, "--dry-run")
    assert "#SBATCH --ntasks=1" in script, script
    assert "#SBATCH --mem=10" in script, script
    assert "exclusive" not in script, script
    assert site.lab.is_idle()
    assert not list((site.shared / "jobs").glob("*"))


def hidden_input_is_refused(site: Site[Lab], prepare: list[str]) -> None:
    """A file of the login host that no node sees."""
    alone = site.root / "on the login host"
    alone.mkdir()
    shutil.copyfile(site.root / "records.jsonl", alone / "records.jsonl")
    for name in site.lab.names:
        site.lab.hide(name, alone)
    words = [word if word != str(site.shared / "records.jsonl") else str(alone / "records.jsonl") for word in prepare]
    refused = typed(site, *words, code=2)
    assert f"does not see {alone / 'records.jsonl'} as the login host does" in refused, refused
    words = [word if word != str(site.shared / "dataset") else str(alone / "dataset") for word in prepare]
    refused = typed(site, *words, code=2)
    assert f"does not see {alone} as the login host does" in refused, refused
    for name in site.lab.names:
        site.lab.show(name, alone)


def failure_is_the_verb_s(site: Site[Lab]) -> None:
    broken = site.shared / "broken.jsonl"
    broken.write_text("this is no JSON\n")
    words = ["--input", str(broken), "--out", str(site.shared / "none"), "--tokenizer", _model(site)]
    here = typed(site, "prepare", *words, code=1)
    there = typed(site, "prepare", *ON, *words, code=1)
    assert _sentence(here) in there, (here, there)


def waiting_job_is_shown_and_cancelled(site: Site[Lab], prepare: list[str]) -> None:
    busy = ["--exclusive", f"--nodes={site.lab.nodes}", "--job-name=foreign", "--output=/dev/null"]
    namespaces.run("sbatch", *busy, "--wrap", "sleep infinity")
    until(lambda: len(site.lab.running()) == 1)
    (foreign,) = site.lab.running()
    words = [word if word != str(site.shared / "dataset") else str(site.shared / "another") for word in prepare]
    told = json.loads(typed(site, *words, "--detach", "--json"))
    name = told["name"]
    assert told["job"], told
    again = typed(site, *words, "--detach")
    assert f"is in the queue already, as job {told['job']}" in again, again
    for table in (typed(site, "status", *ON, "--job", name), typed(site, "status", *ON)):
        assert name in table, table
        assert "PENDING" in table, table
    assert "would be cancelled" in typed(site, "stop", *ON, "--job", name, "--dry-run")
    assert told["job"] in site.lab.said("squeue", "-h", "-o", "%i").split()
    assert f"cancelled: {name}" in typed(site, "stop", *ON, "--job", name)
    until(lambda: site.lab.said("squeue", "-h", "-o", "%i").split() == [foreign])
    assert not (site.shared / "another").exists()
    assert not list(site.shared.glob(".roost-*")), "the mark for the node was left behind"
    namespaces.run("scancel", foreign)
    site.lab.await_idle()


def detached_job_is_found_again(site: Site[Lab], prepare: list[str]) -> None:
    words = [word if word != str(site.shared / "dataset") else str(site.shared / "second") for word in prepare]
    name = json.loads(typed(site, *words, "--detach", "--json"))["name"]
    until(site.lab.is_idle)
    table = typed(site, "status", *ON, "--job", name)
    assert "DONE" in table, table
    typed(site, "logs", *ON, "--job", name)
    again = typed(site, *words)
    assert "and this is its outcome" in again, again
    assert (site.shared / "second" / "manifest.json").is_file()
    assert "DONE" in typed(site, "status", *ON, "--job", name)


def killed_job_has_a_cause(site: Site[Lab]) -> None:
    source = site.shared / "many.jsonl"
    with source.open("w") as out:
        for number in range(200_000):
            out.write(json.dumps({"input_ids": [number % 200, 1, number // 1000], "loss_mask": [0, 1, 1]}) + "\n")
    words = ["--input", str(source), "--out", str(site.shared / "killed"), "--tokenizer", _model(site)]
    name = json.loads(typed(site, "prepare", *ON, *words, "--detach", "--json"))["name"]
    until(lambda: list((site.shared / "jobs" / name).glob("lines.*.jsonl")))
    (work,) = [process for process in psutil.process_iter(["cmdline"]) if _performs(process, name)]
    work.kill()
    until(site.lab.is_idle)
    assert "FAILED" in typed(site, "status", *ON, "--job", name, code=1)
    said = typed(site, "prepare", *ON, *words, code=1)
    assert "ended without a result" in said, said
    assert "exit code 137" in said, said
    assert "137: killed" in typed(site, "logs", *ON, "--job", name)


def _performs(process: psutil.Process, name: str) -> bool:
    words = process.info["cmdline"] or []
    return words[1:3] == ["-m", "remote.engines.perform"] and words[3].endswith(name)


def results(site: Site[Lab]) -> None:
    """Verify, compress and export what the run's replicas have published."""
    of_run = [*ON, "--run", RUN]
    ledger = site.run / "ledger.sqlite"
    checked = typed(site, "verify", *of_run)
    assert f"{RECORDS} records" in checked, checked
    made_again(site)
    damaged = site.run / "shards" / "hs_7.safetensors"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    wrong = typed(site, "verify", *of_run, code=1)
    assert "hs_7.safetensors" in wrong, wrong
    packed = typed(site, "compress", *of_run, code=1)
    assert f"{RECORDS - 1} shards compressed" in packed, packed
    assert "1 are damaged" in packed, packed
    damaged.write_bytes(whole)
    assert "1 shards compressed" in typed(site, "compress", *of_run)
    assert not list((site.run / "shards").glob("hs_*.safetensors"))
    typed(site, "verify", *of_run)
    assert ledger.is_file()
    site.judge()
    delivered = site.shared / "delivered"
    typed(site, "pull", "--host", CLUSTER, "--run", RUN, "--to", str(delivered))
    typed(site, "verify", *ON, "--folder", str(delivered))
    exported = site.shared / "exported"
    typed(site, "export", *ON, "--folder", str(delivered), "--out", str(exported), "--format", "speculators")
    assert (exported / "roost" / "export.json").is_file()
    assert len(list(exported.rglob("hs_*.safetensors"))) == RECORDS


def made_again(site: Site[Lab]) -> None:
    """A damaged record, and a quarantined one, are extracted again by the run's replicas."""
    of_run = [*ON, "--run", RUN]
    damaged = site.run / "shards" / "hs_3.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-8] + bytes(8))
    assert "3) are queued again" in typed(site, "verify", *of_run, "--repair", code=1)
    assert site.done() == RECORDS - 1
    assert "submitted as job" in typed(site, "extract", *of_run)
    until(lambda: site.done() == RECORDS, 120)
    until(site.lab.is_idle)
    (site.run / "shards" / "hs_5.safetensors").unlink()
    with closing(sqlite3.connect(site.run / "ledger.sqlite")) as ledger, ledger:
        ledger.execute("UPDATE records SET state = 'quarantined', cause = 'a test' WHERE idx = 5")
    assert "every record of the run" in typed(site, "extract", *of_run)
    again = typed(site, "extract", *of_run, "--retry-quarantined", "--records", "5")
    assert "1 quarantined record opened again" in again, again
    assert "submitted as job" in again, again
    until(lambda: site.done() == RECORDS, 120)
    until(site.lab.is_idle)
    typed(site, "verify", *of_run)


def typed(site: Site[Lab], *words: str, code: int = 0) -> str:
    """Type `inv …` and return all that it says; raises AssertionError if it ends with another code."""
    argv = [sys.executable, "-m", "invoke", *words, "--inventory", str(site.root / "inventory.yaml")]
    ended = subprocess.run(argv, cwd=CLONE, capture_output=True, text=True, check=False, timeout=300)
    said = ended.stdout + ("" if "--json" in words else ended.stderr)
    assert ended.returncode == code, f"inv {' '.join(words)} ended with {ended.returncode}: {said}{ended.stderr}"
    return said


def _sentence(said: str) -> str:
    """Return the error's sentence without its mark and place."""
    (line,) = [line for line in said.splitlines() if line.startswith("✗ ")]
    return line.removeprefix("✗ ")


def _model(site: Site[Lab]) -> str:
    defaults = json.loads((site.root / "inventory.yaml").read_text())["defaults"]
    return str(defaults["model"])


def _digest(site: Site[Lab]) -> str:
    return str(json.loads((site.root / "dataset" / "manifest.json").read_text())["digest"])


def main() -> int:
    """Build a lab and type the commands. If they fail, print the traceback and the logs of Slurm and the jobs."""
    return tried(lambda root: Lab(root, 2), type_everything, {"cpu": {"mem": 10, "cpus_per_task": 2}}, 0.05)


if __name__ == "__main__":
    sys.exit(main())
