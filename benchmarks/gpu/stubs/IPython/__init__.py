"""Stands in for IPython, of which SGLang imports two names."""
