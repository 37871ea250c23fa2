"""Attacks by other users of a host and by hostile hosts: the table of `docs/security.md`, run by `make attacks`."""
