"""Output for people: tables, live lines, and the same facts as `--json`. No module here talks to a host."""
