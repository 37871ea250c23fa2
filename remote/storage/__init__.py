"""Data at rest on a host's disk: removes it (`clean`), compresses it (`compress`) and unpacks it (`unpack`)."""
