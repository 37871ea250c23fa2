"""Tail and follow, on the host: whole lines with the byte at which to go on (`inv logs`)."""
