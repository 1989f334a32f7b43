"""Object files of x86-64 as the shared objects that IREE's runtime loads, without a linker.

IREE compiles an executable together with two libraries of functions that nearly none calls, and
starts a linker to drop them again, which takes longer than a small kernel's own code. An object
file that calls none of them needs no more than its sections put one behind the other: the runtime's
own ELF loader wants segments, one exported symbol and relative relocations. Formats: System V ABI,
"Object Files", and its AMD64 supplement.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_PHDR = struct.Struct("<IIQQQQQQ")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_DYNAMIC = struct.Struct("<QQ")

_MAGIC = b"\x7fELF\x02\x01\x01"
_RELOCATABLE, _SHARED, _X86_64 = 1, 3, 62
_SYMTAB, _RELOCATIONS, _NOBITS = 2, 4, 8
_WRITE, _ALLOC, _EXECUTE = 1, 2, 4
_RESERVED = 0xFF00
_LOAD, _DYN = 1, 2
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_RELAENT = 4, 5, 6, 7, 8, 9
_DT_STRSZ, _DT_SYMENT = 10, 11
_ADDRESS, _RELATIVE_TO_PLACE, _CALL, _RELATIVE = 1, 2, 4, 8
_GLOBAL_FUNCTION = 0x12
_PAGE = 4096
# Program headers: sections that are read, executed, written; and the dynamic section.
_SEGMENTS = (_ALLOC, _ALLOC | _EXECUTE, _ALLOC | _WRITE)
_PROGRAM_FLAGS = {_ALLOC: 4, _ALLOC | _EXECUTE: 5, _ALLOC | _WRITE: 6}


class NotLinkable(Exception):
    """The object file needs a real linker; says why."""


@dataclass
class _Section:
    type: int
    flags: int
    data: bytes
    alignment: int
    info: int
    link: int
    relocations: list[tuple[int, int, int, int]] = field(default_factory=list)
    address: int = 0


@dataclass(frozen=True)
class _Symbol:
    name: str
    section: int
    value: int


def shared_object(data: bytes, function: str, exported: str) -> bytes:
    """What one function of an object file needs, as a shared object.

    Args:
        data: the object file.
        function: its name there.
        exported: the name by which it is found in the result, which has no other.

    Returns:
        The shared object.

    Raises:
        NotLinkable: it is for another processor, calls what is not in it, or needs more than
            addresses of its own places.
    """
    sections, symbols = _read(data)
    entry = next((s for s in symbols if s.name == function and 0 < s.section < _RESERVED), None)
    if entry is None:
        raise NotLinkable(f"no function '{function}'")
    kept = _reached(sections, symbols, entry.section)
    addresses = sum(r[1] == _ADDRESS for section in kept for r in section.relocations)
    head = _Head(exported, addresses)
    placed = bytearray(head.size)
    programs = []
    for number, flags in enumerate(_SEGMENTS):
        # In memory each segment has pages of its own; in the file they follow each other.
        shift = number * _PAGE
        start = 0 if number == 0 else len(placed)
        for section in kept:
            if section.flags & (_ALLOC | _EXECUTE | _WRITE) == flags:
                placed += bytes(-len(placed) % max(1, section.alignment))
                section.address = len(placed) + shift
                placed += section.data
        size = len(placed) - start
        programs.append((_LOAD, _PROGRAM_FLAGS[flags], start, start + shift, size))
    made = _relocated(placed, kept, sections, symbols)
    head.write(placed, sections[entry.section].address + entry.value, made, programs)
    return bytes(placed)


def _read(data: bytes) -> tuple[list[_Section], list[_Symbol]]:
    header = _EHDR.unpack_from(data)
    identity, kind, machine, table, count = *header[:3], header[6], header[12]
    if identity[:7] != _MAGIC or (kind, machine) != (_RELOCATABLE, _X86_64):
        raise NotLinkable("no object file of x86-64")
    sections, symbols = [], []
    for number in range(count):
        _, type_, flags, _, offset, size, link, info, alignment, _ = _SHDR.unpack_from(
            data, table + number * _SHDR.size
        )
        content = bytes(size) if type_ == _NOBITS else data[offset : offset + size]
        sections.append(_Section(type_, flags, content, alignment, info, link))
    for section in sections:
        if section.type == _SYMTAB:
            strings = sections[section.link].data
            for name, _, _, place, value, _ in _SYMBOL.iter_unpack(section.data):
                end = strings.index(b"\0", name)
                symbols.append(_Symbol(strings[name:end].decode(), place, value))
        elif section.type == _RELOCATIONS:
            for offset, what, addend in _RELA.iter_unpack(section.data):
                entry = (offset, what & 0xFFFFFFFF, what >> 32, addend)
                sections[section.info].relocations.append(entry)
    return sections, symbols


def _reached(sections: list[_Section], symbols: list[_Symbol], first: int) -> list[_Section]:
    """The sections that one refers to, itself included, and those that they refer to."""
    found: dict[int, None] = {}
    waiting = [first]
    while waiting:
        number = waiting.pop()
        if number in found:
            continue
        found[number] = None
        for _, _, symbol, _ in sections[number].relocations:
            target = symbols[symbol]
            if not 0 < target.section < _RESERVED:
                raise NotLinkable(f"'{target.name}' is not in it")
            waiting.append(target.section)
    return [sections[number] for number in found]


def _relocated(
    placed: bytearray, kept: list[_Section], sections: list[_Section], symbols: list[_Symbol]
) -> list[tuple[int, int]]:
    """Fills in what refers to places; returns the addresses that depend on where it is loaded."""
    relative = []
    for section in kept:
        shift = _SEGMENTS.index(section.flags & (_ALLOC | _EXECUTE | _WRITE)) * _PAGE
        for offset, kind, symbol, addend in section.relocations:
            target = symbols[symbol]
            value = sections[target.section].address + target.value + addend
            place = section.address + offset
            if kind == _ADDRESS:
                relative.append((place, value))
            elif kind in (_RELATIVE_TO_PLACE, _CALL):
                struct.pack_into("<i", placed, place - shift, value - place)
            else:
                raise NotLinkable(f"a relocation of type {kind}")
    return relative


class _Head:
    """What stands before the sections: headers, symbols, relocations, the dynamic section."""

    def __init__(self, exported: str, addresses: int) -> None:
        self._strings = b"\0" + exported.encode() + b"\0"
        self._parts = dict(_layout(len(self._strings), addresses))
        self.size = self._parts.pop("end")

    def write(
        self,
        placed: bytearray,
        entry: int,
        relative: list[tuple[int, int]],
        programs: list[tuple[int, int, int, int, int]],
    ) -> None:
        """Writes it.

        Args:
            placed: the file, with room for it.
            entry: the address of the exported function.
            relative: places, and the addresses in them.
            programs: type, flags, offset, address and size of each segment.
        """
        at = self._parts
        dynamic = [
            (_DT_HASH, at["hash"]),
            (_DT_SYMTAB, at["symbols"]),
            (_DT_SYMENT, _SYMBOL.size),
            (_DT_STRTAB, at["strings"]),
            (_DT_STRSZ, len(self._strings)),
            (_DT_RELA, at["relocations"]),
            (_DT_RELASZ, len(relative) * _RELA.size),
            (_DT_RELAENT, _RELA.size),
            (0, 0),
        ]
        size = len(dynamic) * _DYNAMIC.size
        programs = [*programs, (_DYN, 4, at["dynamic"], at["dynamic"], size)]
        numbers = _EHDR.size, _PHDR.size, len(programs), _SHDR.size, 1, 0
        _EHDR.pack_into(
            placed,
            0,
            _MAGIC.ljust(16, b"\0"),
            _SHARED,
            _X86_64,
            1,
            0,
            at["programs"],
            at["sections"],
            0,
            *numbers,
        )
        for number, (kind, flags, offset, address, length) in enumerate(programs):
            alignment = _PAGE if kind == _LOAD else 8
            _PHDR.pack_into(
                placed,
                at["programs"] + number * _PHDR.size,
                *(kind, flags, offset, address, address, length, length, alignment),
            )
        # One bucket with the one symbol; symbol 0 is none, and ends the chain.
        struct.pack_into("<5I", placed, at["hash"], 1, 2, 1, 0, 0)
        _SYMBOL.pack_into(placed, at["symbols"] + _SYMBOL.size, 1, _GLOBAL_FUNCTION, 0, 1, entry, 0)
        placed[at["strings"] : at["strings"] + len(self._strings)] = self._strings
        for number, (place, value) in enumerate(relative):
            _RELA.pack_into(
                placed, at["relocations"] + number * _RELA.size, place, _RELATIVE, value
            )
        for number, pair in enumerate(dynamic):
            _DYNAMIC.pack_into(placed, at["dynamic"] + number * _DYNAMIC.size, *pair)


def _layout(strings: int, addresses: int) -> Iterator[tuple[str, int]]:
    """Where each part of the head begins, and where it ends."""
    offset = 0
    for name, size in (
        ("header", _EHDR.size),
        ("programs", 4 * _PHDR.size),
        # None but the one that stands for no section: the loader wants a table.
        ("sections", _SHDR.size),
        ("symbols", 2 * _SYMBOL.size),
        ("hash", 20),
        ("strings", strings),
        ("relocations", addresses * _RELA.size),
        ("dynamic", 9 * _DYNAMIC.size),
    ):
        offset += -offset % 8
        yield name, offset
        offset += size
    yield "end", offset
