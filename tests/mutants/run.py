#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""run.py [--scratch DIRECTORY] [PART OF A NAME]...: makes each defect of mutants.toml in a copy of the tree, builds the
copy, and runs the tests that must notice the defect. With arguments it makes only the defects whose names contain all
arguments. The copy and its builds stay in the directory, so that the next run compiles less.

Exit status: 0 if every defect is noticed; 1 if one survives (all its tests pass) or does not compile; 2 if the list does
not fit the tree."""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIST = pathlib.Path(__file__).with_name("mutants.toml")
OPTIONS = ["-Dtests=enabled", "-Dcuda=disabled", "-Dpython=disabled"]
BUILDS = {"plain": [*OPTIONS, "-Dcli=enabled"],
          "threads": [*OPTIONS, "-Dcli=disabled", "-Dmpi=disabled", "-Db_sanitize=thread", "-Db_lundef=false"]}
QUICK = {"ANNULUS_TEST_QUICK": "1", "TSAN_OPTIONS": "halt_on_error=1"}


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    tests: tuple
    build: str = "plain"

    def fault(self, tree):
        """Returns what is wrong with the entry, or None."""
        path = tree / self.file
        count = path.read_text(encoding="utf-8").count(self.old) if path.is_file() else 0
        if count != 1:
            return f"{self.name}: `from` stands {count} times in {self.file}"
        if self.build not in BUILDS or not self.tests or self.old == self.new:
            return f"{self.name}: no build of this name, no tests, or no change"
        return None


def read_list(path=LIST):
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(entry.pop("name"), entry.pop("file"), entry.pop("from"), entry.pop("to"),
                   tuple(entry.pop("tests")), **entry) for entry in entries]


def copy_tree(target):
    """Copies the tracked files over an earlier copy. Unchanged files keep their times."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, tracked.stdout.split("\0")):
        source, copy = ROOT / name, target / name
        if copy.is_file() and source.is_file() and copy.read_bytes() == source.read_bytes():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)


def run(*command, cwd):
    return subprocess.run(command, cwd=cwd, env=os.environ | QUICK, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)


def build(tree, name):
    directory = tree / "build" / name
    if not (directory / "build.ninja").exists():
        setup = run("meson", "setup", directory, *BUILDS[name], cwd=tree)
        if setup.returncode:
            sys.exit(setup.stdout)
    return run("ninja", "-C", directory, cwd=tree)


def unknown_tests(tree, name, tests):
    """Returns the names that no test of the build has. Meson would run the other tests and say nothing."""
    known = run("meson", "introspect", "--tests", f"build/{name}", cwd=tree).stdout
    return sorted(set(tests) - {test["name"] for test in json.loads(known)})


def outcome(tree, mutant):
    """Returns "noticed", "survives" or "does not compile"."""
    path = tree / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        if build(tree, mutant.build).returncode:
            return "does not compile"
        tests = run("meson", "test", "-C", f"build/{mutant.build}", "--no-rebuild", *mutant.tests, cwd=tree)
        return "noticed" if tests.returncode else "survives"
    finally:
        path.write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=pathlib.Path, default=ROOT / "build" / "mutants")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    mutants = [mutant for mutant in read_list() if all(part in mutant.name for part in arguments.names)]
    if faults := [fault for mutant in mutants if (fault := mutant.fault(ROOT))]:
        print(*faults, sep="\n")
        return 2
    tree = arguments.scratch.resolve()
    copy_tree(tree)
    for name in sorted({mutant.build for mutant in mutants}):
        print(f"building the unchanged tree, {name}", flush=True)
        if (built := build(tree, name)).returncode:
            sys.exit(built.stdout[-4000:])
        tests = sorted({test for mutant in mutants if mutant.build == name for test in mutant.tests})
        if unknown := unknown_tests(tree, name, tests):
            print(f"the build {name} has no test {', '.join(unknown)}")
            return 2
        if (passed := run("meson", "test", "-C", f"build/{name}", "--no-rebuild", *tests, cwd=tree)).returncode:
            sys.exit("without a defect:\n" + passed.stdout[-4000:])
    wrong = []
    for mutant in mutants:
        result = outcome(tree, mutant)
        print(f"{result:10}  {mutant.name}", flush=True)
        if result != "noticed":
            wrong.append(mutant.name)
    print(f"{len(mutants)} mutants, {len(wrong)} not noticed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
