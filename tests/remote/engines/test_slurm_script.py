"""The batch script, as text: what sbatch is asked for, and that no value of the inventory becomes shell."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from remote.context import Context
from remote.engines import verbs
from remote.engines.slurm import engine
from remote.engines.slurm.script import script, task_script
from remote.report import Report
from remote.shared.errors import UsageError
from remote.shared.messages.jobs import SlurmArray, SlurmTask, SubmitRequest
from remote.shared.messages.replica import ReplicaSpec
from remote.shared.paths import Workdir
from tests.identities import run_identity

HOSTILE = 'it\'s a $(touch hacked) `id` "folder" %j'


def made(**fields: object) -> str:
    array = SlurmArray.model_validate({"nodes": 8, **fields})
    return script(array, Workdir(Path(f"/shared/{HOSTILE}")).run("kimi-1"), Path(f"/shared/{HOSTILE}/payload"))


def test_the_array_is_requeued_drained_and_exclusive() -> None:
    text = made(gpus_per_node=8, signal_seconds=120, options={"partition": "gpu", "time": "04:00:00", "hold": ""})
    for line in ("array=0-7", "requeue", "open-mode=append", "signal=B:USR1@120", "exclusive", "gres=gpu:8", "hold"):
        assert f"\n#SBATCH --{line}\n" in text
    assert "#SBATCH --partition=gpu\n" in text
    assert "#SBATCH --time=04:00:00\n" in text


def task(**fields: object) -> str:
    order = SlurmTask.model_validate(fields)
    return task_script(order, Workdir(Path(f"/shared/{HOSTILE}")).job("verify-1"), Path(f"/shared/{HOSTILE}/payload"))


def test_a_job_of_one_verb_is_one_task_without_gpus() -> None:
    lines = task(options={"partition": "cpu", "cpus-per-task": "32"}).splitlines()
    for line in ("nodes=1", "ntasks=1", "requeue", "partition=cpu", "cpus-per-task=32", "job-name=roost-verify-1"):
        assert f"#SBATCH --{line}" in lines
    assert not [line for line in lines if line.startswith(("#SBATCH --gres", "#SBATCH --exclusive"))]


def test_no_value_becomes_shell_in_a_job_of_one_verb(tmp_path: Path) -> None:
    text = task(python=HOSTILE, wrap=["apptainer", "exec", HOSTILE])
    checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    subprocess.run(["bash", "-c", text], cwd=tmp_path, capture_output=True, check=False, timeout=30)
    assert not (tmp_path / "hacked").exists()


def test_options_of_the_inventory_win() -> None:
    text = made(gpus_per_node=8, options={"gres": "gpu:h100:8", "signal": "B:USR1@900"})
    assert "gres=gpu:h100:8" in text
    assert "gres=gpu:8\n" not in text
    assert "B:USR1@300" not in text


def test_no_value_becomes_shell(tmp_path: Path) -> None:
    text = made(python=HOSTILE, wrap=["apptainer", "exec", HOSTILE])
    checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert shlex.quote(HOSTILE) in text
    subprocess.run(["bash", "-c", text], cwd=tmp_path, capture_output=True, check=False, timeout=30)
    assert not (tmp_path / "hacked").exists()


def test_a_percent_sign_in_the_folder_is_no_pattern_of_the_log_s_name() -> None:
    (line,) = [line for line in made().splitlines() if line.startswith("#SBATCH --output")]
    assert "%%j" in line
    assert "%A_%a.log" in line


def test_a_host_without_sbatch_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    request = SubmitRequest(
        identity=run_identity(), spec=ReplicaSpec(epoch=1, chunk_tokens=1), order=SlurmArray(nodes=1), dry_run=True
    )
    with pytest.raises(UsageError, match="There is no sbatch on this host"):
        verbs.submit(request, Context(Workdir(tmp_path), Report()))


FAILED = "Batch job submission failed: Invalid partition name specified"
NEVER = "allocation failure: Requested node configuration is not available"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (f"sbatch: error: invalid partition specified: gpuu\nsbatch: error: {FAILED}\n", FAILED),
        (f"{NEVER}\n", NEVER),
        ("", "it said nothing"),
    ],
)
def test_slurm_s_reason_is_in_the_sentence(said: str, reason: str) -> None:
    assert engine._refused(said).message == f"Slurm refused the job: {reason}."
