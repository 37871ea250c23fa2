"""Datasets and formats: runs on `local` or on a host, under a Python that has datasets, torch and transformers."""
