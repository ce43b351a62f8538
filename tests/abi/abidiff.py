# SPDX-License-Identifier: Apache-2.0
"""Compares the library with the ABI in annulus.abi (see ABI.md), by libabigail's abidw and abidiff. A removal or change
fails; an addition is only reported.

abidiff.py check LIBRARY COMPILER...
    compares LIBRARY with annulus.abi. Also tests on altered headers that the comparison tells changes that break
    programs from other changes. Results in TAP.
abidiff.py renew LIBRARY
    writes annulus.abi from LIBRARY, which must have been built with debug info.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

HERE = pathlib.Path(__file__).resolve().parent
API = HERE.parent.parent / "api"
VERSION_SCRIPT = HERE.parent.parent / "src/capi/annulus.map"
DUMP = HERE / "annulus.abi"
HEADING = (
    "\n     SPDX-License-Identifier: Apache-2.0\n"
    "     The ABI of libannulus: written by tests/abi/abidiff.py, read by libabigail's abidiff; see ABI.md.\n"
)
# Bits of abidiff's exit status: 4, the ABI differs; 8, programs break. The bits 1 and 2 mean that abidiff could not
# compare.
CHANGED = 4 | 8


def run(command, **options):
    return subprocess.run(command, check=False, capture_output=True, text=True, **options)


def checked(command):
    done = run(command)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def has_debug_info(library):
    return ".debug_info" in checked(["readelf", "--section-headers", "--wide", library])


def references(element):
    return {value for part in element.iter() for name, value in part.attrib.items() if name.endswith("type-id")}


def write_dump(library, headers, path):
    """Writes the part of the library that a C program sees: its exported functions and the types that they use. Types
    that the headers only declare stay declarations. abidw's full dump also has the C++ inside and source locations."""
    full = path.with_suffix(".full")
    checked(
        ["abidw", "--headers-dir", headers, "--drop-private-types", "--type-id-style", "hash", "--out-file", full]
        + ["--no-architecture", "--no-comp-dir-path", "--no-corpus-path", "--no-elf-needed", "--no-show-locs"]
        + ["--no-parameter-names", library]
    )
    corpus = ElementTree.parse(full).getroot()
    full.unlink()

    types, functions = {}, []
    for element in corpus.iter():
        if element.tag == "function-decl" and element.get("elf-symbol-id"):
            functions.append(element)
        if not element.get("id"):
            continue
        if element.get("is-declaration-only"):
            element[:], element.text = [], None  # removes its member functions
            types.setdefault(element.get("id"), element)
        else:
            types[element.get("id")] = element
    functions.sort(key=lambda function: function.get("name"))

    reached, pending = set(), set().union(*map(references, functions))
    while pending:
        reached |= pending
        pending = set().union(*(references(types[name]) for name in pending)) - reached
    everything = sorted((types[name] for name in reached), key=lambda t: (t.tag, t.get("name", ""), t.get("id")))

    for unit in corpus.findall("abi-instr"):
        corpus.remove(unit)
    attributes = {"address-size": "64", "path": "annulus.h", "language": "LANG_C99"}
    unit = ElementTree.SubElement(corpus, "abi-instr", attributes)
    unit.extend(everything + functions)
    corpus.insert(0, ElementTree.Comment(HEADING))
    ElementTree.indent(corpus)
    path.write_text(ElementTree.tostring(corpus, encoding="unicode") + "\n", encoding="utf-8")


def data_members(struct):
    return struct.findall("data-member")


def structs_that_grow(corpus):
    """Returns the structs that begin with `size`, which tells the caller's version (ABI.md)."""
    for struct in corpus.iter("class-decl"):
        first = next(iter(data_members(struct)), None)
        if first is not None and first.find("var-decl").get("name") == "size":
            yield struct


