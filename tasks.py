"""The command line of a clone: `inv --list`, `inv help`. The tasks are in `hosts/tasks/`; `catalog.py` lists them."""

from __future__ import annotations

from invoke.main import program

from hosts.tasks.program import RoostProgram, prepared

program.__class__ = RoostProgram
namespace = prepared()
