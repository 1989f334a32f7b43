"""What an IREE tensor program computes, in float64 NumPy: what results are checked against.

It shares nothing with the compiler's lowering but the parser, so a result that both agree on was
computed right. `evaluate` runs a function (plain linalg, or an isolated dispatch); `Unsupported`
names what it does not know.
"""

from tilewright.ir.reference.accuracy import Accuracy, accuracy, reduction_length, sensitivity
from tilewright.ir.reference.elements import Unsupported
from tilewright.ir.reference.interpreter import evaluate

__all__ = ["Accuracy", "Unsupported", "accuracy", "evaluate", "reduction_length", "sensitivity"]
