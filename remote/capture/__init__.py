"""Capture: hidden states out of SGLang's forward pass, into files of the shard's final layout.

`request_id` and `environment` are plain and may be imported anywhere; everything else here runs inside SGLang's
scheduler processes and imports torch.
"""

VERSION = "1"
"""Travels in every dump and in the process status; raised when a dump's meaning changes."""
