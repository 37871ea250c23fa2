"""What the laptop makes of measurements: results kept by host and label, compared with an interval, grids searched."""
