"""Stands in for soundfile, which SGLang imports for audio models."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
