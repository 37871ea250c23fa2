"""Facts about a host for `inv doctor`, gathered on the host and judged on the laptop by `hosts/doctor`. Read-only."""
