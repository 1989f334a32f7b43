"""Random weights for `mlp_weights.mlir`, as an archive of the kind that IREE reads.

python examples/make_weights.py weights.irpa
"""

from __future__ import annotations

import sys

import iree.runtime as rt
import numpy as np

SHAPES = {
    "w0": (256, 1024),
    "b0": (1024,),
    "w1": (1024, 512),
    "b1": (512,),
    "w2": (512, 128),
    "b2": (128,),
}


def main(path: str) -> None:
    rng = np.random.default_rng(0)
    index = rt.ParameterIndex()
    for name, shape in SHAPES.items():
        # Scaled so that every layer's outputs are about as large as its inputs.
        weights = rng.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[0])
        index.add_buffer(name, weights.astype(np.float32))
    index.create_archive_file(path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/make_weights.py FILE.irpa")
    main(sys.argv[1])
