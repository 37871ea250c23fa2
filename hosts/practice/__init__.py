"""The practice fleet, on the laptop: hosts on loopback behind real sshd, CPU SGLang, tiny models, sample text.

`make` and the `inv practice.*` tasks start it. Every file that it makes is under `.practice/`.
"""
