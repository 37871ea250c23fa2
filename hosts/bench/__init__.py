"""Measurements on the laptop: results kept by host and label, and compared with a confidence interval."""
