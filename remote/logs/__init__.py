"""Tail and follow logs on the host (`inv logs`): whole lines, and the byte at which the next call continues."""
