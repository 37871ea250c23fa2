"""The practice fleet, on the laptop: hosts on loopback behind real sshd, CPU SGLang, tiny models, sample text.

Started by `make` and by the `inv practice.*` tasks; keeps everything it makes under `.practice/`.
"""
