#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sanitize.sh DIRECTORY: a small part of the cuda suite, whose programs lie in DIRECTORY, under compute-sanitizer. Fails
# on any error; exits 77 where there is no compute-sanitizer or no CUDA device.
set -eu
programs=$1
sanitizer=$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer) || {
    echo "skipped: no compute-sanitizer"
    exit 77
}
"$programs/gemm_table" --gtest_filter=-'*' >/dev/null || exit $?

# sanitize TOOL PROGRAM FILTER [OPTION]...
sanitize() {
    tool=$1 program=$2 filter=$3
    shift 3
    echo "== $tool: $program"
    "$sanitizer" --tool "$tool" "$@" --report-api-errors no --error-exitcode 9 \
        "$programs/$program" --gtest_brief=1 --gtest_filter="$filter"
}

export ANNULUS_TEST_QUICK=1
table='Rules/Table*/interleave_*'
for name in dim_48 dim_256 length_129 gaps packed window grouped hilbert_image; do
    table=$table:'Named/Table*/*'$name'*'
done
graph='*Graph*float16*'
# cuBLAS's kernels are watched too where they use our addresses; what they do among themselves is not ours to check.
sanitize memcheck gemm_table "$table"
sanitize memcheck gemm_context "$graph"
sanitize memcheck gemm_merge 'Merge.Nan*:Merge.TakesMany*'
# Ranks on one GPU, which have their kernels in common: rows of closed form and listed ones, unaligned ones.
ranks='Rules/Table*interleave_residue_linear*:Named/Table*/*dim_48*:Seeds/Random*/1?'
CUDA_VISIBLE_DEVICES=0 sanitize memcheck gemm_ranks_table "$ranks"
for engine in fused mma; do
    if ! [ -x "$programs/${engine}_table" ] || ! "$programs/${engine}_table" --gtest_filter=-'*' >/dev/null; then
        continue
    fi
    sanitize memcheck ${engine}_table "$table"
    patterns='*/Patterns*/*hilbert_and_linear*:*/Patterns*/*whole_units*'
    sanitize memcheck ${engine}_patterns "*/Sizes*/length_129_*:$patterns"
    sanitize memcheck ${engine}_launches '*/Graph*/dilations*'
    sanitize memcheck ${engine}_split '*/Split.NeedsNoLse/four_*'
done
if [ -x "$programs/fused_limits" ]; then
    sanitize memcheck fused_limits 'Auto.*'
fi
# Not racecheck over ranks: it loses track of launches by several threads, and reports that as a hazard.
CUDA_VISIBLE_DEVICES=0 sanitize synccheck gemm_ranks_table 'Rules/Table*interleave_residue_linear*float32' \
    --kernel-name kns=annulus
# In float32 alone: the tool breaks down over cuBLAS's tensor core kernels, and ours are the same for every dtype.
for tool in racecheck synccheck; do
    sanitize $tool gemm_table "$(printf %s "$table" | sed 's/:/float32:/g; s/$/float32/')" --kernel-name kns=annulus
done
# The warps of `mma` share memory by barriers alone, which the tool understands; those of `fused` by the hardware's copies.
if [ -x "$programs/mma_table" ] && "$programs/mma_table" --gtest_filter=-'*' >/dev/null; then
    for tool in racecheck synccheck; do
        sanitize $tool mma_table "$table" --kernel-name kns=annulus
    done
fi
