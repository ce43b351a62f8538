#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sanitize.sh DIRECTORY TOOL PROGRAM: runs a small part of a program in DIRECTORY under a tool of compute-sanitizer.
# Fails on any error. Exits with 77 if there is no compute-sanitizer, or no GPU that the program accepts. meson.build
# lists the pairs of tools and programs.
set -eu
programs=$1 tool=$2 program=$3
sanitizer=$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer) || {
    echo "skipped: no compute-sanitizer"
    exit 77
}

case $tool in
# Racecheck takes seconds a case. Warps share memory in the same way for every query rule, gap and window.
racecheck) rules=interleave_dilated names='dim_48 dim_256 length_129 packed grouped hilbert_image' ;;
*) rules=interleave names='dim_48 dim_256 length_129 gaps packed window grouped hilbert_image' ;;
esac
table="Rules/Table*/${rules}_*"
for name in $names; do
    table=$table:'Named/Table*/*'$name'*'
done
case "$tool $program" in
# float32 alone: the tool fails on cuBLAS's tensor core kernels, and our kernels are the same for every dtype.
'racecheck gemm_table' | 'synccheck gemm_table') filter=$(printf %s "$table" | sed 's/:/float32:/g; s/$/float32/') ;;
*_ranks_table)
    # Ranks on one GPU, which share their kernels: messages with closed-form rows, with listed rows and with unaligned
    # rows.
    export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}"
    CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%%,*}
    case $tool in
    memcheck) filter='Rules/Table*interleave_residue_linear*:Named/Table*/*dim_48*:Seeds/Random*/1?' ;;
    # No racecheck over ranks: it loses track of launches by several threads, and reports that as a hazard.
    synccheck) filter='Rules/Table*interleave_residue_linear*float32' ;;
    esac
    ;;
*_table) filter=$table ;;
*_context) filter='*Graph*float16*' ;;
*_merge) filter='Merge.Nan*:Merge.TakesMany*' ;;
*_patterns) filter='*/Sizes*/length_129_*:*/Patterns*/*hilbert_and_linear*:*/Patterns*/*whole_units*' ;;
*_launches) filter='*/Graph*/twelve_branches_*:*/Graph*/whole_units_dilated_*' ;;
*_split) filter='*/Split.NeedsNoLse/four_*' ;;
*_limits) filter='Auto.*' ;;
esac

"$programs/$program" --gtest_filter=-'*' >/dev/null || {
    status=$?
    [ $status -ne 77 ] || echo "skipped: no GPU for $program"
    exit $status
}
export ANNULUS_TEST_QUICK=1
[ -n "$("$programs/$program" --gtest_list_tests --gtest_filter="$filter")" ] || {
    echo "sanitize.sh: no case of $program fits the filter $filter"
    exit 1
}
# memcheck also checks cuBLAS's kernels on our memory. We do not check what they do with each other.
case $tool in
memcheck) set -- ;;
*) set -- --kernel-name kns=annulus ;;
esac
exec "$sanitizer" --tool "$tool" "$@" --report-api-errors no --error-exitcode 9 \
    "$programs/$program" --gtest_brief=1 --gtest_filter="$filter"
