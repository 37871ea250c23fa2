"""Datasets and formats. Runs on `local` or on a host, under a Python with datasets, torch and transformers."""
