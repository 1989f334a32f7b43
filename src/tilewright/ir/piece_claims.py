"""Pieces of work that stay with a worker, from one kernel to the next.

The runtime hands out the workgroups of a dispatch in the order in which workers ask, so that what a
worker reads was as often as not written by another, and comes from that one's cache. Here
workgroups claim pieces instead: each worker has a part of the pieces, the same one for every
kernel, which it takes first from the front; when it has none left it takes those of others from
behind. Which pieces are taken is a bit each in a tensor of zeros that belongs to one dispatch
alone, so that calls at the same time do not meet.

A dispatch can have several kernels as its stages (`spec/sequences`): a stage begins when all pieces
of the one before are done, which is a bit each, too. A worker waits for that without sleeping, but
not for ever: then its workgroup ends. Who finishes the last piece of a stage goes on in any case,
so that every stage is done whichever workers there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from iree.compiler import ir
from iree.compiler.dialects import arith, flow

from tilewright.ir.hand_written import Binding, call_executable, layout_of
from tilewright.ir.walk import string_attribute, walk

# Bits of the claims that can be told apart by shifts of a 64-bit number.
_MOST = 63
# Two cache lines for each stage: the first number of one says which pieces are taken, that of the
# other which are done.
_NUMBERS, _DONE = 16, 64
_LAYOUT, _TRANSLATION = "layout", "translation_info"
# What a function of an executable gets, by `iree/hal/local/executable_library.h`: of a workgroup
# its places, from byte 0 on, and the worker; of the dispatch how many workers there are, the
# bindings and their lengths.
_PROCESSOR, _WORKERS, _BINDINGS, _LENGTHS = 12, 22, 32, 40
_WORKGROUP_BYTES, _DISPATCH_BYTES, _POINTER_BYTES = 32, 48, 8
# LLVM's orderings of atomic operations, by their numbers in the dialect.
_MONOTONIC, _ACQUIRE = 2, 4
# How often a worker looks whether a stage is done, before its workgroup ends: some 40 ns each on
# processors with AVX-512.
_LOOKS = 1 << 14
# What tells a processor that nothing but waiting is done, by its family.
_PAUSES = {"x86_64": "pause", "aarch64": "yield"}
_STATUS = "(!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32"
# Takes and does pieces of a stage until none is free. What it returns is not 0 where a piece fails.
_WORKING = f"""
llvm.func internal @{{code}}_pieces(%env: !llvm.ptr, %dispatch: !llvm.ptr, %group: !llvm.ptr,
    %claims: !llvm.ptr) -> i32 {{{{
  %count = llvm.mlir.constant({{count}} : i64) : i64
  %apart = llvm.mlir.constant({{apart}} : i32) : i32
  %along_x = llvm.mlir.constant({{along_x}} : i32) : i32
  %along_y = llvm.mlir.constant({{along_y}} : i32) : i32
  %zero32 = llvm.mlir.constant(0 : i32) : i32
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %ones = llvm.mlir.constant(-1 : i64) : i64
  %last = llvm.mlir.constant(63 : i64) : i64
  %done_at = llvm.getelementptr %claims[{_DONE}] : (!llvm.ptr) -> !llvm.ptr, i8
  %above_all = llvm.shl %one, %count : i64
  %all = llvm.sub %above_all, %one : i64
  %group_numbers = llvm.mlir.constant({_WORKGROUP_BYTES // 8} : i32) : i32
  %my_group = "llvm.alloca"(%group_numbers) <{{{{alignment = 8 : i64, elem_type = i64}}}}>
      : (i32) -> !llvm.ptr
  %group_bytes = llvm.mlir.constant({_WORKGROUP_BYTES} : i64) : i64
  %workers_at = llvm.getelementptr %dispatch[{_WORKERS}] : (!llvm.ptr) -> !llvm.ptr, i8
  %workers8 = llvm.load %workers_at : !llvm.ptr -> i8
  %workers_or_0 = llvm.zext %workers8 : i8 to i64
  %workers = llvm.intr.umax(%workers_or_0, %one) : (i64, i64) -> i64
  %worker_at = llvm.getelementptr %group[{_PROCESSOR}] : (!llvm.ptr) -> !llvm.ptr, i8
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
  llvm.br ^look
^look:
  %taken = "llvm.load"(%claims) <{{{{alignment = 8 : i64, ordering = {_MONOTONIC} : i64}}}}>
      : (!llvm.ptr) -> i64
  %not_taken = llvm.xor %taken, %ones : i64
  %free = llvm.and %not_taken, %all : i64
  %none = llvm.icmp "eq" %free, %zero : i64
  llvm.cond_br %none, ^nothing, ^choose
^choose:
  %own = llvm.and %free, %mine : i64
  %has_own = llvm.icmp "ne" %own, %zero : i64
  %first = "llvm.intr.cttz"(%own) <{{{{is_zero_poison = false}}}}> : (i64) -> i64
  %above = "llvm.intr.ctlz"(%free) <{{{{is_zero_poison = false}}}}> : (i64) -> i64
  %hindmost = llvm.sub %last, %above : i64
  %piece = llvm.select %has_own, %first, %hindmost : i1, i64
  %bit = llvm.shl %one, %piece : i64
  %before = llvm.atomicrmw _or %claims, %bit monotonic : !llvm.ptr, i64
  %was = llvm.and %before, %bit : i64
  %lost = llvm.icmp "ne" %was, %zero : i64
  llvm.cond_br %lost, ^look, ^work
^work:
  "llvm.intr.memcpy"(%my_group, %group, %group_bytes) <{{{{isVolatile = false}}}}>
      : (!llvm.ptr, !llvm.ptr, i64) -> ()
  %number = llvm.trunc %piece : i64 to i32
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
  %status = llvm.call @{{code}}(%env, %dispatch, %my_group) : {_STATUS}
  %done = llvm.atomicrmw _or %done_at, %bit release : !llvm.ptr, i64
  %failed = llvm.icmp "ne" %status, %zero32 : i32
  llvm.cond_br %failed, ^fail, ^look
^fail:
  llvm.return %status : i32
^nothing:
  llvm.return %zero32 : i32
}}}}
"""
# Whether the pieces of a stage are done, after some time at most.
_WAITING = f"""
llvm.func internal @{{name}}_wait(%claims: !llvm.ptr, %count: i64) -> i1 {{{{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %looks = llvm.mlir.constant({_LOOKS} : i64) : i64
  %done_at = llvm.getelementptr %claims[{_DONE}] : (!llvm.ptr) -> !llvm.ptr, i8
  %above_all = llvm.shl %one, %count : i64
  %all = llvm.sub %above_all, %one : i64
  llvm.br ^look(%zero : i64)
^look(%looked: i64):
  %done = "llvm.load"(%done_at) <{{{{alignment = 8 : i64, ordering = {_ACQUIRE} : i64}}}}>
      : (!llvm.ptr) -> i64
  %is_done = llvm.icmp "eq" %done, %all : i64
  %again = llvm.add %looked, %one : i64
  %enough = llvm.icmp "ugt" %again, %looks : i64
  %ends = llvm.or %is_done, %enough : i1
  llvm.cond_br %ends, ^end, ^pause
^pause:
  llvm.inline_asm has_side_effects "{{pause}}", "" : () -> ()
  llvm.br ^look(%again : i64)
^end:
  llvm.return %is_done : i1
}}}}
"""
_BEGIN = f"""
llvm.func @{{name}}(%env: !llvm.ptr, %dispatch: !llvm.ptr, %group: !llvm.ptr) -> i32 {{{{
  %ok = llvm.mlir.constant(0 : i32) : i32
  %most = llvm.mlir.constant({{most}} : i32) : i32
  %pointers = "llvm.alloca"(%most) <{{{{alignment = 8 : i64, elem_type = i64}}}}>
      : (i32) -> !llvm.ptr
  %sizes = "llvm.alloca"(%most) <{{{{alignment = 8 : i64, elem_type = i64}}}}> : (i32) -> !llvm.ptr
  %numbers = llvm.mlir.constant({_DISPATCH_BYTES // 8} : i32) : i32
  %mine = "llvm.alloca"(%numbers) <{{{{alignment = 8 : i64, elem_type = i64}}}}>
      : (i32) -> !llvm.ptr
  %bytes = llvm.mlir.constant({_DISPATCH_BYTES} : i64) : i64
  "llvm.intr.memcpy"(%mine, %dispatch, %bytes) <{{{{isVolatile = false}}}}>
      : (!llvm.ptr, !llvm.ptr, i64) -> ()
  %my_bindings_at = llvm.getelementptr %mine[{_BINDINGS}] : (!llvm.ptr) -> !llvm.ptr, i8
  %my_lengths_at = llvm.getelementptr %mine[{_LENGTHS}] : (!llvm.ptr) -> !llvm.ptr, i8
  llvm.store %pointers, %my_bindings_at : !llvm.ptr, !llvm.ptr
  llvm.store %sizes, %my_lengths_at : !llvm.ptr, !llvm.ptr
  %bindings_at = llvm.getelementptr %dispatch[{_BINDINGS}] : (!llvm.ptr) -> !llvm.ptr, i8
  %bindings = llvm.load %bindings_at : !llvm.ptr -> !llvm.ptr
  %lengths_at = llvm.getelementptr %dispatch[{_LENGTHS}] : (!llvm.ptr) -> !llvm.ptr, i8
  %lengths = llvm.load %lengths_at : !llvm.ptr -> !llvm.ptr
  %claims = llvm.load %bindings : !llvm.ptr -> !llvm.ptr
"""
# Workgroups for which nothing is left do not look through the stages.
_LATE = f"""
  %last_at = llvm.getelementptr %claims[{{last}}] : (!llvm.ptr) -> !llvm.ptr, i8
  %last_taken = "llvm.load"(%last_at) <{{{{alignment = 8 : i64, ordering = {_MONOTONIC} : i64}}}}>
      : (!llvm.ptr) -> i64
  %last_all = llvm.mlir.constant({{all}} : i64) : i64
  %late = llvm.icmp "eq" %last_taken, %last_all : i64
  llvm.cond_br %late, ^end(%ok : i32), ^stage0
^stage0:
"""
_BUFFER = """
  %p{n}_at = llvm.getelementptr %bindings[{binding}] : (!llvm.ptr) -> !llvm.ptr, i8
  %p{n}_begin = llvm.load %p{n}_at : !llvm.ptr -> !llvm.ptr
  %p{n} = llvm.getelementptr %p{n}_begin[{offset}] : (!llvm.ptr) -> !llvm.ptr, i8
  %p{n}_to = llvm.getelementptr %pointers[{to}] : (!llvm.ptr) -> !llvm.ptr, i8
  llvm.store %p{n}, %p{n}_to : !llvm.ptr, !llvm.ptr
  %s{n}_at = llvm.getelementptr %lengths[{binding}] : (!llvm.ptr) -> !llvm.ptr, i8
  %s{n}_all = llvm.load %s{n}_at : !llvm.ptr -> i64
  %s{n}_offset = llvm.mlir.constant({offset} : i64) : i64
  %s{n} = llvm.sub %s{n}_all, %s{n}_offset : i64
  %s{n}_to = llvm.getelementptr %sizes[{to}] : (!llvm.ptr) -> !llvm.ptr, i8
  llvm.store %s{n}, %s{n}_to : i64, !llvm.ptr
"""
_STAGE = """
  %claims{n} = llvm.getelementptr %claims[{claims}] : (!llvm.ptr) -> !llvm.ptr, i8
  %status{n} = llvm.call @{code}_pieces(%env, %mine, %group, %claims{n})
      : (!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
"""
_BETWEEN = """
  %failed{n} = llvm.icmp "ne" %status{n}, %ok : i32
  llvm.cond_br %failed{n}, ^end(%status{n} : i32), ^wait{n}
^wait{n}:
  %count{n} = llvm.mlir.constant({count} : i64) : i64
  %done{n} = llvm.call @{name}_wait(%claims{n}, %count{n}) : (!llvm.ptr, i64) -> i1
  llvm.cond_br %done{n}, ^stage{next}, ^end(%ok : i32)
^stage{next}:
"""
_END = """
  llvm.br ^end(%status{n} : i32)
^end(%status: i32):
  llvm.return %status : i32
}}
"""
_CODE = "llvm.func @{code}" + _STATUS + " attributes {{hal.import.bitcode = true}}"


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
        return self.number > 1 and self.can_be_marked

    @property
    def can_be_marked(self) -> bool:
        """Whether a number has a bit for each."""
        return self.number <= _MOST


@dataclass(frozen=True)
class BoundPlace:
    """Where a buffer is: a binding of the dispatch, and bytes from where that begins."""

    binding: int
    offset: int = 0


@dataclass(frozen=True)
class ClaimedStage:
    """A kernel of a dispatch.

    code: the name of the function that does a piece, given what IREE gives a workgroup's. pieces:
    of its work. buffers: where what it binds is among what the dispatch binds, of which the claims
    are the first.
    """

    code: str
    pieces: Pieces
    buffers: tuple[BoundPlace, ...]


def claims_type(stages: int) -> ir.RankedTensorType:
    """The type of the claims of a dispatch; the context is entered.

    Args:
        stages: how many it has.
    """
    return ir.RankedTensorType.get([_NUMBERS * stages], ir.IntegerType.get_signless(64))


def claims_binding(stages: int) -> Binding:
    """The first binding of a dispatch whose workgroups claim pieces; the context is entered.

    Args:
        stages: how many it has.
    """
    type_ = claims_type(stages)
    return Binding(ir.MemRefType.get(type_.shape, type_.element_type), False)


def no_claims(stages: int) -> ir.Value:
    """The claims of a dispatch that has not begun, at the insertion point.

    Args:
        stages: how many it has.
    """
    i64 = ir.IntegerType.get_signless(64)
    zero = arith.ConstantOp(i64, ir.IntegerAttr.get(i64, 0)).result
    return flow.TensorSplatOp(claims_type(stages), zero, []).result


def claiming_code(name: str, stages: Sequence[ClaimedStage], family: str) -> ir.Module:
    """The functions of a dispatch whose workgroups claim the pieces of its stages.

    Args:
        name: of the one that IREE calls, which is the last but one for each stage's.
        stages: in the order in which they are done.
        family: of the processor, as its target's triple begins.

    Returns:
        A module of them; the code of the stages is declared as what is elsewhere.
    """
    text = []
    for code, pieces in {one.code: one.pieces for one in stages}.items():
        along_x, along_y, _ = pieces.counts
        text += [
            _CODE.format(code=code),
            _WORKING.format(
                code=code,
                count=pieces.number,
                apart=pieces.apart,
                along_x=along_x,
                along_y=along_y,
            ),
        ]
    if len(stages) > 1:
        text.append(_WAITING.format(name=name, pause=_PAUSES.get(family, "")))
    text.append(_BEGIN.format(name=name, most=max(len(one.buffers) for one in stages)))
    if len(stages) > 1:
        last = (len(stages) - 1) * _NUMBERS * 8
        text.append(_LATE.format(last=last, all=(1 << stages[-1].pieces.number) - 1))
    for n, stage in enumerate(stages):
        for to, place in enumerate(stage.buffers):
            text.append(
                _BUFFER.format(
                    n=f"{n}_{to}",
                    binding=place.binding * _POINTER_BYTES,
                    offset=place.offset,
                    to=to * _POINTER_BYTES,
                )
            )
        text.append(_STAGE.format(n=n, code=stage.code, claims=n * _NUMBERS * 8))
        after = _BETWEEN if n + 1 < len(stages) else _END
        text.append(after.format(n=n, name=name, count=stage.pieces.number, next=n + 1))
    return ir.Module.parse("\n".join(text))


def claim(
    executable: ir.Operation,
    code: str,
    bindings: Sequence[Binding],
    pieces: Pieces,
    family: str,
    calls: Iterable[ir.Operation],
) -> None:
    """Have the workgroups of an executable claim pieces.

    Args:
        executable: a `hal.executable.source` whose function calls another with what it gets.
        code: the name of that other function.
        bindings: of the executable; the claims become the first.
        pieces: those of its work that can be claimed.
        family: of the processor, as its target's triple begins.
        calls: the `flow.dispatch` ops that call it; they are replaced.
    """
    buffers = tuple(BoundPlace(1 + number) for number in range(len(bindings)))
    with executable.context, ir.Location.unknown():
        for op in list(walk(executable, lambda o: o.name != "llvm.func")):
            if op.name == "hal.executable.export":
                op.attributes[_LAYOUT] = layout_of([claims_binding(1), *bindings])
            if op.name == "llvm.func" and len(op.regions[0].blocks):
                name = string_attribute(op, "sym_name")
                made = claiming_code(name, [ClaimedStage(code, pieces, buffers)], family)
                put_in_place(op, name, made)
        for call in calls:
            _hand_over(call)


def put_in_place(function: ir.Operation, name: str, made: ir.Module) -> None:
    """Put functions in the place of an executable's; what is noted on that stays there.

    Args:
        function: what is replaced.
        name: of the new one that stands for it.
        made: the new ones. What of them is declared only, and is there already, is left out.
    """
    there = {
        string_attribute(other.operation, "sym_name")
        for other in function.parent.regions[0].blocks[0].operations
        if other.operation != function
    }
    for one in made.body.operations:
        symbol = string_attribute(one.operation, "sym_name")
        if symbol in there:
            continue
        copy = one.operation.clone(ip=ir.InsertionPoint(function)).operation
        for noted in function.attributes:
            # Each with a body says by which passes it is compiled, the others too.
            if noted not in copy.attributes and (symbol == name or noted == _TRANSLATION):
                copy.attributes[noted] = function.attributes[noted]
    function.erase()


def _hand_over(call: ir.Operation) -> None:
    """Give a call claims: none is taken yet."""
    (entry,) = ir.ArrayAttr(call.attributes["entry_points"])
    ties = [ir.IntegerAttr(one).value for one in ir.ArrayAttr(call.attributes["tied_operands"])]
    with ir.InsertionPoint(call):
        claims = no_claims(1)
        made = call_executable(
            entry,
            [*(value.type for value in call.results), claims.type],
            [claims, *call.operands],
            [*(tie + 1 if tie >= 0 else tie for tie in ties), 0],
        )
        for old, new in zip(call.results, made, strict=False):
            old.replace_all_uses_with(new)
    call.erase()
