"""What the laptop and the hosts share: messages, errors, paths, files, a shard's shape, compression, transfers.

`hosts/` imports nothing else of `remote/`, and this package imports nothing else of Roost (`make lint` holds both). It
imports the standard library and small packages (pydantic, psutil, numpy, zstandard, xxhash), never torch or SGLang.
"""
