"""The types that travel between the laptop and a host, one module for each subject; both sides import them.

Only the standard library and pydantic here. Integers named `*_bytes` are bytes, `*_seconds` seconds,
`*_at` Unix times in seconds (UTC).
"""
