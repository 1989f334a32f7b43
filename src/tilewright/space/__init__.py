"""Search spaces: knobs, named constraints, and the set of valid configurations.

Works alone: nothing here knows what the knobs mean or how a configuration is measured.
"""

from tilewright.space.constraints import Constraint, Fold, Violation, declared, product_at_most
from tilewright.space.interface import Restriction, Space
from tilewright.space.knobs import BoolKnob, ChoiceKnob, Knob, PermutationKnob, TileKnob
from tilewright.space.sampling import SizeEstimate
from tilewright.space.search_space import SearchSpace
from tilewright.space.union import MEMBER_KNOB, UnionSpace

__all__ = [
    "MEMBER_KNOB",
    "BoolKnob",
    "ChoiceKnob",
    "Constraint",
    "Fold",
    "Knob",
    "PermutationKnob",
    "Restriction",
    "SearchSpace",
    "SizeEstimate",
    "Space",
    "TileKnob",
    "UnionSpace",
    "Violation",
    "declared",
    "product_at_most",
]
