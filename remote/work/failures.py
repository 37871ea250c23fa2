"""What a try of one record may raise that does not end the run: each class says who is at fault.

Raised by the client and by whatever makes a record of a server's answer; judged by `remote.work.judgement`.
"""

from __future__ import annotations

from remote.shared.errors import RecordError


class ServerGoneError(Exception):
    """The server did not answer, or broke off: it may be restarting, and the record need not be at fault."""


class AttemptError(Exception):
    """This try failed on the server (a 500, a timeout, an abort); another may do better."""


class HeldUpError(Exception):
    """Neither the record nor the server is at fault: the record is tried again at no try's cost."""


class RefusedError(RecordError):
    """The server will not take this record, however often it is asked."""


TryError = ServerGoneError | AttemptError | HeldUpError | RecordError
"""What a try may raise that is not the host's fault."""
TRY_ERRORS = (ServerGoneError, AttemptError, HeldUpError, RecordError)
