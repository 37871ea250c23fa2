"""The room that the laptop and the hosts share: messages, errors, paths, files, shards, compression, transfers.

`hosts/` imports nothing else of `remote/`, and this package imports nothing else of Roost (`make lint` checks both). It
imports the standard library and small packages (pydantic, psutil, numpy, zstandard, xxhash), never torch or SGLang.
"""
