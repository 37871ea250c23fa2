"""Attacks by other users of a host and by hostile hosts, as `docs/security.md` lists them; `make attacks` runs them."""
