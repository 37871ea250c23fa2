"""Capture: writes hidden states from SGLang's forward pass into files of the shard's final layout.

`request_id` and `environment` are plain and may be imported anywhere; everything else here runs inside SGLang's
scheduler processes and imports torch.
"""

VERSION = "1"
"""The version in every dump and process status; it is raised when the meaning of a dump changes."""
