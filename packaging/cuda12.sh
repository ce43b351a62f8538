#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# cuda12.sh DIRECTORY [CAPABILITIES]: builds the library and its CUDA plugin in DIRECTORY/build with CUDA 12.4. The
# plugin is for GPUs that CUDA 13 does not support: compute capability 6.0, 6.1 and 7.0 (P100, GTX 10, V100).
# CAPABILITIES selects some of them, such as 60,70. The kernels are compiled, not run. DIRECTORY must not be in the
# source tree, since Meson accepts no system headers there.
#
# The script unpacks the toolkit into DIRECTORY/toolkit and installs nothing. The compiler is Debian 13's (non-free),
# which works on Debian 12, too. The headers and libraries are from NVIDIA's wheels on PyPI. It needs curl, dpkg-deb,
# pip, unzip, and 2 GB of disk. It exits with 77 if the toolkit is not available.
set -eu
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: cuda12.sh DIRECTORY [CAPABILITIES]" >&2
    exit 2
fi
capabilities=${2-60,61,70}
mkdir -p "$1"
directory=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
case $directory/ in
    "$PWD"/*)
        echo "cuda12.sh: $1 is in the source tree; it must be outside" >&2
        exit 2
        ;;
esac
toolkit=$directory/toolkit
compiler=pool/non-free/n/nvidia-cuda-toolkit/nvidia-cuda-toolkit_12.4.131~12.4.1-2_amd64.deb

if [ ! -d "$toolkit" ]; then
    for program in curl dpkg-deb unzip; do
        command -v "$program" >/dev/null || { echo "cuda12.sh: $program is missing" >&2; exit 77; }
    done
    scratch=$directory/scratch
    rm -rf "$scratch"
    mkdir -p "$scratch/tree/bin" "$scratch/tree/nvvm"
    curl --fail --silent --show-error --location --output "$scratch/compiler.deb" \
        "http://deb.debian.org/debian/$compiler" || exit 77
    dpkg-deb --extract "$scratch/compiler.deb" "$scratch/compiler"
    python3 -m pip download --quiet --no-deps --dest "$scratch" \
        nvidia-cuda-nvcc-cu12==12.4.131 nvidia-cuda-runtime-cu12==12.4.127 nvidia-cublas-cu12==12.4.5.8 || exit 77
    for wheel in "$scratch"/*.whl; do
        unzip -q -o "$wheel" -d "$scratch/wheels"
    done
    for program in bin2c cicc crt cudafe++ fatbinary nvcc nvlink ptxas; do
        for place in lib/nvidia-cuda-toolkit/bin bin; do
            if [ -e "$scratch/compiler/usr/$place/$program" ]; then
                cp -R "$scratch/compiler/usr/$place/$program" "$scratch/tree/bin"
                break
            fi
        done
    done
    # Tells nvcc that the rest of the toolkit is beside it.
    cat >"$scratch/tree/bin/nvcc.profile" <<'end'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64"
end
    mv "$scratch/wheels/nvidia/cuda_nvcc/nvvm/libdevice" "$scratch/tree/nvvm"
    for part in cuda_nvcc cuda_runtime cublas; do
        for place in include lib; do
            mkdir -p "$scratch/tree/$place"
            cp -R "$scratch/wheels/nvidia/$part/$place/." "$scratch/tree/$place"
        done
    done
    mv "$scratch/tree/lib" "$scratch/tree/lib64"
    for library in cudart cublas cublasLt; do
        ln -s "lib$library.so.12" "$scratch/tree/lib64/lib$library.so"
    done
    # Meson tests nvcc with the static libraries, which the wheels do not have.
    echo "INPUT($toolkit/lib64/libcudart.so.12)" >"$scratch/tree/lib64/libcudart_static.a"
    ar rc "$scratch/tree/lib64/libcudadevrt.a"
    mv "$scratch/tree" "$toolkit"
    rm -rf "$scratch"
fi

export PATH="$toolkit/bin:$PATH" LD_LIBRARY_PATH="$toolkit/lib64"
if [ ! -f "$directory/build/build.ninja" ]; then
    meson setup "$directory/build" -Dcuda=enabled -Dcuda-arch="$capabilities" -Dtests=disabled -Dcli=disabled -Dmpi=disabled \
        -Dpython=disabled -Ddoc=disabled
fi
exec meson compile -C "$directory/build"
