"""What detached work on a host has in common, whether it extracts states or samples answers."""
