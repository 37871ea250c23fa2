"""Roost's half that is pushed to a GPU host and runs there under the host's own Python (3.10 or newer).

Imports nothing that an SGLang install does not already have, and nothing of `hosts/`.
"""
