#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# julia_for_ci.sh DIRECTORY: unpacks Julia into DIRECTORY, for continuous integration on Debian 12, which has no Julia.
# It downloads Debian 11's Julia (1.5.3) and the dependencies that the machine lacks, and checks them by Debian's
# keyring. The system's packages and package lists do not change. DIRECTORY/julia runs Julia.
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

# apt_get WORD...: runs apt-get with its own lists and archives, but with the system's list of installed packages.
apt_get() {
    apt-get -qq -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts="$apt/empty" \
        -o Dir::Etc::PreferencesParts="$apt/empty" -o Dir::State::Lists="$apt/lists" \
        -o Dir::Cache::Archives="$apt/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
        -o APT::Sandbox::User=root -o Debug::NoLocking=1 "$@"
}
apt_get update
apt_get install --download-only --no-install-recommends --yes julia
# Julia's descriptions of compiled code require the libunwind that it was built with; a newer one crashes.
(cd "$apt/archives" && apt_get download libunwind8/bullseye)

for package in "$apt"/archives/*.deb; do
    dpkg -x "$package" "$directory/root"
done
rm -rf "$apt"

multiarch=$(gcc -dumpmachine)
libraries=$directory/root/usr/lib/$multiarch
# Links to libraries that the machine had already point to files that were not unpacked. Makes them point to the
# system's libraries.
find "$libraries/julia" -xtype l | while read -r link; do
    name=$(basename "$(readlink "$link")")
    for place in "/usr/lib/$multiarch" "/lib/$multiarch"; do
        [ ! -e "$place/$name" ] || ln -sf "$place/$name" "$link"
    done
done

# Julia finds its own files by the directory of its program, and its libraries by LD_LIBRARY_PATH. The old libunwind
# also has a C++ unwinder, which must not replace the one of this machine's C++.
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
