"""What a host's facts mean: green, yellow or red, each with what to do (`inv doctor`)."""
