"""The errors of an attempt that do not end the run; each class tells who is at fault.

Raised by the client and by the code that turns answers into records; judged by `remote.work.judgement`.
"""

from __future__ import annotations

from remote.shared.errors import RecordError


class ServerGoneError(Exception):
    """The server did not answer, or closed the connection. It may be restarting; the record may not be at fault."""


class AttemptError(Exception):
    """This attempt failed on the server (a 500, a timeout, an abort); another attempt may succeed."""


class HeldUpError(Exception):
    """Neither the record nor the server is at fault. The record is tried again, and this attempt does not count."""


class RefusedError(RecordError):
    """The server will never take this record."""


TryError = ServerGoneError | AttemptError | HeldUpError | RecordError
"""The errors of an attempt that are not the host's fault."""
TRY_ERRORS = (ServerGoneError, AttemptError, HeldUpError, RecordError)
