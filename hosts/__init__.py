"""Roost's half on the laptop: inventory, SSH, and one module a task. Never imports torch or sglang."""
