"""Lets the registry's torchvision (built for CUDA, its C++ operators not loadable) be imported beside a CPU torch.

Imported by the .pth file of `.engine` at every start of Python. torchvision registers a fake kernel for
torchvision::nms at import, which needs the operator's schema: it is defined just before that import, once.
Nothing here calls nms.
"""

import importlib.abc
import sys


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            _define_schemas()


def _define_schemas():
    import torch

    for operator in ("nms", "qnms"):
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{operator}", schema)


sys.meta_path.insert(0, _BeforeTorchvision())
