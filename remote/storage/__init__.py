"""What lies on a host's disk, after it was made: freed (`clean`), compressed at rest, made plain again (`unpack`)."""
