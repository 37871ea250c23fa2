"""Checks around a server: is it ready, is its capture right, does the host have what it needs, what is in its way."""
