"""`inventory.yaml`: the hosts and how each is used. Read `load.load_inventory` first."""
