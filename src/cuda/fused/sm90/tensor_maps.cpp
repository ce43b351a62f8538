// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/sm90/tensor_maps.hpp"

#include "cuda/device/driver.hpp"

#include <utility>

namespace annulus {

namespace {

constexpr std::int64_t element_bytes = 2;

// Encodes a map of rows residue, residue + dilation, … of a matrix: `rows` of them for each of `residues` residues.
void encode(const RangeMatrix &matrix, const Problem &problem, std::int64_t rows, std::int64_t residues,
            std::int64_t dilation, int box_rows, CUtensorMap &map) {
    static auto *const encode_tiled = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
    // The stride of a single row, head or batch entry may be anything.
    const auto bytes = [](std::int64_t count, std::int64_t stride) {
        return static_cast<cuuint64_t>(count == 1 ? 16 : stride * element_bytes);
    };
    const auto extent = [](std::int64_t count) { return static_cast<cuuint64_t>(count); };
    const cuuint64_t extents[] = {extent(problem.head_dim), extent(rows), extent(residues), extent(matrix.heads),
                                  extent(problem.batch)};
    const cuuint64_t strides[] = {bytes(rows, matrix.rows.row * dilation), bytes(residues, matrix.rows.row),
                                  bytes(matrix.heads, matrix.rows.head), bytes(problem.batch, matrix.rows.batch)};
    const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows), 1, 1, 1}, steps[] = {1, 1, 1, 1, 1};
    const auto type =
        problem.dtype == ANNULUS_BFLOAT16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    check_driver(encode_tiled(&map, type, 5, matrix.rows.data, extents, strides, box, steps,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
                 "cuTensorMapEncodeTiled");
}

void replace_address(CUtensorMap &map, void *data) {
    static auto *const replace = driver_function<decltype(cuTensorMapReplaceAddress)>("cuTensorMapReplaceAddress");
    check_driver(replace(&map, data), "cuTensorMapReplaceAddress");
}

} // namespace

void RangeMaps::bind(const RangeMatrix &matrix, const TileGrid &tiles, const Problem &problem, int box_rows,
                     CUtensorMap *maps) {
    const DeviceRows before = std::exchange(bound_, {}); // nothing is bound if the driver refuses
    const bool same_strides = before.data && before.batch == matrix.rows.batch && before.row == matrix.rows.row &&
                              before.head == matrix.rows.head;
    if (!same_strides || before.data != matrix.rows.data)
        for (int i = 0; i < tiles.stride_count; ++i) {
            const std::int64_t stride = tiles.strides[i].value, longer = tiles.longer_residues[i];
            for (const auto &[rows, residues, map] : {std::tuple(matrix.count / stride + 1, longer, maps + 2 * i),
                                                      {matrix.count / stride, stride, maps + 2 * i + 1}}) {
                if (rows == 0 || residues == 0)
                    continue;
                if (same_strides)
                    replace_address(*map, matrix.rows.data);
                else
                    encode(matrix, problem, rows, residues, stride, box_rows, *map);
            }
        }
    bound_ = matrix.rows;
}

} // namespace annulus
