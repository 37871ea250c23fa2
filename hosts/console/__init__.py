"""What a person sees: tables, live lines, and the same facts as `--json`. Nothing here talks to a host."""
