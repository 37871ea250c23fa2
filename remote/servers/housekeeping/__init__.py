"""What servers leave in RAM: the dump directory of hidden states, and shared memory of dead processes."""
