"""Work of tasks that takes more than one question to each host. Returns outcomes; only `hosts/tasks` prints."""
