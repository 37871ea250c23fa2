"""Ray: the login host speaks HTTP to the cluster's job server; controller and actors run under Ray's own Python."""
