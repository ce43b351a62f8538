# SPDX-License-Identifier: Apache-2.0
"""Tests the library's symbols. The headers, the version script and the library's exports must have the same set. A C
program that uses every symbol links and runs. annulus_knows() knows the headers' enumerators, and literals.c contains
every enumerator and macro. Results in TAP.

abi.py <api directory> <version script> <library> <soname> <C compiler>...
"""

import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def declared_functions(api):
    functions = []
    for header in sorted(pathlib.Path(api).glob("annulus/*.h")):
        text = re.sub(r"/\*.*?\*/", " ", header.read_text(encoding="utf-8"), flags=re.DOTALL)
        text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
        functions += re.findall(r"\bANNULUS_API(?:_STATUS)?\b[^;{(]*?\b(\w+)\s*\(", text)
    return functions


def enumerations(api):
    """Returns the enumerators with their values, by the enumeration's name."""
    text = "".join(header.read_text(encoding="utf-8") for header in sorted(pathlib.Path(api).glob("annulus/*.h")))
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    found = re.findall(r"\btypedef\s+enum\s+annulus_(\w+)\s+ANNULUS_ENUM_INT32\s*\{(.*?)\}", text, flags=re.DOTALL)
    return {
        name: {enumerator: int(value) for enumerator, value in re.findall(r"(\w+)\s*=\s*(-?\d+)", body)}
        for name, body in found
    }


def unknown_enumerators(api, library):
    """Returns the differences between annulus_knows() and the headers' enumerators: it must know each of them and no
    other value."""
    knows = ctypes.CDLL(library).annulus_knows
    knows.argtypes = ctypes.c_int32, ctypes.c_int64
    declared = enumerations(api)
    features = declared["feature"]
    del declared["dtype"]["ANNULUS_DTYPE_NONE"]  # it stands for a dtype that is not given
    problems = differences(
        "the headers", [f"ANNULUS_FEATURE_{name.upper()}" for name in declared], "annulus_feature", list(features)
    )
    for name, enumerators in declared.items():
        feature = features.get(f"ANNULUS_FEATURE_{name.upper()}", 0)
        known = {value for value in range(-2, 1 << 12) if knows(feature, value)}
        problems += differences(
            f"annulus_{name}", list(map(str, enumerators.values())), "annulus_knows()", list(map(str, known))
        )
    return problems


def listed_functions(version_script):
    text = re.sub(r"/\*.*?\*/|#.*", " ", pathlib.Path(version_script).read_text(encoding="utf-8"), flags=re.DOTALL)
    listed = re.search(r"global:(.*?)(?:local:|\})", text, flags=re.DOTALL)
    return [name.strip() for name in listed.group(1).split(";") if name.strip()]


def exported_symbols(library):
    table = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    symbols = [line.split()[-2:] for line in table.splitlines()]
    return [name.partition("@")[0] for kind, name in symbols if kind != "A"]  # A is the name of the version itself


def soname(library):
    dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    return re.search(r"\(SONAME\).*\[(.*)\]", dynamic).group(1)


def link_and_run(functions, api, library, compiler):
    """Takes the address of every function in a program linked against the library, and runs it."""
    uses = "".join(f"    count += (void (*)(void)){name} != 0;\n" for name in functions)
    program = f"#include <annulus/annulus.h>\nint main(void) {{\n    int count = 0;\n{uses}    return count != {len(functions)};\n}}\n"
    directory = os.path.dirname(os.path.abspath(library))
    with tempfile.TemporaryDirectory() as scratch:
        source, binary = os.path.join(scratch, "every.c"), os.path.join(scratch, "every")
        pathlib.Path(source).write_text(program, encoding="utf-8")
        options = ["-std=c99", "-Wno-address", f"-I{api}", f"-Wl,-rpath,{directory}"]
        subprocess.run([*compiler, *options, source, library, "-o", binary], check=True)
        subprocess.run([binary], check=True)


def declared_literals(api):
    """Returns the names of enumerators and of macros that stand for a value or for a struct's first values."""
    names = set()
    for header in sorted(pathlib.Path(api).glob("annulus/*.h")):
        if header.name == "export.h":  # only for compilers
            continue
        text = re.sub(r"/\*.*?\*/", " ", header.read_text(encoding="utf-8"), flags=re.DOTALL)
        names.update(re.findall(r"^#define (ANNULUS_(?!VERSION)\w+)[ (]", text, re.MULTILINE))
        names.update(re.findall(r"\b(ANNULUS_\w+)\s*=", text))
    return names


def tested_literals():
    text = (pathlib.Path(__file__).parent / "literals.c").read_text(encoding="utf-8")
    return set(re.findall(r'\{"(ANNULUS_\w+)",', text)) | set(re.findall(r"= (ANNULUS_\w+_INIT)\b", text))


def differences(left_name, left, right_name, right):
    return [f"{name}: in {left_name}, not in {right_name}" for name in sorted(set(left) - set(right))] + [
        f"{name}: in {right_name}, not in {left_name}" for name in sorted(set(right) - set(left))
    ]


def main():
    api, version_script, library, wanted_soname, *compiler = sys.argv[1:]
    declared = declared_functions(api)
    listed = listed_functions(version_script)

    def links():
        link_and_run(declared, api, library, compiler)
        return []

    checks = {
        "functions are declared, each once, by the library's prefix": lambda: [
            name for name in declared or ["none"] if declared.count(name) != 1 or not name.startswith("annulus_")
        ],
        "declared and listed": lambda: differences("the headers", declared, "the version script", listed),
        "declared and exported": lambda: differences("the headers", declared, "the library", exported_symbols(library)),
        "literals": lambda: differences("the headers", declared_literals(api), "literals.c", tested_literals()),
        "soname": lambda: [] if soname(library) == wanted_soname else [f"{soname(library)}, not {wanted_soname}"],
        "every function links": links,
        "every enumerator is known, and nothing else": lambda: unknown_enumerators(api, library),
    }
    print(f"1..{len(checks)}")
    for number, (name, check) in enumerate(checks.items(), start=1):
        try:
            problems = check()
        except (subprocess.CalledProcessError, AttributeError) as error:
            problems = [str(error)]
        print(f"{'not ok' if problems else 'ok'} {number} - {name}")
        for problem in problems:
            print(f"# {problem}")


if __name__ == "__main__":
    main()
