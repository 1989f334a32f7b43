from __future__ import annotations
def tensorized_leaf(plan): return None
def tensorized(stage, leaf): raise NotImplementedError
