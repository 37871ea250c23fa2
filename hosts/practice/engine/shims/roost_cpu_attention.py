"""SGLang plugin: what the torch_native attention backend lacks for MLA (DeepSeek) and for DP attention on a CPU.

Loaded by SGLang in every one of its processes through the entry point in roost_practice_shims-1.dist-info.
"""


def register():
    """Complete the backend; SGLang calls this once a process, before the model is built."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

    # Without a handler of its own torch_native takes Triton's, which picks per-head prefill; this backend reads
    # keys and values from the KV pool, which for MLA holds the latent. Always absorb instead.
    AttentionBackendRegistry.register("torch_native", lambda _attention, _batch: AttnForwardMethod.MLA)

    # DP attention pads idle ranks and asks the backend for a filler length.
    TorchNativeAttnBackend.get_cpu_graph_seq_len_fill_value = lambda _backend: 1
