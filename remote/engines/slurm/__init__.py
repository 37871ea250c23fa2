"""Slurm, on its login host: the script of a run's array, and the commands that submit, show and cancel it."""
