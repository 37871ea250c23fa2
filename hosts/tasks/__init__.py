"""The Invoke tasks, grouped by the part of the day; each checks its arguments, asks the hosts and prints.

`tasks.py` at the top gathers them. `session.py` holds what all tasks share: target, inventory, `--json`, errors and
exit codes.
"""
