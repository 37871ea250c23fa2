"""Shards to the layouts of drafter trainers. Runs where the destination is; the originals are never touched."""
