#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# julia_for_ci.sh DIRECTORY: for continuous integration on Debian 12, which has no Julia. Downloads Debian 11's (1.5.3)
# and those of its dependencies that the machine lacks, checked by Debian's keyring, and unpacks them into DIRECTORY.
# The system's own packages and package lists stay as they are. DIRECTORY/julia runs it.
set -eu
[ $# = 1 ] || {
    echo "usage: julia_for_ci.sh DIRECTORY" >&2
    exit 2
}
mkdir -p "$1"
directory=$(cd "$1" && pwd)
[ ! -x "$directory/julia" ] || exit 0 # made earlier

apt=$directory/apt
mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/empty"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bullseye main" \
    >"$apt/sources.list"

# apt_get WORD...: with lists and archives of its own; only the list of installed packages is the system's.
apt_get() {
    apt-get -qq -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts="$apt/empty" \
        -o Dir::Etc::PreferencesParts="$apt/empty" -o Dir::State::Lists="$apt/lists" \
        -o Dir::Cache::Archives="$apt/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
        -o APT::Sandbox::User=root -o Debug::NoLocking=1 "$@"
}
apt_get update
apt_get install --download-only --no-install-recommends --yes julia
# Julia's own description of compiled code is for the libunwind it was built with; a newer one crashes on it.
(cd "$apt/archives" && apt_get download libunwind8/bullseye)

for package in "$apt"/archives/*.deb; do
    dpkg -x "$package" "$directory/root"
done
rm -rf "$apt"

multiarch=$(gcc -dumpmachine)
libraries=$directory/root/usr/lib/$multiarch
# Links to libraries of packages that the machine had already point beside the unpacked ones: to the system's.
find "$libraries/julia" -xtype l | while read -r link; do
    name=$(basename "$(readlink "$link")")
    for place in "/usr/lib/$multiarch" "/lib/$multiarch"; do
        [ ! -e "$place/$name" ] || ln -sf "$place/$name" "$link"
    done
done

# Julia finds its own files by the place of its program; LD_LIBRARY_PATH serves the libraries that came with it. That
# libunwind has a C++ unwinder too, which must not take the place of the one that this machine's C++ is for.
unwinder=$(gcc -print-file-name=libgcc_s.so.1)
cat >"$directory/julia.new" <<END
#!/bin/sh
export LD_LIBRARY_PATH="$libraries/julia:$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
export LD_PRELOAD="$(realpath "$unwinder")\${LD_PRELOAD:+:\$LD_PRELOAD}"
exec "$directory/root/usr/bin/julia" "\$@"
END
chmod +x "$directory/julia.new"
"$directory/julia.new" --startup-file=no -e 'println("julia ", VERSION)'
mv "$directory/julia.new" "$directory/julia" # complete
