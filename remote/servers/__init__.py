"""Servers on a GPU host: started detached, awaited until really ready, supervised, stopped without harm to others."""
