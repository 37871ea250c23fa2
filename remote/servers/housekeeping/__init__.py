"""What servers leave in RAM: the dump directory that states pass through, and shared memory of the dead."""
