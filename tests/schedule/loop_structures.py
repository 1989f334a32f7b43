"""What two ways of printing loops have in common: TVM's text and ours as lists of the same lines.

A line is a loop with its kind, name (of vectors TVM prints none) and extent, a condition, a store
with what it loads, a call, a reduction over threads; two spaces for each loop or condition around
it. Loops of one iteration are left out, and vectors are loops.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Structure(NamedTuple):
    """lines: of statements. storage: memory that is allocated: elements and scope by name."""

    lines: list[str]
    storage: dict[str, tuple[int, str]]


def _loads(text: str, names: set[str]) -> str:
    """The buffers that an expression loads from, in order."""
    found = re.findall(r"([A-Za-z][\w.]*)\[", text)
    return ", ".join(n for n in (_plain(f) for f in found) if n in names)


def _plain(name: str) -> str:
    """A name without the number that tells it from others."""
    return re.sub(r"_\d+$", "", name)


def _condition(text: str) -> str:
    """The variables and numbers of a condition."""
    text = re.sub(r"\s*#.*|: int32|likely", "", text)
    return " ".join(sorted(re.findall(r"[A-Za-z_][\w.]*|\d+", text)))


# -- ours ------------------------------------------------------------------------------------------


def of_ours(text: str) -> Structure:
    """The structure of a nest as `te.lower` prints it."""
    head, *rest = text.splitlines()
    names = set(re.findall(r"([\w.]+): \w+\[", head))
    storage: dict[str, tuple[int, str]] = {}
    for line in rest:
        if made := re.match(r"\s*([\w.]+) = allocate\(\w+\[(.*?)\], scope=([\w.]+)(.*)\)", line):
            name, shape, scope, more = made.groups()
            sizes = [int(s) for s in shape.split(", ")]
            size = 1
            for extent in sizes:
                size *= extent
            if strides := re.search(r"strides=\[(\d+)", more):
                size = sizes[0] * int(strides[1])
            names.add(name)
            storage[re.sub(r"^.*\.total$", "total", name)] = (size, scope)
    return Structure(list(_our_lines(rest, names)), storage)


def _our_lines(rest: list[str], names: set[str]) -> Iterator[str]:
    threads: set[str] = set()
    outer: list[int] = []
    for line in rest:
        indent = len(line) - len(line.lstrip())
        while outer and indent <= outer[-1]:
            outer.pop()
        pad, line = "  " * len(outer), line.strip()
        if loop := re.match(r"for ([\w.]+) in (\w+)\((\d+)(?:, [\w.]+)?\):", line):
            name, kind, extent = loop.groups()
            threads |= {name} if kind == "thread" else set()
            named = "" if kind == "vectorized" else f"{_plain(name)} "
            yield f"{pad}{kind} {named}{extent}"
            outer.append(indent)
        elif line.startswith("if "):
            yield f"{pad}if {_condition(line[3:])}"
            outer.append(indent)
        elif reduced := re.match(r"[\w.]+\[0\] = thread_\w+\((.*), threads=\[(.*)\]\)", line):
            yield f"{pad}over {reduced[2]} < {_loads(reduced[1], names)}"
        elif fetched := re.match(r"prefetch\((\w+)", line):
            yield f"{pad}prefetch {fetched[1]}"
        elif stored := re.match(r"([\w.]+)\[.*?\] = (.*)", line):
            yield f"{pad}{stored[1]} < {_loads(stored[2], names)}"
        elif called := re.match(r"(\w+)\((.*)\)", line):
            yield f"{pad}{called[1]}({', '.join(_our_arguments(called[2]))})"


def _our_arguments(text: str) -> Iterator[str]:
    for part in re.findall(r"\w+\[[^\]]*\]|\w+", text):
        if "[" not in part:
            yield part
            continue
        size = 1
        for extent in re.findall(r":\+(\d+)", part):
            size *= int(extent)
        yield f"{part.split('[')[0]}:{size}"


# -- TVM's -----------------------------------------------------------------------------------------


def of_tvm(text: str) -> Structure:
    """The structure of a function as TVM 0.8 to 0.10 print it (`tvm.lower`)."""
    storage = {
        re.sub(r"^reduce_temp\d$", "total", made[1]): (int(made[2]), made[3])
        for made in re.finditer(r"allocate\(([\w.]+): .*?\[(\d+)\]\), storage_scope = (\w+)", text)
    }
    names = {*storage, *re.findall(r"([\w.]+): Buffer\(\w+: Pointer\(\w+\), \w+, \[", text)}
    body = text[text.index("} {\n", text.index("preflattened_buffer_map")) :]
    return Structure(list(_tvm_lines(body.splitlines()[1:], names)), storage)


def _tvm_lines(rest: list[str], names: set[str]) -> Iterator[str]:
    # How many lines' worth of indentation each open brace has; a thread's goes on to the end.
    depth: list[int] = []
    for line in rest:
        text = line.strip()
        if text == "}":
            if depth:
                depth.pop()
            continue
        pad = "  " * sum(depth)
        opens = text.endswith("{")
        lines, inside = _tvm_line(text, names)
        for number, made in enumerate(lines):
            yield pad + "  " * number * (made is not lines[0]) + made
        if opens:
            depth.append(inside)
        elif inside:
            # A thread's extent without a brace holds for what follows in this block.
            if depth:
                depth[-1] += inside
            else:
                depth.append(inside)


def _tvm_line(text: str, names: set[str]) -> tuple[list[str], int]:
    """The lines that a line of TVM's is, and how much deeper what follows is."""
    if thread := re.match(r'attr \[IterVar\(([\w.]+):.*"thread_extent" = (\d+)', text):
        return [f"thread {thread[1]} {thread[2]}"], 1
    if loop := re.match(r'for \(([\w.]+): int32, 0, (\d+)\)( "parallel")? \{', text):
        name, extent, kind = loop.groups()
        if extent == "1":
            return [], 0
        return [f"{'parallel' if kind else 'range'} {_plain(name)} {extent}"], 1
    if text.startswith("if ("):
        return [f"if {_condition(text[2:-1])}"], 1
    if reduced := re.match(r"@tir.tvm_thread_allreduce\(1u32, (.*?), True, (.*)\)", text):
        rest = re.sub(r"^.*?\)\[0\], ", "", reduced[2])
        tags = [t.strip() for t in rest.split(",") if "Idx" in t]
        return [f"over {', '.join(tags)} < {_loads(reduced[1], names)}"], 0
    if fetched := re.match(r"@tir.prefetch\(@tir.address_of\((\w+)", text):
        return [f"prefetch {fetched[1]}"], 0
    if called := re.match(r'@tir.call_extern\("(\w+)", (.*), dtype=\w+\)', text):
        pointer = r"@tir\.tvm_access_ptr\(.*?\), (\w+), .*?, (\d+), \d, dtype=handle\)|(\d+)"
        found = re.findall(pointer, called[2])
        args = [number or f"{_plain(buffer)}:{size}" for buffer, size, number in found]
        return [f"{called[1]}({', '.join(args)})"], 0
    if stored := re.match(r"([\w.]+?)(?:_\d+)?(?:: Buffer\(.*?\"?\))?\[.*?\] = (.*)", text):
        name, value = stored.groups()
        # The buffer of the threads' result is TVM's own.
        loads = _loads(value.replace("reduce_temp0", f"{name}.total"), names | {f"{name}.total"})
        made = f"{name} < {loads}"
        vector = re.search(r"ramp\(.*?, 1, (\d+)\)", text)
        return ([f"vectorized {vector[1]}", made], 0) if vector else ([made], 0)
    return [], 0
