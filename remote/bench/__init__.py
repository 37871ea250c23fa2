"""How fast a server is: SGLang's own load generator against a ready one, with the circumstances noted. Host side."""