def write_common_part(old, new, path):
    """Writes `new`, and cuts every struct that begins with `size` to the fields that it has in `old`. A new field in
    the padding of the old struct stays, since `size` cannot tell whether it is present."""
    corpus = ElementTree.parse(new)
    known = {struct.get("name"): struct for struct in structs_that_grow(ElementTree.parse(old))}
    for struct in structs_that_grow(corpus):
        before = known.get(struct.get("name"))
        if before is None:
            continue
        appended = data_members(struct)[len(data_members(before)) :]
        bits = int(before.get("size-in-bits"))
        if appended and all(int(member.get("layout-offset-in-bits")) >= bits for member in appended):
            for member in appended:
                struct.remove(member)
            struct.set("size-in-bits", str(bits))
    corpus.write(path)


def compare(old, new):
    """Returns (the changes that break programs, all changes), in abidiff's words; '' for no change."""
    common = new.with_suffix(".common")
    write_common_part(old, new, common)
    options = ["abidiff", "--no-default-suppression", "--no-show-locs"]
    breaking = run([*options, "--no-added-syms", old, common])
    different = run([*options, "--harmless", old, new])
    for done in (breaking, different):
        if done.returncode & ~CHANGED:
            raise RuntimeError(f"abidiff: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return tuple(done.stdout if done.returncode & CHANGED else "" for done in (breaking, different))


def empty_functions(api):
    """Returns C source with an empty definition of every function in the headers."""
    source = "#include <annulus/annulus.h>\n"
    for header in sorted(api.glob("annulus/*.h")):
        text = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)
        text = re.sub(r"^ *#.*$", "", text, flags=re.MULTILINE)
        declarations = re.findall(r"^ANNULUS_API(?:_STATUS)? ([^;]*\));", text, re.MULTILINE)
        source += "".join(declaration + " { for (;;); }\n" for declaration in declarations)
    return source


def dump_of_headers(api, directory):
    """Returns the path of a dump, in `directory`, of the library that these headers describe."""
    versions = VERSION_SCRIPT.read_text(encoding="utf-8") + "\nANNULUS_LATER { global: annulus_added; };\n"
    (directory / "empty.map").write_text(versions, encoding="utf-8")
    (directory / "empty.c").write_text(empty_functions(api), encoding="utf-8")
    checked(
        [*COMPILER, "-g", "-shared", "-fPIC", "-w", f"-I{api}", directory / "empty.c", "-o", directory / "empty.so"]
        + [f"-Wl,--version-script={directory}/empty.map", "-Wl,-soname,libannulus.so.1"]
    )
    write_dump(directory / "empty.so", api, directory / "empty.abi")
    return directory / "empty.abi"


class Kept(unittest.TestCase):
    """Compares the library and its headers now with annulus.abi."""

    def assert_kept(self, dump):
        breaking, different = compare(DUMP, dump)
        for line in different.splitlines():
            print("#", line)
        if breaking:
            self.fail("\n" + breaking)

    def test_library_keeps_the_abi(self):
        if not has_debug_info(LIBRARY):
            self.skipTest("the library has no debug info")
        with tempfile.TemporaryDirectory() as scratch:
            dump = pathlib.Path(scratch) / "library.abi"
            write_dump(LIBRARY, API, dump)
            self.assert_kept(dump)

    def test_headers_keep_the_abi(self):
        with tempfile.TemporaryDirectory() as scratch:
            self.assert_kept(dump_of_headers(API, pathlib.Path(scratch)))


