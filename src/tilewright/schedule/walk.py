"""Walks over expressions and statements: substitution, structural equality, collection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tilewright.schedule.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Reduce,
    Select,
    TensorRead,
    Var,
    binary,
    cast,
)
from tilewright.schedule.nest import (
    Allocate,
    Barrier,
    For,
    If,
    Intrinsic,
    Prefetch,
    Region,
    Seq,
    Stmt,
    Store,
    StoreAll,
    ThreadReduce,
)


def children(expr: Expr) -> tuple[Expr, ...]:
    """The operands of a node, in order."""
    match expr:
        case Binary():
            return (expr.a, expr.b)
        case Load() | TensorRead():
            return expr.indices
        case Cast():
            return (expr.value,)
        case Select():
            return (expr.condition, expr.a, expr.b)
        case Call():
            return expr.args
        case Not():
            return (expr.a,)
        case Reduce():
            return (*expr.sources, expr.condition, *(expr.init or ()))
    return ()


def rebuilt(expr: Expr, parts: tuple[Expr, ...]) -> Expr:
    """The node with other operands; itself where they are the ones it has."""
    if all(new is old for new, old in zip(parts, children(expr), strict=True)):
        return expr
    match expr:
        case Binary():
            return binary(expr.op, parts[0], parts[1])
        case Load():
            return Load(expr.buffer, parts)
        case TensorRead():
            return TensorRead(expr.tensor, parts)
        case Cast():
            return cast(expr.dtype, parts[0])
        case Select():
            return Select(parts[0], parts[1], parts[2], expr.guarded)
        case Call():
            return Call(expr.name, parts, expr.dtype)
        case Not():
            return Not(parts[0])
        case Reduce():
            n = len(expr.sources)
            init = parts[n + 1 :] if expr.init is not None else None
            return Reduce(expr.combiner, parts[:n], expr.axes, parts[n], expr.index, init)
    return expr


def transform(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """The expression with every node for which `change` gives another replaced by it.

    `change` sees a node after its operands were transformed; None keeps the node. A node that
    occurs several times is transformed once.
    """
    done: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        known = done.get(node)
        if known is not None:
            return known
        parts = children(node)
        new = rebuilt(node, tuple(visit(p) for p in parts)) if parts else node
        changed = change(new)
        result = new if changed is None else changed
        done[node] = result
        return result

    return visit(expr)


def substitute(expr: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """The expression with variables replaced by values."""
    if not values:
        return expr
    return transform(expr, lambda node: values.get(node) if isinstance(node, Var) else None)


def nodes(expr: Expr) -> Iterator[Expr]:
    """Every node once, operands before what they are part of."""
    seen: set[Expr] = set()

    def visit(node: Expr) -> Iterator[Expr]:
        if node in seen:
            return
        seen.add(node)
        for part in children(node):
            yield from visit(part)
        yield node

    return visit(expr)


def variables(expr: Expr) -> set[Var]:
    """The variables that occur in an expression."""
    return {node for node in nodes(expr) if isinstance(node, Var)}


def reads(expr: Expr) -> list[TensorRead]:
    """The tensor reads of an expression."""
    return [node for node in nodes(expr) if isinstance(node, TensorRead)]


def same(a: Expr, b: Expr, renamed: Mapping[Var, Var] | None = None) -> bool:
    """Whether two expressions have one structure; `renamed` maps variables of `a` to those of `b`.

    Buffers, tensors and variables are compared by identity.
    """
    if a is b and not renamed:
        return True
    if type(a) is not type(b) and not (isinstance(a, Var) and isinstance(b, Var)):
        return False
    if isinstance(a, Var):
        return (renamed or {}).get(a, a) is b
    if a.dtype != b.dtype:
        return False
    match a, b:
        case Const(), Const():
            return a.value == b.value
        case Binary(), Binary():
            if a.op != b.op:
                return False
        case Call(), Call():
            if a.name != b.name:
                return False
        case Load(), Load():
            if a.buffer is not b.buffer:
                return False
        case TensorRead(), TensorRead():
            if a.tensor is not b.tensor:
                return False
        case Select(), Select():
            if a.guarded != b.guarded:
                return False
    mine, theirs = children(a), children(b)
    return len(mine) == len(theirs) and all(
        same(x, y, renamed) for x, y in zip(mine, theirs, strict=True)
    )


# -- statements ------------------------------------------------------------------------------------


def flat(*statements: Stmt | None) -> Stmt:
    """Statements as one, without nested or empty sequences."""
    body: list[Stmt] = []
    for statement in statements:
        if isinstance(statement, Seq):
            body.extend(statement.body)
        elif statement is not None:
            body.append(statement)
    return body[0] if len(body) == 1 else Seq(tuple(body))


def inner(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside of a statement."""
    match stmt:
        case Seq():
            return stmt.body
        case For() | Allocate():
            return (stmt.body,)
        case If():
            return (stmt.then,) if stmt.otherwise is None else (stmt.then, stmt.otherwise)
    return ()


def statements(stmt: Stmt) -> Iterator[Stmt]:
    """The statement and every statement inside of it, outer ones first."""
    yield stmt
    for part in inner(stmt):
        yield from statements(part)


def rewrite(
    stmt: Stmt,
    expression: Callable[[Expr], Expr],
    statement: Callable[[Stmt], Stmt | None] = lambda s: None,
) -> Stmt:
    """The statement with its expressions mapped, then each statement where `statement` gives
    another one (inner ones first)."""

    def many(values: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(expression(v) for v in values)

    def region(r: Region) -> Region:
        return replace(r, mins=many(r.mins))

    def visit(node: Stmt) -> Stmt:
        new: Stmt
        match node:
            case Seq():
                new = flat(*(visit(part) for part in node.body))
            case For() | Allocate():
                new = replace(node, body=visit(node.body))
            case If():
                otherwise = visit(node.otherwise) if node.otherwise is not None else None
                new = replace(
                    node,
                    condition=expression(node.condition),
                    then=visit(node.then),
                    otherwise=otherwise,
                )
            case Store():
                new = replace(node, indices=many(node.indices), value=expression(node.value))
            case StoreAll():
                new = StoreAll(tuple(_store(visit(s)) for s in node.stores))
            case Prefetch():
                new = Prefetch(region(node.region))
            case ThreadReduce():
                new = replace(
                    node,
                    targets=tuple(_store(visit(s)) for s in node.targets),
                    condition=expression(node.condition),
                )
            case Intrinsic():
                new = replace(
                    node,
                    inputs=tuple(region(r) for r in node.inputs),
                    outputs=tuple(region(r) for r in node.outputs),
                )
            case Barrier():
                new = node
        changed = statement(new)
        return new if changed is None else changed

    return visit(stmt)


def _store(stmt: Stmt) -> Store:
    assert isinstance(stmt, Store)
    return stmt


def substitute_in(stmt: Stmt, values: Mapping[Expr, Expr]) -> Stmt:
    """The statement with variables replaced by values in all of its expressions."""
    return rewrite(stmt, lambda e: substitute(e, values)) if values else stmt


def expressions(stmt: Stmt) -> Iterator[Expr]:
    """The expressions of one statement, without those of the statements inside of it."""
    match stmt:
        case If():
            yield stmt.condition
        case Store():
            yield from stmt.indices
            yield stmt.value
        case StoreAll():
            for store in stmt.stores:
                yield from expressions(store)
        case Prefetch():
            yield from stmt.region.mins
        case ThreadReduce():
            for store in stmt.targets:
                yield from expressions(store)
            yield stmt.condition
        case Intrinsic():
            for region in (*stmt.inputs, *stmt.outputs):
                yield from region.mins
