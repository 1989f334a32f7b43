from __future__ import annotations
from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.nest import Stmt


def virtual_serialized(body: Stmt, arithmetic: Arithmetic) -> Stmt:
    return body
