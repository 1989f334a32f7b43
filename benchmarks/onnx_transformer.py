"""Write a transformer encoder with random weights as an ONNX model, for `tilewright compare`.

    python benchmarks/onnx_transformer.py transformer.onnx         # BERT-small: 3.4 GFLOP
    python benchmarks/onnx_transformer.py transformer.onnx --layers 12 --width 768

The encoder of BERT (Devlin et al., 2018), in the nodes that exporters write: embeddings of tokens
and of their positions, multi-head attention, GELU by its error function, layer normalisation behind
every part. All tokens count, so there is no mask. By default four layers, 512 wide, eight heads,
128 tokens, a vocabulary of 30,522. Needs the `onnx` package.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from onnx_network import Network


class Encoder(Network):
    """The parts of an encoder; `tokens` x `width` values go from one to the next."""

    def __init__(self, seed: int, tokens: int, width: int, heads: int) -> None:
        super().__init__(seed)
        self._tokens, self._width, self._heads = tokens, width, heads
        self._head = width // heads
        self._ones = self.constant(np.ones(width, np.float32))
        self._zeros = self.constant(np.zeros(width, np.float32))

    def scalar(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def shape(self, *sizes: int) -> str:
        return self.constant(np.array(sizes, np.int64))

    def dense(self, value: str, before: int, after: int) -> str:
        product = self.add("MatMul", value, self.weight(before, after, inputs=2 * before))
        return self.add("Add", product, self.weight(after, inputs=after))

    def normalised(self, value: str) -> str:
        return self.add("LayerNormalization", value, self._ones, self._zeros, axis=-1, epsilon=1e-5)

    def embedded(self, ids: str, vocabulary: int) -> str:
        words = self.add("Gather", self.weight(vocabulary, self._width, inputs=2), ids, axis=0)
        places = self.weight(1, self._tokens, self._width, inputs=2)
        return self.normalised(self.add("Add", words, places))

    def heads(self, value: str, order: tuple[int, ...]) -> str:
        split = self.shape(1, self._tokens, self._heads, self._head)
        return self.add("Transpose", self.add("Reshape", value, split), perm=order)

    def attention(self, value: str) -> str:
        width = self._width
        query, key, values = (self.dense(value, width, width) for _ in range(3))
        scores = self.add("MatMul", self.heads(query, (0, 2, 1, 3)), self.heads(key, (0, 2, 3, 1)))
        scaled = self.add("Div", scores, self.scalar(self._head**0.5))
        mixed = self.add(
            "MatMul", self.add("Softmax", scaled, axis=-1), self.heads(values, (0, 2, 1, 3))
        )
        whole = self.shape(1, self._tokens, width)
        joined = self.add("Reshape", self.add("Transpose", mixed, perm=(0, 2, 1, 3)), whole)
        return self.dense(joined, width, width)

    def gelu(self, value: str) -> str:
        erf = self.add("Erf", self.add("Div", value, self.scalar(2**0.5)))
        scaled = self.add("Mul", value, self.add("Add", erf, self.scalar(1.0)))
        return self.add("Mul", scaled, self.scalar(0.5))

    def layer(self, value: str) -> str:
        value = self.normalised(self.add("Add", value, self.attention(value)))
        inner = self.gelu(self.dense(value, self._width, 4 * self._width))
        outer = self.dense(inner, 4 * self._width, self._width)
        return self.normalised(self.add("Add", value, outer))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=30522)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.width % given.heads:
        parser.error(f"--width {given.width} is no multiple of --heads {given.heads}")
    net = Encoder(given.seed, given.tokens, given.width, given.heads)
    value = net.embedded("ids", given.vocabulary)
    for _ in range(given.layers):
        value = net.layer(value)
    ids = ("ids", np.int64, (1, given.tokens))
    net.save(given.output, [ids], value, (1, given.tokens, given.width))


if __name__ == "__main__":
    main()
