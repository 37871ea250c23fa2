"""The present state of the fleet, for every view. Laptop's side, prints nothing."""
