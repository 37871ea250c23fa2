"""Stands in for flashinfer, which SGLang imports and, with the flags used here, never calls."""

__version__ = "0.0.0+stub"


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args, **_kwargs):
        raise RuntimeError(f"flashinfer.{name} was called, and flashinfer is not installed")

    return missing
