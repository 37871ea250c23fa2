"""The common part of detached work on a host: extraction of hidden states, and sampling of answers."""
