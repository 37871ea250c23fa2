"""Stand-in for SGLang's compiled kernel package, for a CPU without it.

SGLang's CPU platform imports `*_cpu` names at start-up; only speculative decoding and KV-cache relocation call
them. A plain forward falls back to PyTorch inside SGLang itself, since torch.ops.sgl_kernel has no
convert_weight_packed.
"""

__version__ = "0.0.0"


def __getattr__(name: str):
    if not name.endswith("_cpu"):
        raise AttributeError(name)

    def missing(*_args, **_kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} needs SGLang's compiled kernels, which .engine does without")

    missing.__name__ = name
    return missing
