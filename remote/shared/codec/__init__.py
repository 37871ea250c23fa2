"""Lossless compression of bf16 hidden states: pieces, a container for them, and a reader. Runs on both sides.

A container (`hs_{i}.safetensors.rz`) has this form, with little-endian integers:

    magic   8 bytes `ROOSTRZ1`
    pieces  each: u32 plain bytes P, u32 channels C, u32 packed bytes K, then
              C = 0: K bytes, a zstd frame of the P plain bytes (headers, token ids, anything that is not bf16);
              C > 0: C bytes `base`; K bytes, a zstd frame of `exponent - base[channel]` (mod 256), P/2 bytes;
                     P/2 bytes `mantissa << 1 | sign`. P/2 values, channel = position mod C
    index   JSON {"size", "xxh3" (xxh3-128 of all plain bytes), "pieces": [[plain offset, file offset], ...]}
    tail    u32 length of the index, 8 bytes magic

A bf16 value is `sign << 15 | exponent << 7 | mantissa`. All pieces' plain bytes, in order, are the file.
"""
