"""Measures a ready server with SGLang's own load generator and records the circumstances. Runs on the host."""
