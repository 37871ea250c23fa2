"""Extraction: from the dataset's tokens to verified shards on this host's disk. Runs on a GPU host."""
