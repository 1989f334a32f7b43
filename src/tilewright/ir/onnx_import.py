"""IREE's importer of ONNX models, run as a program, on a model that says the same in a better way.

Models of older versions are brought up to a newer one (`ir/onnx_versions`). What the importer gets
wrong or does not know is said by other operations (`ir/onnx_definitions`, and `ir/onnx_images` for
those on images), sizes that follow from known ones become constants (`ir/onnx_sizes`), recurrent
layers are written as a product and a loop (`ir/onnx_recurrent`), zero points of integers are taken
out of their products (`ir/onnx_zero_points`), quantised numbers are moved as the integers that they
are (`ir/onnx_rearrangements`), convolutions of one image that are added up are one
(`ir/onnx_branches`), images are made larger by broadcasts (`ir/onnx_resizes`), and the
largest of many are found by their ranks (`ir/onnx_orders`).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx
from iree.compiler.tools.import_onnx.__main__ import main, parse_arguments

from tilewright.ir.onnx_branches import merge_branches
from tilewright.ir.onnx_definitions import (
    inline_composed,
    name_apart,
    rewrite_misread,
    shorten_weights,
)
from tilewright.ir.onnx_graphs import is_inside
from tilewright.ir.onnx_images import rewrite_images
from tilewright.ir.onnx_orders import rank_largest
from tilewright.ir.onnx_rearrangements import move_integers
from tilewright.ir.onnx_recurrent import split_recurrent
from tilewright.ir.onnx_resizes import repeat_elements
from tilewright.ir.onnx_sizes import compute_sizes
from tilewright.ir.onnx_versions import bring_up
from tilewright.ir.onnx_zero_points import drop_zero_points, split_products

# Bytes of a model, with weights in files beside it, that are read to see what to say otherwise.
_READ = 1 << 30


def run(arguments: Sequence[str]) -> None:
    """Import a model.

    Args:
        arguments: of IREE's importer, the model first.
    """
    path, *options = arguments
    with tempfile.TemporaryDirectory() as folder:
        model = onnx.load(path, load_external_data=False)
        _read_weights(model, Path(path).resolve().parent)
        changes = [
            bring_up,
            inline_composed,
            compute_sizes,
            merge_branches,
            rewrite_misread,
            rewrite_images,
            rank_largest,
            name_apart,
            move_integers,
            repeat_elements,
            split_products,
            drop_zero_points,
            split_recurrent,
            shorten_weights,
        ]
        if sum(change(model) for change in changes):
            # Where other files are is said relative to the model.
            options += ["--data-dir", str(Path(path).resolve().parent)]
            path = str(Path(folder) / Path(path).name)
            onnx.save(model, path)
        del model
        main(parse_arguments([path, *options]))


def _read_weights(model: onnx.ModelProto, folder: Path) -> None:
    """Have a model's weights in it, where they are in files beside it that are not too large, as
    PyTorch writes them by default."""
    outside = {
        pair.value
        for one in model.graph.initializer
        if not is_inside(one)
        for pair in one.external_data
        if pair.key == "location"
    }
    files = [folder / name for name in outside]
    if not all(one.is_file() for one in files):
        return
    # Together they have to fit a protobuf, as which they are handed on.
    if model.ByteSize() + sum(one.stat().st_size for one in files) <= _READ:
        onnx.load_external_data_for_model(model, str(folder))


if __name__ == "__main__":
    run(sys.argv[1:])
