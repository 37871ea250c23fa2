"""Shards come back, assignments go out: the laptop's side of `remote/transfer`."""
