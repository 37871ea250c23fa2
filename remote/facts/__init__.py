"""What a host has and lacks, gathered without changing anything or importing torch. Host side, for `inv doctor`."""
