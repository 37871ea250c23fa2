"""Lets a torchvision whose C++ operators do not load (built for CUDA, beside a CPU torch) be imported all the same.

Imported by the .pth file of `.engine` at every start of Python. torchvision registers a fake kernel for
torchvision::nms at import, which needs the operator's schema: it is defined just before that import, once, unless the
operators load and bring it themselves (a second definition would abort the process). Nothing here calls nms.
"""

import importlib.abc
import importlib.machinery
import sys
from pathlib import Path


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            if not _operators_load():
                _define_schemas()


def _operators_load():
    import torch

    found = importlib.machinery.PathFinder.find_spec("torchvision")
    for folder in (found.submodule_search_locations or []) if found else []:
        for library in Path(folder).glob("_C*.so"):
            try:
                torch.ops.load_library(library)
            except OSError:
                continue
            return True
    return False


def _define_schemas():
    import torch

    for operator in ("nms", "qnms"):
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{operator}", schema)


sys.meta_path.insert(0, _BeforeTorchvision())
