"""The batch scripts: of a run's replicas (one array, one task a node), and of a job that runs one verb. Pure.

Before the time limit, Slurm sends USR1 to the batch shell (`--signal=B:`). The shell passes USR1 on to the replica, and
requeues its own task if the run is not over. If the replica fails or is killed (its server died, or memory ran out),
the shell requeues the task too, up to `FAILURES` times. A replica that was refused (exit code 2) is not requeued.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from remote.shared.messages.jobs import SlurmArray, SlurmTask
from remote.shared.paths import JobPaths, RunPaths

FAILURES = 3

_BODY = """
failures={jobs}/"$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID.failures"
again() {{
  if [ -e {jobs}/"$SLURM_ARRAY_JOB_ID.cancelled" ]; then echo "roost: cancelled"; exit 0; fi
  echo "roost: this task is requeued: $1"
  scontrol requeue "$SLURM_JOB_ID"
  sleep 60
  exit 0
}}
if [ -e {over} ]; then echo "roost: every chunk of the run is published"; exit 0; fi
drained=
{wrap}{python} -m remote replica --folder {folder} --workdir {scratch} --scratch {scratch} --output log \\
  --name "j$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID.${{SLURM_RESTART_COUNT:-0}}" &
replica=$!
trap 'drained=1; kill -USR1 $replica' USR1
trap 'kill -TERM $replica' TERM
while kill -0 $replica 2>/dev/null; do wait $replica; done
wait $replica
code=$?
if [ "$code" -eq 0 ] && [ -n "$drained" ] && [ ! -e {over} ]; then again "its time was over"; fi
if [ "$code" -ne 0 ] && [ "$code" -ne 2 ]; then
  count=$(($(cat "$failures" 2>/dev/null || echo 0) + 1))
  echo "$count" > "$failures"
  echo "roost: the replica ended with $code (137: killed, most likely out of memory), $count of {most}"
  if [ "$count" -le {most} ]; then again "it failed"; fi
fi
exit "$code"
"""

_TASK_BODY = """
{wrap}{python} -m remote.engines.perform {folder} \
  "${{SLURM_RESTART_COUNT:-0}}" "${{SLURM_CPUS_ON_NODE:-1}}" "$SLURMD_NODENAME"
code=$?
if [ "$code" -gt 128 ]; then echo "roost: the job's program ended with $code (137: killed, often out of memory)"; fi
exit "$code"
"""


def script(array: SlurmArray, paths: RunPaths, payload: Path) -> str:
    """Return the whole script. `payload` is the folder on the shared file system that has `remote/`."""
    scratch = f'"{array.scratch}/roost-$(id -u)-$SLURMD_NODENAME-"{shlex.quote(paths.root.name)}'
    body = _BODY.format(
        jobs=shlex.quote(str(paths.jobs)),
        wrap=_words(array.wrap),
        python=shlex.quote(array.python),
        folder=shlex.quote(str(paths.root)),
        scratch=scratch,
        over=shlex.quote(str(paths.over)),
        most=FAILURES,
    )
    head = ["#!/bin/bash", *(f"#SBATCH {line}" for line in directives(array, paths))]
    return "\n".join([*head, "", *array.prolog, f"cd {shlex.quote(str(payload))} || exit 1"]) + body


def directives(array: SlurmArray, paths: RunPaths) -> list[str]:
    """Return the options of sbatch. An option of the inventory replaces Roost's own."""
    options = {
        "job-name": f"roost-{paths.root.name}",
        "array": f"0-{array.nodes - 1}",
        "nodes": "1",
        "ntasks": "1",
        "exclusive": "",
        "requeue": "",
        "open-mode": "append",
        "signal": f"B:USR1@{array.signal_seconds}",
        "output": str(paths.jobs).replace("%", "%%") + "/%A_%a.log",
    }
    if array.gpus_per_node:
        options["gres"] = f"gpu:{array.gpus_per_node}"
    return _lines(options | array.options)


def task_script(task: SlurmTask, paths: JobPaths, payload: Path) -> str:
    """The whole script of a job that runs one verb; the options of the inventory come last, and so win."""
    options = {
        "job-name": f"roost-{paths.root.name}",
        "nodes": "1",
        "ntasks": "1",
        "requeue": "",
        "open-mode": "append",
        "output": str(paths.log).replace("%", "%%"),
    }
    body = _TASK_BODY.format(
        wrap=_words(task.wrap), python=shlex.quote(task.python), folder=shlex.quote(str(paths.root))
    )
    head = ["#!/bin/bash", *(f"#SBATCH {line}" for line in _lines(options | task.options))]
    return "\n".join([*head, "", *task.prolog, f"cd {shlex.quote(str(payload))} || exit 1"]) + body


def _words(words: list[str]) -> str:
    return "".join(f"{shlex.quote(word)} " for word in words)


def _lines(options: dict[str, str]) -> list[str]:
    return [f"--{name}" + (f"={_quoted(value)}" if value else "") for name, value in options.items()]


def _quoted(value: str) -> str:
    """Return the value of a directive, quoted as in a shell, which sbatch understands."""
    return shlex.quote(value)
