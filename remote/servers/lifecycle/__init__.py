"""A server's life from `serve` to `stop`: its command, supervisor, record and logs, and the cause of its end."""
