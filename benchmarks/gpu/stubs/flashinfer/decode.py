"""See the package."""

from flashinfer import __getattr__  # noqa: F401
