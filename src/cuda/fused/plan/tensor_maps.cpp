// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/tensor_maps.hpp"

#include "cuda/device/cuda_error.hpp"

#include <algorithm>

namespace annulus {

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// From the driver that is loaded: annulus is not linked with it.
Encode find_encode() {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result),
          "cudaGetDriverEntryPointByVersion");
#else
    check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result),
          "cudaGetDriverEntryPoint");
#endif
    if (result != cudaDriverEntryPointSuccess)
        throw Error(ANNULUS_ERROR_CUDA, "this CUDA driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(function);
}

constexpr std::int64_t element_bytes = 2;

CUtensorMap make_map(const MapKey &key) {
    static const Encode encode = find_encode();
    // The stride of a single row, head or batch entry may be anything.
    const auto bytes = [](std::int64_t count, std::int64_t stride) {
        return static_cast<cuuint64_t>(count == 1 ? 16 : stride * element_bytes);
    };
    const auto extent = [](std::int64_t count) { return static_cast<cuuint64_t>(count); };
    const cuuint64_t extents[] = {extent(key.columns), extent(key.rows), extent(key.residues), extent(key.heads),
                                  extent(key.batches)};
    const cuuint64_t strides[] = {bytes(key.rows, key.row_stride * key.dilation), bytes(key.residues, key.row_stride),
                                  bytes(key.heads, key.head_stride), bytes(key.batches, key.batch_stride)};
    const cuuint32_t box[] = {64, static_cast<cuuint32_t>(key.box_rows), 1, 1, 1}, steps[] = {1, 1, 1, 1, 1};
    CUtensorMap map;
    const CUresult result =
        encode(&map, key.dtype == ANNULUS_BFLOAT16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
               5, const_cast<void *>(key.data), extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        throw Error(ANNULUS_ERROR_CUDA, "cuTensorMapEncodeTiled failed with CUresult %d", static_cast<int>(result));
    return map;
}

} // namespace

const CUtensorMap &TensorMaps::get(const MapKey &key) {
    const auto *const end = entries_.begin() + count_;
    const auto *const found =
        std::find_if(entries_.cbegin(), end, [&](const Entry &entry) { return entry.key == key; });
    if (found != end)
        return found->map;
    const CUtensorMap map = make_map(key);
    Entry &entry = entries_[next_];
    entry = {key, map};
    count_ = std::max(count_, next_ + 1);
    next_ = (next_ + 1) % entries_.size();
    return entry.map;
}

} // namespace annulus
