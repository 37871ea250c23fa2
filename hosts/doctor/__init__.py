"""Findings about a host for `inv doctor`: green, yellow or red, each with a remedy."""
