#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# try_release.sh DIRECTORY: uses each file that release.sh built in DIRECTORY, in places that have nothing of this tree:
#   source   the tree, built and installed in a directory of its own; README's example in C, and the program
#   rust     README's example, with the crates
#   julia    README's example, with the package's tree; skipped if julia is not in PATH
#   wheel    each of this machine's, in a virtual environment and in a user's directory, with its Python in PATH or in
#            PYTHONS, without which it fails
#   torch    README's first example, with the wheel of the first of these Pythons that has PyTorch; skipped without one
#   arm64    the wheel for Debian's python3 under qemu; skipped if qemu-aarch64 is not in PATH
#   sdist    in a virtual environment, where pip builds it
#   debian   in a copy of this machine's file system (smoke/in_scratch_root.sh); skipped if it cannot be made
# Each line of the report is `passed|failed|skipped NAME`. The script exits with 1 if something failed, else with 77 if
# something was skipped.
set -eu
[ $# = 1 ] || {
    echo "usage: try_release.sh DIRECTORY" >&2
    exit 2
}
directory=$(cd "$1" && pwd)
tree=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset PYTHONPATH LD_LIBRARY_PATH PKG_CONFIG_PATH ANNULUS_LIBRARY ANNULUS_LIB_DIR
prefix=$scratch/prefix

# example LANGUAGE: prints the first block of README.md in this language.
example() {
    awk -v first="\`\`\`$1" '$0 == first && !found { found = inside = 1; next } /^```/ { inside = 0 } inside' \
        "$tree/README.md"
}

# What is installed in $prefix serves the crates and Julia's package, too.
try_source() {
    tar -xf "$directory"/source/annulus-*.tar.gz
    meson setup build annulus-* --buildtype=release --prefix="$prefix" --libdir=lib -Dcli=enabled -Dcuda=disabled \
        -Dmpi=disabled -Dpython=disabled -Dtests=disabled
    meson install -C build
    # README's example in C is a part of this program.
    export PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
    # shellcheck disable=SC2046
    cc annulus-*/examples/01_forward_backward.c $(pkg-config --cflags --libs annulus) -lm "-Wl,-rpath,$prefix/lib" \
        -o example
    ./example
    LD_LIBRARY_PATH=$prefix/lib "$prefix/bin/annulus" info
}

