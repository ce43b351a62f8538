# SPDX-License-Identifier: Apache-2.0
"""sbom.py WHEEL: prints what a wheel is made of, as CycloneDX JSON. Versions of what was compiled into it are those of
this machine, so it runs where the wheel was built. What the wheel needs beside it is in the wheel's METADATA."""

import email.parser
import hashlib
import json
import pathlib
import subprocess
import sys
import zipfile


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def component(name, version, license, **more):
    return {"type": "library", "name": name, "version": version, "licenses": [{"expression": license}], **more}


def components_of(wheel, names):
    """Returns what the wheel's files contain of other projects."""
    gcc = "aarch64-linux-gnu-gcc" if "aarch64" in wheel else "gcc"
    yield component("libstdc++", run(gcc, "-dumpfullversion"), "GPL-3.0-or-later WITH GCC-exception-3.1")
    if any(name.endswith("annulus/bin/annulus") for name in names):
        yield component("CLI11", run("pkg-config", "--modversion", "CLI11"), "BSD-3-Clause")
        yield component("nlohmann-json", run("pkg-config", "--modversion", "nlohmann_json"), "MIT")
    if any(name.endswith("libannulus_xla.so") for name in names):
        _, _, version = run("sh", pathlib.Path(__file__).with_name("list.sh"), "pypi-jaxlib").partition("==")
        yield component("jaxlib", version, "Apache-2.0", purl=f"pkg:pypi/jaxlib@{version}", description="XLA's headers")
    if any("libannulus-cuda" in name for name in names):
        _, _, version = run("nvcc", "--version").partition("release ")
        yield component("CUDA", version.partition(",")[0], "LicenseRef-NVIDIA-CUDA", description="runtime and device code")


def main(path):
    wheel = pathlib.Path(path)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        about = email.parser.Parser().parsestr(archive.read(metadata).decode())
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    purl = f"pkg:pypi/{about['Name']}@{about['Version']}?file_name={wheel.name}"
    subject = component(
        about["Name"], about["Version"], "Apache-2.0", purl=purl, hashes=[{"alg": "SHA-256", "content": digest}]
    )
    document = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1}
    document["metadata"] = {"component": {**subject, "bom-ref": purl}}
    document["components"] = list(components_of(wheel.name, names))
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: sbom.py WHEEL")
    main(sys.argv[1])
