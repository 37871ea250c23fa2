"""Runs on the host: a history of limited size for each run and server, written by one process, the recorder.

The recorder only reads the state files of extractors and supervisors, so its death does not affect them.
"""
