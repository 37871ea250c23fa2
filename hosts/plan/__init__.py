"""Who does what, how many bytes, does it fit: pure functions over a dataset's lengths. Runs on the laptop."""
