"""Output for people: tables and live lines, and the same facts with `--json`. No module here talks to a host."""
