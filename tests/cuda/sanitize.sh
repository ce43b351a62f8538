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
if [ -x "$programs/fused_table" ] && "$programs/fused_table" --gtest_filter=-'*' >/dev/null; then
    sanitize memcheck fused_table "$table"
    patterns='Fused/Patterns*/*hilbert_and_linear*:Fused/Patterns*/*whole_units*'
    sanitize memcheck fused_limits 'Auto.*'
    sanitize memcheck fused_patterns "Fused/Sizes*/length_129_*:$patterns"
    sanitize memcheck fused_launches 'Fused/Graph*/dilations*'
    sanitize memcheck fused_split 'Fused/Split.NeedsNoLse/four_*'
fi
# In float32 alone: the tool breaks down over cuBLAS's tensor core kernels, and ours are the same for every dtype.
for tool in racecheck synccheck; do
    CUDA_VISIBLE_DEVICES=0 sanitize $tool gemm_ranks_table 'Rules/Table*interleave_residue_linear*float32' \
        --kernel-name kns=annulus
    sanitize $tool gemm_table "$(printf %s "$table" | sed 's/:/float32:/g; s/$/float32/')" --kernel-name kns=annulus
done
