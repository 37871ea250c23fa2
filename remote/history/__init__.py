"""Runs on the host: a small bounded history of each run and server, kept by one recorder beside whatever works here.

The recorder only reads what extractors and supervisors write about themselves, so that it can die without them.
"""
