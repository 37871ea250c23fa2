"""Pulls of shards and pushes of folders: the laptop's side of `remote/shared/transfer`."""
