#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# release.sh DIRECTORY [OPTION]...: builds all files of a release, of the commit that is checked out, in DIRECTORY:
#   source/   the tree, for everyone who builds from source
#   python/   the sdist and the wheels: for x86-64 with the CUDA plugin if nvcc is in PATH, for arm64 without
#   debian/   source and binary packages
#   rust/     crates
#   julia/    the tree of the package
#   sbom/     what is in each wheel (CycloneDX)
#   SHA256SUMS
# OPTION is an option of meson setup for the x86-64 wheels, such as -Dcuda-arch=90. PYTHONS in the environment names the
# Pythons that get wheels. try_release.sh uses what was built. It runs on Debian and installs packages that it lacks
# (packages.txt); cargo 1.90 or newer must be in PATH. A commit with the tag of its version must be ready to be
# published. The script exits with 77 if the checkout has changes or cargo is missing, and with 1 for other errors.
set -eu
[ $# -ge 1 ] || {
    echo "usage: release.sh DIRECTORY [OPTION]..." >&2
    exit 2
}
mkdir -p "$1"
directory=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."

fail() {
    echo "release.sh: $*" >&2
    exit 1
}

# cannot WORD...: says why no release can be built here, and ends.
cannot() {
    echo "release.sh: $*" >&2
    exit 77
}

[ -z "$(ls -A "$directory")" ] || fail "$directory is not empty"
[ -z "$(git status --porcelain)" ] || cannot 'the checkout has changes; a release is made of a commit'
# Older versions cannot package a crate that needs another one which is not published.
minor=$(cargo --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\).*/\1/p')
[ "${minor:-0}" -ge 90 ] || cannot 'cargo 1.90 or newer is not in PATH'
version=$(sed -n "s/^  version: '\(.*\)',/\1/p" meson.build)
# Every file that has the version of its own.
for place in bindings/rust/annulus/Cargo.toml:'^version = "' bindings/rust/annulus-sys/Cargo.toml:'^version = "' \
    bindings/julia/Project.toml:'^version = "' packaging/debian/changelog:'^annulus (' CITATION.cff:'^version: ' \
    CHANGELOG.md:'^## \[' packaging/conda/recipe.yaml:'^  version: "'; do
    found=$(sed -n "s/${place#*:}\([0-9.]*\).*/\1/p" "${place%%:*}" | head -n 1)
    [ "$found" = "$version" ] || fail "${place%%:*} has the version '$found'; meson.build has $version"
done
if git tag --points-at HEAD | grep -Fqx "v$version"; then
    ! grep -q "^## \[$version\] - unreleased" CHANGELOG.md || fail "CHANGELOG.md calls $version unreleased"
    ! git grep -n 'not on [A-Za-z.]* yet' -- README.md doc || fail 'these pages call it unpublished'
    for file in packaging/debian/control packaging/debian/changelog; do
        ! grep -q '@example\.org>' $file || fail "$file has an address of example.org (packaging/set_address.py)"
    done
    case " $* " in
        *' -Dcuda=disabled '*) ;;
        *) command -v nvcc >/dev/null || fail 'nvcc is not in PATH; the option -Dcuda=disabled releases without CUDA' ;;
    esac
else
    echo "release.sh: this commit has no tag v$version, so the files are for trying"
fi

sh packaging/install.sh build cli deb mpi test python arm64
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
commit=$(git rev-parse HEAD)
git clone --quiet --no-checkout . "$scratch/annulus" # will have nothing but the commit
cd "$scratch/annulus"
git checkout --quiet "$commit"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
mkdir "$directory/source" "$directory/python" "$directory/debian" "$directory/rust" "$directory/julia" "$directory/sbom"

echo '== source'
# Has the files of `meson dist`, and the same bytes every time: Meson's archive has the time of day. Debian's source
# package has the same file.
source_archive() {
    git archive --format=tar.gz --prefix="annulus-$version/" HEAD
}
source_archive >"$directory/source/annulus-$version.tar.gz"
source_archive | cmp - "$directory/source/annulus-$version.tar.gz"

echo '== crates'
# Without --no-verify cargo would link them, with a library that need not be installed here.
cargo package --manifest-path bindings/rust/Cargo.toml --workspace --no-verify --offline --quiet \
    --target-dir "$scratch/cargo"
cp "$scratch"/cargo/package/*.crate "$directory/rust"

echo '== Julia package'
tar -C bindings --sort=name --mode=go=u-w --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --transform="s,^julia,Annulus.jl-$version," -cf - julia | gzip -n >"$directory/julia/Annulus.jl-$version.tar.gz"

echo '== sdist'
python3 -m venv "$scratch/tools"
"$scratch/tools/bin/pip" install --quiet build
"$scratch/tools/bin/python" -m build --sdist --outdir "$directory/python" . -Csetup-args=-Dcuda=disabled >/dev/null

echo '== Debian packages'
sh packaging/build_deb.sh "$directory/debian"

echo '== wheels'
sh packaging/build_wheel.sh --arm64 "$directory/python"
sh packaging/build_wheel.sh "$directory/python" "$@" # last, since kernels for GPUs take longest
for wheel in "$directory"/python/*.whl; do
    python3 packaging/sbom.py "$wheel" >"$directory/sbom/$(basename "$wheel" .whl).cdx.json"
done

cd "$directory"
find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum >"$scratch/SHA256SUMS"
mv "$scratch/SHA256SUMS" .
cat SHA256SUMS
