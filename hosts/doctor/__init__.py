"""What a host's facts mean for Roost: green, yellow or red, each with what to do. Laptop's side, pure."""
