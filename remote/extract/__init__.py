"""A run's records from the dataset's tokens to verified shards on this host's disk; runs on a GPU host."""
