"""Planning: which host does which records, how many bytes and hours, and whether it fits. Runs on the laptop."""