class Alterations(unittest.TestCase):
    """Compares the present headers with altered ones."""

    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.present = dump_of_headers(API, pathlib.Path(scratch.name))

    def differences(self, header, old, new):
        """Returns compare() of the headers and of a copy in which one header has `new` instead of `old`."""
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            shutil.copytree(API, scratch / "api")
            path = scratch / "api/annulus" / header
            text = path.read_text(encoding="utf-8")
            self.assertEqual(text.count(old), 1, f"{old} stands once in {header}")
            path.write_text(text.replace(old, new), encoding="utf-8")
            return compare(self.present, dump_of_headers(scratch / "api", scratch))

    def assert_breaks(self, *alteration):
        breaking, _ = self.differences(*alteration)
        self.assertNotEqual(breaking, "", "abidiff finds nothing that breaks programs")

    def assert_adds(self, *alteration):
        breaking, different = self.differences(*alteration)
        self.assertEqual(breaking, "")
        self.assertNotEqual(different, "", "abidiff finds no difference")

    def test_field_of_another_type_breaks(self):
        self.assert_breaks("attention.h", "int32_t head_dim;", "int64_t head_dim;")

    def test_field_in_the_middle_breaks(self):
        self.assert_breaks("attention.h", "int64_t batch; ", "int64_t beams; int64_t batch; ")

    def test_removed_field_breaks(self):
        self.assert_breaks("attention.h", "    const int64_t *sequence_lengths; /* [S] in host memory, or NULL */\n} annulus_call_options;",
                           "} annulus_call_options;")

    def test_fields_in_another_order_break(self):
        self.assert_breaks("tensor.h", "annulus_dtype dtype;\n    int32_t ndim;", "int32_t ndim; annulus_dtype dtype;")

    def test_field_at_the_end_of_a_struct_without_size_breaks(self):
        self.assert_breaks("tensor.h", "int64_t stride[4];", "int64_t stride[4];\n    int64_t offset;")

    def test_fields_at_the_end_of_structs_with_size_are_additions(self):
        for header, struct in {
            "attention.h": ("annulus_call_options", "annulus_merge_options", "annulus_problem", "annulus_estimate"),
            "config.h": ("annulus_branch",),
            "comm.h": ("annulus_comm_options", "annulus_traffic", "annulus_shards"),
            "context.h": ("annulus_allocator",),
        }.items():
            for name in struct:
                with self.subTest(name):
                    self.assert_adds(header, f"}} {name};", f"int64_t appended; }} {name};")

    def test_field_in_padding_breaks(self):
        exchange = "    annulus_exchange exchange; "
        self.assert_breaks("attention.h", exchange, exchange + "int32_t hops; ")
        order = "    annulus_order order; "
        self.assert_breaks("config.h", order, order + "int32_t later; ")

    def test_renumbered_enumerator_breaks(self):
        self.assert_breaks("tensor.h", "ANNULUS_FLOAT16 = 4", "ANNULUS_FLOAT16 = 5")

    def test_removed_enumerator_breaks(self):
        self.assert_breaks("status.h", "ANNULUS_ERROR_DECLINED = 5,", "")

    def test_appended_enumerator_is_an_addition(self):
        self.assert_adds("tensor.h", "ANNULUS_FLOAT16 = 4", "ANNULUS_FLOAT16 = 4, ANNULUS_FLOAT8 = 5")

    def test_removed_function_breaks(self):
        self.assert_breaks("tensor.h", "ANNULUS_API int annulus_dtype_bits(annulus_dtype dtype);", "")

    def test_parameter_of_another_type_breaks(self):
        self.assert_breaks("hilbert.h", "int64_t length, int64_t width", "int32_t length, int64_t width")

    def test_result_of_another_type_breaks(self):
        self.assert_breaks("tensor.h", "ANNULUS_API int annulus_dtype_bits", "ANNULUS_API long annulus_dtype_bits")

    def test_function_is_an_addition(self):
        self.assert_adds("version.h", "ANNULUS_END_DECLS", "ANNULUS_API int annulus_added(void);\nANNULUS_END_DECLS")


if __name__ == "__main__":
    mode, LIBRARY, *COMPILER = sys.argv[1:]
    if mode == "renew":
        if not has_debug_info(LIBRARY):
            sys.exit(f"{LIBRARY} has no debug info: configure the build with -Dbuildtype=debugoptimized")
        write_dump(LIBRARY, API, DUMP)
    else:
        import tap

        if not shutil.which("abidw") or not shutil.which("abidiff"):
            tap.skip_all("abidw and abidiff are not here (Debian: abigail-tools)")
        tap.main()
