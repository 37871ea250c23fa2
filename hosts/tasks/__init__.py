"""The Invoke tasks, one module a part of the day; each parses its arguments, makes one call and prints.

`tasks.py` at the top gathers them. What every task shares (target, inventory, `--json`, errors, exit codes) is
`session.py`.
"""
