"""What a host has and lacks, on the host (`inv doctor`); judged on the laptop by `hosts/doctor`. Read-only."""
