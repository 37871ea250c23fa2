"""Views over `hosts/series` for a browser and for Prometheus, served on the laptop; read-only."""