try_rust() {
    mkdir -p program/src
    for crate in "$directory"/rust/*.crate; do
        tar -xf "$crate"
    done
    cat >program/Cargo.toml <<END
[package]
name = "program"
version = "0.1.0"
edition = "2021"
[dependencies]
annulus = "1"
[patch.crates-io]
annulus = { path = "$(echo "$PWD"/annulus-[0-9]*)" }
annulus-sys = { path = "$(echo "$PWD"/annulus-sys-*)" }
END
    example rust >program/src/main.rs
    ANNULUS_LIB_DIR=$prefix/lib LD_LIBRARY_PATH=$prefix/lib cargo run --offline --manifest-path program/Cargo.toml
}

try_julia() {
    command -v julia || return 77
    tar -xf "$directory"/julia/*.tar.gz
    example julia >example.jl
    echo 'println(size(d_q))' >>example.jl
    ANNULUS_LIBRARY=$prefix/lib/libannulus.so.1 julia --startup-file=no --project="$(echo Annulus.jl-*)" example.jl
}

# use_package PYTHON DIRECTORY: runs the Python package and the program that pip put below DIRECTORY.
use_package() {
    packages=$("$1" -c 'import annulus, os; print(os.path.dirname(os.path.dirname(annulus.__file__)))')
    case $packages in "$2"/*) ;; *) echo "the package is in $packages" && return 1 ;; esac
    "$2/bin/annulus" info
    "$1" "$tree/packaging/smoke/smoke.py" "$packages" "$2/bin/annulus"
}

# version_of PYTHON: prints its version as names of wheels have it, such as cp311.
version_of() {
    "$1" -c 'import sys; print("cp%d%d" % sys.version_info[:2])'
}

# try_wheel VERSION WHEEL
try_wheel() {
    python=''
    for other in $pythons; do
        [ "$(version_of "$other")" != "$1" ] || python=$other
    done
    [ -n "$python" ] || { echo "no Python for it is in PATH or PYTHONS" && return 1; }
    "$python" -m venv environment
    environment/bin/pip install --quiet "$2"
    use_package environment/bin/python "$PWD/environment"
    export PYTHONUSERBASE="$PWD/user" PIP_BREAK_SYSTEM_PACKAGES=1
    environment/bin/pip --python "$python" install --quiet --user "$2"
    use_package "$python" "$PWD/user"
}

# Uses what try_wheel installed.
try_torch() {
    example python >example.py
    for python in $pythons; do
        PYTHONUSERBASE=$scratch/wheel-$(version_of "$python")/user
        export PYTHONUSERBASE
        if [ -d "$PYTHONUSERBASE" ] && "$python" -c 'import torch'; then
            "$python" example.py
            return
        fi
    done
    return 77
}

# Debian's python3 and NumPy of arm64 are unpacked, not installed.
try_arm64() {
    command -v qemu-aarch64 || return 77
    sh "$tree/packaging/arm64_root.sh" "$PWD/root" arm64python
    minor=$(/usr/bin/python3 -c 'import sys; print(sys.version_info.minor)')
    python3 -m zipfile --extract "$directory"/python/*-cp3"$minor"-*aarch64.whl packages
    export QEMU_LD_PREFIX="$PWD/root" PYTHONHOME="$PWD/root/usr"
    export PYTHONPATH="$PWD/packages:$PWD/root/usr/lib/python3/dist-packages"
    chmod +x packages/annulus/bin/annulus
    qemu-aarch64 packages/annulus/bin/annulus info
    printf '#!/bin/sh\nexec qemu-aarch64 "%s" "$@"\n' "$PWD/packages/annulus/bin/annulus" >program
    chmod +x program
    # Where packages that are only unpacked have BLAS.
    libraries=$PWD/root/usr/lib/aarch64-linux-gnu
    qemu-aarch64 -E "LD_LIBRARY_PATH=$libraries/blas:$libraries/lapack" "root/usr/bin/python3.$minor" \
        "$tree/packaging/smoke/smoke.py" "$PWD/packages" "$PWD/program"
}

try_sdist() {
    python3 -m venv environment
    environment/bin/pip install --quiet --upgrade pip
    environment/bin/pip install --quiet -Csetup-args=-Dcuda=disabled "$directory"/python/*.tar.gz
    environment/bin/python -c 'import annulus; print(annulus.build_info())'
}

try_debian() {
    sh "$tree/packaging/smoke/in_scratch_root.sh" "$directory/debian"
}

has_failed=false
has_skipped=false
# attempt NAME COMMAND...: runs a function in a directory of its own, and reports how it ended.
attempt() {
    name=$1
    shift
    mkdir "$scratch/$name"
    (
        cd "$scratch/$name"
        set -e
        "$@"
    ) >"$scratch/$name.log" 2>&1 &
    status=0
    wait $! || status=$?
    case $status in
        0) echo "passed $name" ;;
        77) echo "skipped $name" && has_skipped=true ;;
        *) tail -n 30 "$scratch/$name.log" && echo "failed $name" && has_failed=true ;;
    esac
}

(cd "$directory" && sha256sum --check --quiet SHA256SUMS)
attempt source try_source
attempt rust try_rust
attempt julia try_julia
pythons=${PYTHONS-}
# A name in PATH may be one of pyenv's that does not run.
[ -n "$pythons" ] || pythons=$(for minor in 9 10 11 12 13 14; do
    ! "python3.$minor" -c '' 2>/dev/null || command -v "python3.$minor"
done)
# If there is no wheel, the pattern itself fails as one.
for wheel in "$directory/python"/*_"$(uname -m)".whl; do
    version=$(basename "$wheel" | sed 's/.*-\(cp[0-9]*\)-cp.*/\1/')
    attempt "wheel-$version" try_wheel "$version" "$wheel"
done
attempt torch try_torch
attempt arm64 try_arm64
attempt sdist try_sdist
attempt debian try_debian
! $has_failed || exit 1
! $has_skipped || exit 77
