"""PyTorch: modules tuned, as callables on tensors, and a backend of torch.compile.

import tilewright.torch

tuned = tilewright.torch.tune(module, example_inputs)
outputs = tuned(inputs)
"""

from __future__ import annotations

from tilewright.torch.backend import register as _register
from tilewright.torch.tuned_module import TunedModule, load
from tilewright.torch.tuning import tune

__all__ = ["TunedModule", "load", "tune"]

_register()
