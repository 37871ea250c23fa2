"""The shape of a shard: its bytes, its header, the names of its parts. Standard library, numpy and xxhash only."""
