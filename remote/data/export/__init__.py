"""Exports shards in the layouts of drafter trainers. Runs where the destination is; the originals never change."""
