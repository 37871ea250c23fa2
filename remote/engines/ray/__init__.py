"""Ray: the login host talks HTTP to its job server; controller and actors run under Ray's own Python."""
