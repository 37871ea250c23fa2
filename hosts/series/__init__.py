"""The fleet as it goes on, kept up to date for any view. Laptop's side, prints nothing."""
