"""Pieces of work that stay with a worker from one dispatch to the next.

The runtime hands out the workgroups of a dispatch in the order in which workers ask, so that what a
worker reads was as often as not written by another, and comes from that one's cache. Here
workgroups claim their piece instead: each worker has a part of the pieces, the same one in every
dispatch, which it takes first from the front; when it has none left it takes those of others from
behind. Which pieces are taken is a bit each in a tensor of zeros that belongs to one dispatch
alone, so that calls at the same time do not meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from iree.compiler import ir
from iree.compiler.dialects import arith, flow

from tilewright.ir.hand_written import Binding, layout_of
from tilewright.ir.walk import string_attribute, walk

# Bits of the claims that can be told apart by shifts of a 64-bit number.
_MOST = 63
# A cache line, of which the first number is used. (Read with ordering 2: monotonic.)
_NUMBERS = 8
_LAYOUT, _TIED = "layout", "tied_operands"
# What a function of an executable gets, by `iree/hal/local/executable_library.h`: of a workgroup
# its places, from byte 0 on, and the worker; of the dispatch how many workers there are, the
# bindings and their lengths.
_PROCESSOR, _WORKERS, _BINDINGS, _LENGTHS = 12, 22, 32, 40
_WORKGROUP_BYTES, _DISPATCH_BYTES, _POINTER_BYTES = 32, 48, 8
_CLAIMING = """
llvm.func @{name}(%env: !llvm.ptr, %dispatch: !llvm.ptr, %group: !llvm.ptr) -> i32 {{
  %zero32 = llvm.mlir.constant(0 : i32) : i32
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %ones = llvm.mlir.constant(-1 : i64) : i64
  %last = llvm.mlir.constant(63 : i64) : i64
  %count = llvm.mlir.constant({count} : i64) : i64
  %all = llvm.mlir.constant({all} : i64) : i64
  %apart = llvm.mlir.constant({apart} : i32) : i32
  %x = llvm.load %group : !llvm.ptr -> i32
  %rest = llvm.urem %x, %apart : i32
  %idle = llvm.icmp "ne" %rest, %zero32 : i32
  llvm.cond_br %idle, ^nothing, ^begin
^begin:
  %workers_at = llvm.getelementptr %dispatch[{workers}] : (!llvm.ptr) -> !llvm.ptr, i8
  %workers8 = llvm.load %workers_at : !llvm.ptr -> i8
  %workers_or_0 = llvm.zext %workers8 : i8 to i64
  %workers = llvm.intr.umax(%workers_or_0, %one) : (i64, i64) -> i64
  %worker_at = llvm.getelementptr %group[{processor}] : (!llvm.ptr) -> !llvm.ptr, i8
  %worker32 = llvm.load %worker_at : !llvm.ptr -> i32
  %worker_id = llvm.zext %worker32 : i32 to i64
  %worker = llvm.urem %worker_id, %workers : i64
  %next = llvm.add %worker, %one : i64
  %from_all = llvm.mul %worker, %count : i64
  %from = llvm.udiv %from_all, %workers : i64
  %to_all = llvm.mul %next, %count : i64
  %to = llvm.udiv %to_all, %workers : i64
  %below_to = llvm.shl %one, %to : i64
  %below_from = llvm.shl %one, %from : i64
  %mine = llvm.sub %below_to, %below_from : i64
  %bindings_at = llvm.getelementptr %dispatch[{bindings}] : (!llvm.ptr) -> !llvm.ptr, i8
  %bindings = llvm.load %bindings_at : !llvm.ptr -> !llvm.ptr
  %claims = llvm.load %bindings : !llvm.ptr -> !llvm.ptr
  llvm.br ^look
^look:
  %taken = "llvm.load"(%claims) <{{alignment = 8 : i64, ordering = 2 : i64}}> : (!llvm.ptr) -> i64
  %not_taken = llvm.xor %taken, %ones : i64
  %free = llvm.and %not_taken, %all : i64
  %none = llvm.icmp "eq" %free, %zero : i64
  llvm.cond_br %none, ^nothing, ^choose
^choose:
  %own = llvm.and %free, %mine : i64
  %has_own = llvm.icmp "ne" %own, %zero : i64
  %first = "llvm.intr.cttz"(%own) <{{is_zero_poison = false}}> : (i64) -> i64
  %above = "llvm.intr.ctlz"(%free) <{{is_zero_poison = false}}> : (i64) -> i64
  %hindmost = llvm.sub %last, %above : i64
  %piece = llvm.select %has_own, %first, %hindmost : i1, i64
  %bit = llvm.shl %one, %piece : i64
  %before = llvm.atomicrmw _or %claims, %bit monotonic : !llvm.ptr, i64
  %was = llvm.and %before, %bit : i64
  %lost = llvm.icmp "ne" %was, %zero : i64
  llvm.cond_br %lost, ^look, ^work
^work:
  %group_numbers = llvm.mlir.constant({group_numbers} : i32) : i32
  %my_group = "llvm.alloca"(%group_numbers) <{{alignment = 8 : i64, elem_type = i64}}>
      : (i32) -> !llvm.ptr
  %group_bytes = llvm.mlir.constant({group_bytes} : i64) : i64
  "llvm.intr.memcpy"(%my_group, %group, %group_bytes) <{{isVolatile = false}}>
      : (!llvm.ptr, !llvm.ptr, i64) -> ()
  %number = llvm.trunc %piece : i64 to i32
  %along_x = llvm.mlir.constant({along_x} : i32) : i32
  %along_y = llvm.mlir.constant({along_y} : i32) : i32
  %in_x = llvm.urem %number, %along_x : i32
  %rows = llvm.udiv %number, %along_x : i32
  %in_y = llvm.urem %rows, %along_y : i32
  %in_z = llvm.udiv %rows, %along_y : i32
  %in_z16 = llvm.trunc %in_z : i32 to i16
  %at_x = llvm.mul %in_x, %apart : i32
  %y_at = llvm.getelementptr %my_group[4] : (!llvm.ptr) -> !llvm.ptr, i8
  %z_at = llvm.getelementptr %my_group[8] : (!llvm.ptr) -> !llvm.ptr, i8
  llvm.store %at_x, %my_group : i32, !llvm.ptr
  llvm.store %in_y, %y_at : i32, !llvm.ptr
  llvm.store %in_z16, %z_at : i16, !llvm.ptr
  %dispatch_numbers = llvm.mlir.constant({dispatch_numbers} : i32) : i32
  %my_dispatch = "llvm.alloca"(%dispatch_numbers) <{{alignment = 8 : i64, elem_type = i64}}>
      : (i32) -> !llvm.ptr
  %dispatch_bytes = llvm.mlir.constant({dispatch_bytes} : i64) : i64
  "llvm.intr.memcpy"(%my_dispatch, %dispatch, %dispatch_bytes) <{{isVolatile = false}}>
      : (!llvm.ptr, !llvm.ptr, i64) -> ()
  %lengths_at = llvm.getelementptr %dispatch[{lengths}] : (!llvm.ptr) -> !llvm.ptr, i8
  %lengths = llvm.load %lengths_at : !llvm.ptr -> !llvm.ptr
  %others = llvm.getelementptr %bindings[{pointer}] : (!llvm.ptr) -> !llvm.ptr, i8
  %other_lengths = llvm.getelementptr %lengths[{pointer}] : (!llvm.ptr) -> !llvm.ptr, i8
  %my_bindings_at = llvm.getelementptr %my_dispatch[{bindings}] : (!llvm.ptr) -> !llvm.ptr, i8
  %my_lengths_at = llvm.getelementptr %my_dispatch[{lengths}] : (!llvm.ptr) -> !llvm.ptr, i8
  llvm.store %others, %my_bindings_at : !llvm.ptr, !llvm.ptr
  llvm.store %other_lengths, %my_lengths_at : !llvm.ptr, !llvm.ptr
  %done = llvm.call @{code}(%env, %my_dispatch, %my_group)
      : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
  llvm.return %done : i32
^nothing:
  llvm.return %zero32 : i32
}}
llvm.func @{code}(!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
"""


@dataclass(frozen=True)
class Pieces:
    """The pieces of a kernel's work.

    counts: how many there are along x, y and z. apart: the workgroups from one piece's to the next
    one's along x.
    """

    counts: tuple[int, int, int]
    apart: int = 1

    @property
    def number(self) -> int:
        """How many there are in all."""
        return prod(self.counts)

    @property
    def can_be_claimed(self) -> bool:
        """Whether there are several, and not too many."""
        return 1 < self.number <= _MOST


def claim(
    executable: ir.Operation,
    code: str,
    bindings: Sequence[Binding],
    pieces: Pieces,
    calls: Iterable[ir.Operation],
) -> None:
    """Have the workgroups of an executable claim pieces.

    Args:
        executable: a `hal.executable.source` whose function calls another with what it gets.
        code: the name of that other function.
        bindings: of the executable; the claims become the first.
        pieces: those of its work that can be claimed.
        calls: the `flow.dispatch` ops that call it; they are replaced.
    """
    with executable.context, ir.Location.unknown():
        for op in list(walk(executable, lambda o: o.name != "llvm.func")):
            if op.name == "hal.executable.export":
                op.attributes[_LAYOUT] = layout_of([_claims(), *bindings])
            if op.name == "llvm.func" and len(op.regions[0].blocks):
                name = string_attribute(op, "sym_name")
                made = ir.Module.parse(_text(name, code, pieces))
                claiming, _ = made.body.operations
                copy = claiming.operation.clone(ip=ir.InsertionPoint(op)).operation
                for noted in op.attributes:
                    if noted not in copy.attributes:
                        copy.attributes[noted] = op.attributes[noted]
                op.erase()
        for call in calls:
            _hand_over(call)


def _text(name: str, code: str, pieces: Pieces) -> str:
    along_x, along_y, _ = pieces.counts
    return _CLAIMING.format(
        name=name,
        code=code,
        count=pieces.number,
        all=(1 << pieces.number) - 1,
        apart=pieces.apart,
        along_x=along_x,
        along_y=along_y,
        workers=_WORKERS,
        processor=_PROCESSOR,
        bindings=_BINDINGS,
        lengths=_LENGTHS,
        pointer=_POINTER_BYTES,
        group_bytes=_WORKGROUP_BYTES,
        group_numbers=_WORKGROUP_BYTES // 8,
        dispatch_bytes=_DISPATCH_BYTES,
        dispatch_numbers=_DISPATCH_BYTES // 8,
    )


def _claims() -> Binding:
    return Binding(ir.MemRefType.get([_NUMBERS], ir.IntegerType.get_signless(64)), False)


def _hand_over(call: ir.Operation) -> None:
    """Give a call claims: none is taken yet."""
    i64, index = ir.IntegerType.get_signless(64), ir.IndexType.get()
    with ir.InsertionPoint(call):
        type_ = ir.RankedTensorType.get([_NUMBERS], i64)
        zero = arith.ConstantOp(i64, ir.IntegerAttr.get(i64, 0)).result
        claims = flow.TensorSplatOp(type_, zero, []).result
        ties = [-1] * len(call.results)
        if _TIED in call.attributes:
            ties = [ir.IntegerAttr(one).value for one in ir.ArrayAttr(call.attributes[_TIED])]
        ties = [*(tie + 1 if tie >= 0 else tie for tie in ties), 0]
        made = flow.DispatchOp(
            [*(value.type for value in call.results), type_],
            [],
            call.attributes["entry_points"],
            [claims, *call.operands],
            [],
            [],
            tied_operands=ir.ArrayAttr.get([ir.IntegerAttr.get(index, tie) for tie in ties]),
        ).operation
        for old, new in zip(call.results, made.results, strict=False):
            old.replace_all_uses_with(new)
    call.erase()
