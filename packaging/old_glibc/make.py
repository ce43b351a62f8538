# SPDX-License-Identifier: Apache-2.0
"""make.py DIRECTORY COMPILER...: writes libraries to DIRECTORY that the linker takes instead of this machine's glibc,
by the option -LDIRECTORY before all others. What it links with them runs with glibc 2.28 or newer.

The libraries have no code. They name the functions of this machine's glibc and libgcc_s, each with its newest version
that glibc 2.28 has too. A function that glibc 2.28 lacks is an undefined symbol, unless the C files beside this one
have it. The C++ library is the static one, since systems with glibc 2.28 have an older one. COMPILER is gcc or a cross
compiler for Linux, with options if it needs any.
"""

import pathlib
import re
import subprocess
import sys
import typing

# The versions of manylinux_2_28.
NEWEST = {"GLIBC": (2, 28), "GCC": (7, 0, 0)}
# glibc 2.34 moved other libraries into libc. Before, their functions were in files of their own.
MOVED = {
    "libdl.so.2": r"dl[^_]\w+",
    "libpthread.so.0": r"_*(pthread|sem)_\w+",
    "librt.so.1": r"(aio|lio|mq|shm|timer)_\w+",
}
STUB = """
    .{binding} {label}
    .type {label}, %{kind}
    .size {label}, {size}
    .symver {label}, {name}{at}{version}
{label}:
"""


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def number(version):
    """Returns the parts of a version such as GLIBC_2.28, or None if none of the old libraries has it."""
    found = re.fullmatch(r"(GLIBC|GCC)_(\d+(?:\.\d+)*)", version)
    parts = tuple(map(int, found[2].split("."))) if found else ()
    return parts if found and parts <= NEWEST[found[1]] else None


class Symbol(typing.NamedTuple):
    name: str
    version: str
    kind: str
    binding: str
    address: int
    size: int


def old_symbols(library):
    """Returns {name: symbol} of a library's functions and variables, in their newest old version."""
    symbols = {}
    for line in run("readelf", "--dyn-syms", "--wide", library).splitlines():
        fields = line.split()
        if len(fields) < 8 or fields[3] not in ("FUNC", "IFUNC", "OBJECT") or fields[6] == "UND":
            continue
        name, _, version = fields[7].replace("@@", "@").partition("@")
        if number(version) and (name not in symbols or number(symbols[name].version) < number(version)):
            kind = "object" if fields[3] == "OBJECT" else "function"
            binding = "weak" if fields[4] == "WEAK" else "globl"
            symbols[name] = Symbol(name, version, kind, binding, int(fields[1], 16), int(fields[2], 0))
    return symbols


def write_library(compiler, directory, soname, symbols):
    source, versions = directory / f"{soname}.s", directory / f"{soname}.map"
    # Names of one variable, such as environ and __environ, share an address. If a program uses the weak name, the
    # linker also exports the strong one from the program's copy, which glibc then uses.
    places = {}
    for name, symbol in sorted(symbols.items()):
        places.setdefault(symbol.address if symbol.kind == "object" else name, []).append(symbol)
    with source.open("w") as lines:
        count = 0
        for place in places.values():
            lines.write(f"    .{'bss' if place[0].kind == 'object' else 'text'}\n    .balign 32\n")
            for symbol in place:
                # start.c has the __libc_start_main that programs call.
                at = "@" if symbol.name == "__libc_start_main" else "@@"
                lines.write(STUB.format(label=f"stub{count}", at=at, **symbol._asdict()))
                count += 1
            lines.write(f"    .skip {max([1, *(symbol.size for symbol in place)])}\n")
        lines.write('    .section .note.GNU-stack,"",%progbits\n')
    names = sorted({symbol.version for symbol in symbols.values()}) or ["EMPTY"]
    versions.write_text(f"{names[0]} {{ local: stub[0-9]*; }};\n" + "".join(f"{name} {{ }};\n" for name in names[1:]))
    run(*compiler, "-shared", "-nostdlib", f"-Wl,-soname,{soname}", f"-Wl,--version-script,{versions}", source,
        "-o", directory / soname)  # fmt: skip


def main(directory, compiler):
    directory = pathlib.Path(directory).resolve()
    directory.mkdir(parents=True, exist_ok=True)

    def found(name):
        return pathlib.Path(run(*compiler, f"-print-file-name={name}").strip()).resolve()

    (loader,) = found("libc.so.6").parent.glob("ld-linux*.so.*")
    libraries = {name: old_symbols(found(name)) for name in ["libc.so.6", "libm.so.6", "libgcc_s.so.1"]}
    libraries[loader.name] = old_symbols(loader)
    for soname, names in MOVED.items():
        libraries[soname] = {name: it for name, it in libraries["libc.so.6"].items() if re.fullmatch(names, name)}
        for name in libraries[soname]:
            del libraries["libc.so.6"][name]
    for soname, symbols in libraries.items():
        write_library(compiler, directory, soname, symbols)

    archive = directory / "libold_glibc.a"
    archive.unlink(missing_ok=True)
    for source in "functions", "start":
        made = directory / f"{source}.o"
        run(*compiler, "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror",
            "-c", pathlib.Path(__file__).with_name(f"{source}.c"), "-o", made)  # fmt: skip
        run("ar", "rcs", archive, made)

    def write_script(name, *files):
        (directory / name).write_text(f"GROUP ( {' '.join(map(str, files))} )\n")

    others = [directory / name for name in [*MOVED, loader.name]]
    write_script("libc.so", archive, directory / "libc.so.6", found("libc_nonshared.a"), "AS_NEEDED (", *others, ")")
    write_script("libstdc++.so", found("libstdc++.a"))
    write_script("libgcc_s.so", directory / "libgcc_s.so.1", "-lgcc")
    for soname in ["libm.so.6", *MOVED]:
        write_script(soname[: soname.index(".so") + 3], directory / soname)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: make.py DIRECTORY COMPILER...")
    main(sys.argv[1], sys.argv[2:])
