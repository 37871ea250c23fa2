"""Servers on a GPU host: started detached, supervised, asked until really ready, stopped without harm to others."""
