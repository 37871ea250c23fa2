"""A server from `serve` to `stop`: its command, its supervisor, its records and logs, how it ends and why."""
