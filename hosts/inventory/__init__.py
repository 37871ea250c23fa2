"""`inventory.yaml`: which hosts there are and how each is to be used. Read `load.load_inventory` first."""
