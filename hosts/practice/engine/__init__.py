"""The practice hosts' own Python, `.engine/`: real SGLang on CPU, without a GPU or compiled kernels.

`install.py` builds it with the standard library alone; the other modules here run inside it (torch is there).
"""
