"""The fleet for a browser and for Prometheus: views over `hosts/series`, served on the laptop, read-only."""
