"""`inv watch` as a full-screen view of the terminal (Textual, the extra `[watch]`). Laptop's side."""
