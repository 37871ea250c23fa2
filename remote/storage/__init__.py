"""Data at rest on a host's disk: removed (`clean`), compressed (`compress`), made plain again (`unpack`)."""
