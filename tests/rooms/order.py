# SPDX-License-Identifier: Apache-2.0
"""Checks that the rooms of src/ keep the order of doc/architecture.md. A file includes files of its own room and of
rooms that are listed before it. Each directory with sources is a room. Each header says in its second line what it is.

The page lists the rooms as items, "- `core/` …", from the lowest to the highest. Each heading begins a new list. A room
includes nothing from the rooms of another list.
"""

import os
import pathlib
import re
import tempfile
import unittest

import tap

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = {".h", ".hpp", ".cuh"}
SOURCES = HEADERS | {".c", ".cpp", ".cu"}


def rooms_of(text):
    """Returns {room: (list, place)} of the text, and the faults of the lists."""
    rooms, faults, heading = {}, [], 0
    for line in text.splitlines():
        if line.startswith("#"):
            heading += 1
        elif found := re.match(r"- `([\w/]+)/`", line):
            if found[1] in rooms:
                faults.append(f"the room {found[1]}/ is listed twice")
            rooms[found[1]] = (heading, len(rooms))
    return rooms, faults


def sources_of(src):
    return sorted(path for path in src.rglob("*") if path.suffix in SOURCES)


def room_of(src, path):
    return path.parent.relative_to(src).as_posix()


def unknown_rooms(src, rooms):
    """Returns the faults: directories that are no room, and rooms without a file."""
    found = {room_of(src, path) for path in sources_of(src)}
    return ([f"{room}/ has sources and is not listed" for room in sorted(found - set(rooms))] +
            [f"{room}/ is listed and has no sources" for room in rooms if room not in found])


def included(src, path):
    """Yields name and path of each file that `path` includes by quotation marks, from src/ or from its directory."""
    for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE):
        there = [base / name for base in (src, path.parent) if (base / name).is_file()]
        yield name, pathlib.Path(os.path.normpath(there[0])) if there else None


def wrong_arrows(src, rooms):
    faults = []
    for path in sources_of(src):
        room = room_of(src, path)
        for name, target in included(src, path):
            says = f"{path.relative_to(src)} includes {name}"
            if target is None or not target.is_relative_to(src):
                faults.append(f"{says}, which is no file of src/")
                continue
            other = room_of(src, target)
            if other == room or room not in rooms or other not in rooms:
                continue
            (own_list, own), (other_list, its) = rooms[room], rooms[other]
            if own_list != other_list:
                faults.append(f"{says}: {room}/ and {other}/ are not of the same list")
            elif its > own:
                faults.append(f"{says}: {other}/ is listed after {room}/")
    return faults


def headless(src):
    """Returns the headers whose second line, after the license, is no comment."""
    def has_head(path):
        lines = path.read_text(encoding="utf-8").splitlines()
        return len(lines) > 1 and lines[1].startswith("// ")
    return [str(path.relative_to(src)) for path in sources_of(src) if path.suffix in HEADERS and not has_head(path)]


class RoomsTest(unittest.TestCase):
    """Checks the tree itself."""

    def setUp(self):
        self.src = ROOT / "src"
        text = (ROOT / "doc/architecture.md").read_text(encoding="utf-8")
        self.rooms, self.list_faults = rooms_of(text)

    def assert_none(self, faults):
        if faults:
            self.fail("\n".join(["", *faults]))

    def test_all_rooms_are_listed(self):
        self.assert_none(self.list_faults + unknown_rooms(self.src, self.rooms))

    def test_arrows_go_to_rooms_before(self):
        self.assert_none(wrong_arrows(self.src, self.rooms))

    def test_headers_say_what_they_are(self):
        self.assert_none(headless(self.src))


class PlantedFaultTest(unittest.TestCase):
    """Plants faults in a small tree, and checks that exactly these are found."""

    LIST = """# Rooms

## Library

- `low/` — below
- `high/` — beside `x/`
- `high/inner/` — the highest,
  over `low/`

## Other

- `tool/` — alone
"""
    HEAD = "// SPDX-License-Identifier: Apache-2.0\n// What it is.\n#pragma once\n"
    TREE = {"low/a.hpp": "", "high/b.hpp": '#include "low/a.hpp"\n#include <high/none.hpp>\n',
            "high/inner/c.cu": '#include "high/b.hpp"\n#include "low/a.hpp"\n#  include "d.cuh"\n',
            "high/inner/d.cuh": "", "tool/e.cpp": '#include "tool/f.h"\n', "tool/f.h": "", "tool/notes.md": "none"}

    def faults(self, text=LIST, **planted):
        """Returns the faults of the tree with other contents of some files. In file names, / is __ and the dot is _."""
        files = dict(self.TREE)
        for name, contents in planted.items():
            path, _, suffix = name.rpartition("_")
            files[f"{path.replace('__', '/')}.{suffix}"] = contents
        with tempfile.TemporaryDirectory() as directory:
            src = pathlib.Path(directory)
            for name, contents in files.items():
                (src / name).parent.mkdir(parents=True, exist_ok=True)
                head = "" if contents.startswith("//") else self.HEAD
                (src / name).write_text(head + contents, encoding="utf-8")
            rooms, faults = rooms_of(text)
            return faults + unknown_rooms(src, rooms) + wrong_arrows(src, rooms) + headless(src)

    def test_none(self):
        self.assertEqual(self.faults(), [])

    def test_wrong_arrow(self):
        self.assertEqual(self.faults(low__a_hpp='#include "high/inner/d.cuh"\n'),
                         ["low/a.hpp includes high/inner/d.cuh: high/inner/ is listed after low/"])

    def test_wrong_arrow_beside_and_up(self):
        self.assertEqual(self.faults(high__b_hpp='#include "../high/inner/d.cuh"\n'),
                         ["high/b.hpp includes ../high/inner/d.cuh: high/inner/ is listed after high/"])

    def test_cycle(self):
        self.assertEqual(self.faults(low__a_hpp='#include "high/b.hpp"\n', high__b_hpp='#include "low/a.hpp"\n'),
                         ["low/a.hpp includes high/b.hpp: high/ is listed after low/"])

    def test_arrow_into_another_list(self):
        self.assertEqual(self.faults(tool__f_h='#include "low/a.hpp"\n'),
                         ["tool/f.h includes low/a.hpp: tool/ and low/ are not of the same list"])

    def test_unknown_file(self):
        self.assertEqual(self.faults(tool__f_h='#include "tool/g.h"\n'),
                         ["tool/f.h includes tool/g.h, which is no file of src/"])

    def test_unknown_directory(self):
        self.assertEqual(self.faults(cellar__g_cpp=""), ["cellar/ has sources and is not listed"])

    def test_file_outside_all_rooms(self):
        self.assertEqual(self.faults(main_cpp=""), ["./ has sources and is not listed"])

    def test_empty_room(self):
        self.assertEqual(self.faults(self.LIST + "- `attic/`\n"), ["attic/ is listed and has no sources"])

    def test_room_twice(self):
        self.assertEqual(self.faults(self.LIST + "- `tool/`\n"), ["the room tool/ is listed twice"])

    def test_header_without_head(self):
        self.assertEqual(self.faults(low__a_hpp="// SPDX-License-Identifier: Apache-2.0\n#pragma once\n"),
                         ["low/a.hpp"])


if __name__ == "__main__":
    tap.main()
