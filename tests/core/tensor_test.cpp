// SPDX-License-Identifier: Apache-2.0
// The checks of tensor arguments. No test reads through the tensors' pointers: addresses are numbers here.
#include "core/tensor.hpp"

#include "core/error.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <string>

using namespace annulus;

namespace {

using Sizes = std::array<std::int64_t, 4>;

constexpr std::uintptr_t base = std::uintptr_t{1} << 20;
constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();

annulus_tensor tensor_at(std::uintptr_t address, annulus_dtype dtype, int ndim, const Sizes &shape,
                         const Sizes &stride) {
    annulus_tensor tensor{};
    tensor.data = reinterpret_cast<void *>(address);
    tensor.dtype = dtype;
    tensor.ndim = ndim;
    std::copy(shape.begin(), shape.end(), tensor.shape);
    std::copy(stride.begin(), stride.end(), tensor.stride);
    return tensor;
}

annulus_tensor float_tensor(std::int64_t first_element, const Sizes &shape, const Sizes &stride) {
    return tensor_at(base + static_cast<std::uintptr_t>(first_element) * 4, ANNULUS_FLOAT32, 4, shape, stride);
}

// Returns the message of the argument error that `check` throws, or "" if it throws none.
std::string complaint(const std::function<void()> &check) {
    try {
        check();
    } catch (const Error &error) {
        EXPECT_EQ(error.status(), ANNULUS_ERROR_ARGUMENT);
        return error.what();
    }
    return "";
}

std::string overlap_complaint(std::initializer_list<NamedTensor> inputs, std::initializer_list<NamedTensor> outputs) {
    return complaint([&] { check_overlap(inputs, outputs); });
}

constexpr Sizes plain_shape{2, 5, 3, 8};
constexpr Sizes plain_stride{120, 24, 8, 1};

std::string check_plain(const annulus_tensor *tensor) {
    return complaint([&] { check_tensor({"k", tensor}, ANNULUS_FLOAT32, {2, 5, 3, 8}, true); });
}

TEST(CheckTensor, AcceptsWhatItAsksFor) {
    const annulus_tensor tensor = float_tensor(0, plain_shape, plain_stride);
    EXPECT_EQ(check_plain(&tensor), "");
}

TEST(CheckTensor, NamesTheFieldThatIsWrong) {
    struct Case {
        const char *message;
        std::function<void(annulus_tensor &)> spoil;
    };
    const Case cases[] = {
        {"data of k is NULL", [](annulus_tensor &t) { t.data = nullptr; }},
        {"dtype of k is 1 (float64); it must be 2 (float32)", [](annulus_tensor &t) { t.dtype = ANNULUS_FLOAT64; }},
        {"ndim of k is 3; it must be 4", [](annulus_tensor &t) { t.ndim = 3; }},
        {"ndim of k is 5; it must be 4", [](annulus_tensor &t) { t.ndim = 5; }},
        {"ndim of k is -1; it must be 4", [](annulus_tensor &t) { t.ndim = -1; }},
        {"shape[1] of k is 0; it must be at least 1", [](annulus_tensor &t) { t.shape[1] = 0; }},
        {"shape[2] of k is -3; it must be at least 1", [](annulus_tensor &t) { t.shape[2] = -3; }},
        {"shape[0] of k is 3; it must be 2", [](annulus_tensor &t) { t.shape[0] = 3; }},
        {"shape[3] of k is 16; it must be 8", [](annulus_tensor &t) { t.shape[3] = 16; }},
        {"stride[1] of k is -24; it must not be negative", [](annulus_tensor &t) { t.stride[1] = -24; }},
        {"stride[3] of k is 2; it must be 1", [](annulus_tensor &t) { t.stride[3] = 2; }},
        {"aligned to 4 bytes", [](annulus_tensor &t) { t.data = reinterpret_cast<void *>(base + 2); }},
        {"beyond the address space", [](annulus_tensor &t) { t.stride[0] = huge; }},
        {"beyond the address space", [](annulus_tensor &t) { t.stride[0] = huge / 4; }},
        {"beyond the address space", [](annulus_tensor &t) { t.stride[1] = huge / 4 + 1; }},
        {"beyond the address space", [](annulus_tensor &t) { t.data = reinterpret_cast<void *>(UINTPTR_MAX - 3); }},
    };
    for (const Case &c : cases) {
        annulus_tensor tensor = float_tensor(0, plain_shape, plain_stride);
        c.spoil(tensor);
        const std::string message = check_plain(&tensor);
        EXPECT_NE(message.find(c.message), std::string::npos) << "'" << message << "' lacks '" << c.message << "'";
        EXPECT_NE(message.find(" k "), std::string::npos) << message;
    }
    EXPECT_EQ(check_plain(nullptr), "k is NULL; it must be a tensor");
}

TEST(CheckTensor, ReportsANumberThatIsNoDtype) {
    annulus_tensor tensor = float_tensor(0, plain_shape, plain_stride);
    const int number = 77;
    std::copy_n(reinterpret_cast<const char *>(&number), sizeof number, reinterpret_cast<char *>(&tensor.dtype));
    EXPECT_EQ(check_plain(&tensor), "dtype of k is 77 (unknown); it must be 2 (float32)");
}

TEST(CheckTensor, AlignmentFollowsTheDtype) {
    struct Case {
        annulus_dtype dtype;
        std::uintptr_t bytes;
    };
    for (const Case c :
         {Case{ANNULUS_FLOAT64, 8}, Case{ANNULUS_FLOAT32, 4}, Case{ANNULUS_BFLOAT16, 2}, Case{ANNULUS_FLOAT16, 2}}) {
        for (std::uintptr_t offset = 0; offset < 8; ++offset) {
            const annulus_tensor tensor = tensor_at(base + offset, c.dtype, 4, plain_shape, plain_stride);
            const auto check = [&] { check_tensor({"q", &tensor}, c.dtype, {2, 5, 3, 8}, true); };
            EXPECT_EQ(complaint(check).empty(), offset % c.bytes == 0) << "dtype " << c.dtype << " offset " << offset;
        }
    }
}

TEST(CheckTensor, AcceptsAnyStridesWhereNoUnitStrideIsAskedFor) {
    // Entries of shape and stride from ndim on are not read.
    const annulus_tensor lse = tensor_at(base, ANNULUS_FLOAT32, 3, {2, 3, 5, -1}, {1, 20, 4, -1});
    EXPECT_EQ(complaint([&] { check_tensor({"lse", &lse}, ANNULUS_FLOAT32, {2, 3, 5}, false); }), "");
    const annulus_tensor repeated = float_tensor(0, plain_shape, {0, 8, 0, 1});
    EXPECT_EQ(check_plain(&repeated), "");
}

TEST(CheckTensor, StrideOfASingleElementDoesNotCount) {
    const annulus_tensor tensor = float_tensor(0, {1, 5, 3, 8}, {huge, 24, 8, 1});
    EXPECT_EQ(complaint([&] { check_tensor({"k", &tensor}, ANNULUS_FLOAT32, {1, 5, 3, 8}, true); }), "");
}

TEST(CheckTensor, RejectsCountsThatOverflowEvenWhereRowsRepeat) {
    const std::int64_t many = std::int64_t{1} << 40;
    const annulus_tensor tensor = float_tensor(0, {many, many, 3, 8}, {0, 0, 8, 1});
    EXPECT_NE(complaint([&] {
                  check_tensor({"k", &tensor}, ANNULUS_FLOAT32, {many, many, 3, 8}, true);
              }).find("beyond the address space"),
              std::string::npos);
}

TEST(CheckTensor, TheLastByteMayBeTheLastOfTheAddressSpace) {
    const std::uintptr_t bytes = 240 * 4;
    for (const std::uintptr_t beyond : {0, 4}) {
        const annulus_tensor tensor =
            tensor_at(UINTPTR_MAX - 3 - bytes + beyond, ANNULUS_FLOAT32, 4, plain_shape, plain_stride);
        EXPECT_EQ(check_plain(&tensor).empty(), beyond == 0);
    }
}

TEST(CheckOverlap, OutputsMayTouchButNotShare) {
    const annulus_tensor q = float_tensor(0, plain_shape, plain_stride);
    for (const std::int64_t first : {-241, -240, -239, 0, 239, 240, 241}) {
        // Another row stride, so that only the byte ranges are compared.
        const annulus_tensor out = float_tensor(first, {2, 3, 5, 8}, {120, 40, 8, 1});
        const bool apart = first <= -240 || first >= 240;
        EXPECT_EQ(overlap_complaint({{"q", &q}}, {{"out", &out}}).empty(), apart) << first;
        EXPECT_EQ(overlap_complaint({}, {{"out", &out}, {"d_q", &q}}).empty(), apart) << first;
    }
}

TEST(CheckOverlap, NamesBoth) {
    const annulus_tensor q = float_tensor(0, plain_shape, plain_stride);
    const annulus_tensor out = float_tensor(4, plain_shape, plain_stride);
    EXPECT_EQ(overlap_complaint({{"q", &q}}, {{"out", &out}}).find("out overlaps q;"), 0U);
    EXPECT_EQ(overlap_complaint({}, {{"d_k", &q}, {"d_v", &out}}).find("d_k overlaps d_v;"), 0U);
}

TEST(CheckOverlap, InputsMayShareAndRepeat) {
    const annulus_tensor q = float_tensor(0, plain_shape, plain_stride);
    const annulus_tensor k = float_tensor(4, plain_shape, {0, 8, 0, 1});
    const annulus_tensor out = float_tensor(240, plain_shape, plain_stride);
    EXPECT_EQ(overlap_complaint({{"q", &q}, {"k", &k}, {"v", &q}}, {{"out", &out}}), "");
}

TEST(CheckOverlap, AbsentTensorsOverlapNothing) {
    const annulus_tensor out = float_tensor(0, plain_shape, plain_stride);
    EXPECT_EQ(overlap_complaint({{"d_lse", nullptr}}, {{"lse", nullptr}, {"out", &out}, {"other", nullptr}}), "");
}

TEST(CheckOverlap, ElementsOfAnOutputAreDistinct) {
    struct Case {
        Sizes shape, stride;
        bool distinct;
    };
    const Case cases[] = {
        {plain_shape, plain_stride, true},     {plain_shape, {120, 8, 40, 1}, true}, // [B, H, N, D] in memory
        {plain_shape, {8, 48, 16, 1}, true},                                         // [N, H, B, D] in memory
        {plain_shape, {120, 24, 7, 1}, false}, {plain_shape, {120, 23, 8, 1}, false},
        {plain_shape, {119, 24, 8, 1}, false}, {plain_shape, {0, 24, 8, 1}, false},
        {plain_shape, {120, 24, 0, 1}, false}, {{1, 5, 1, 8}, {0, 8, 0, 1}, true},
    };
    for (const Case &c : cases) {
        const annulus_tensor out = float_tensor(0, c.shape, c.stride);
        const std::string message = overlap_complaint({}, {{"out", &out}});
        EXPECT_EQ(message.empty(), c.distinct) << message << c.stride[0] << " " << c.stride[1] << " " << c.stride[2];
        if (!c.distinct) {
            EXPECT_EQ(message.find("strides of out"), 0U) << message;
        }
        EXPECT_EQ(overlap_complaint({{"q", &out}}, {}), "");
    }
}

// dQ, dK and dV in one large buffer [B, N, 3, H, D]: the time of the check must not grow with its size.
TEST(CheckOverlap, PackedTensorsInterleave) {
    const std::int64_t n = std::int64_t{1} << 36;
    const std::int64_t heads = 16;
    const std::int64_t dim = 128;
    const std::int64_t row = 3 * heads * dim;
    const Sizes shape{2, n, heads, dim};
    const Sizes stride{n * row, row, dim, 1};
    const annulus_tensor d_q = float_tensor(0, shape, stride);
    const annulus_tensor d_k = float_tensor(heads * dim, shape, stride);
    const annulus_tensor d_v = float_tensor(2 * heads * dim, shape, stride);
    EXPECT_EQ(overlap_complaint({}, {{"d_q", &d_q}, {"d_k", &d_k}, {"d_v", &d_v}}), "");
    // One element earlier: the last element of a row of one tensor is the first element of the next tensor's row.
    const annulus_tensor early = float_tensor(heads * dim - 1, shape, stride);
    EXPECT_EQ(overlap_complaint({}, {{"d_q", &d_q}, {"d_k", &early}, {"d_v", &d_v}}).find("d_q overlaps d_k;"), 0U);
    const annulus_tensor late = float_tensor(2 * heads * dim + 1, shape, stride);
    EXPECT_EQ(overlap_complaint({}, {{"d_q", &d_q}, {"d_k", &d_k}, {"d_v", &late}}).find("d_q overlaps d_v;"), 0U);
}

// [B, N, H + 2 G, D]: the strides agree, but the numbers of heads differ.
TEST(CheckOverlap, PackedGroupedHeadsInterleave) {
    for (const std::int64_t kv_heads : {1, 2, 4}) {
        const std::int64_t heads = 8;
        const std::int64_t dim = 16;
        const std::int64_t row = (heads + 2 * kv_heads) * dim;
        // With a single head, the head stride may be any number.
        const std::int64_t kv_stride = kv_heads == 1 ? 12345 : dim;
        const annulus_tensor d_q = float_tensor(0, {2, 7, heads, dim}, {7 * row, row, dim, 1});
        const annulus_tensor d_k = float_tensor(heads * dim, {2, 7, kv_heads, dim}, {7 * row, row, kv_stride, 1});
        const annulus_tensor d_v =
            float_tensor((heads + kv_heads) * dim, {2, 7, kv_heads, dim}, {7 * row, row, kv_stride, 1});
        EXPECT_EQ(overlap_complaint({}, {{"d_q", &d_q}, {"d_k", &d_k}, {"d_v", &d_v}}), "") << kv_heads;
        const annulus_tensor one_head_early =
            float_tensor((heads - 1) * dim, {2, 7, kv_heads, dim}, {7 * row, row, kv_stride, 1});
        EXPECT_NE(overlap_complaint({{"k", &one_head_early}}, {{"d_q", &d_q}}), "") << kv_heads;
    }
}

TEST(CheckOverlap, InterleavingOtherDtypesIsRefused) {
    const annulus_tensor out = float_tensor(0, {1, 4, 1, 8}, {64, 16, 16, 1});
    const annulus_tensor beside = tensor_at(base + 32, ANNULUS_FLOAT16, 4, {1, 4, 1, 8}, {64, 16, 16, 1});
    EXPECT_NE(overlap_complaint({{"q", &beside}}, {{"out", &out}}), "");
}

std::set<std::uintptr_t> elements_of(const annulus_tensor &t, std::size_t &count) {
    std::set<std::uintptr_t> elements;
    count = 0;
    for (std::int64_t a = 0; a < t.shape[0]; ++a)
        for (std::int64_t b = 0; b < t.shape[1]; ++b)
            for (std::int64_t c = 0; c < t.shape[2]; ++c)
                for (std::int64_t d = 0; d < t.shape[3]; ++d, ++count)
                    elements.insert(reinterpret_cast<std::uintptr_t>(t.data) / 4 +
                                    static_cast<std::uintptr_t>(a * t.stride[0] + b * t.stride[1] + c * t.stride[2] +
                                                                d * t.stride[3]));
    return elements;
}

// Small tensors of any strides, half of them pairs of equal strides, against an enumeration of their elements. The
// check may refuse too much only if strides differ, or if a tensor's own elements meet or interleave.
TEST(CheckOverlap, AgreesWithEnumeration) {
    std::mt19937 random(20240917);
    const auto pick = [&](std::int64_t least, std::int64_t most) {
        return std::uniform_int_distribution<std::int64_t>(least, most)(random);
    };
    // Strides of a packed buffer with gaps, with its dimensions in any order. Such elements never meet.
    const auto packed_strides = [&](const Sizes &shape) {
        std::array<std::size_t, 4> order{0, 1, 2, 3};
        std::shuffle(order.begin(), order.end(), random);
        Sizes stride;
        std::int64_t inner = 1;
        for (const std::size_t i : order) {
            stride[i] = inner * pick(1, 3);
            inner = stride[i] * shape[i];
        }
        return stride;
    };
    int apart_interleaved = 0;
    int met_interleaved = 0;
    int refused_repeats = 0;
    for (int round = 0; round < 40000; ++round) {
        const Sizes whole{pick(1, 3), pick(1, 4), pick(1, 4), pick(1, 4)};
        const bool packed = round % 4 != 0;
        const bool equal = round % 2 == 0 || round % 5 == 0;
        Sizes shapes[2];
        for (Sizes &shape : shapes)
            for (std::size_t i = 0; i < 4; ++i)
                shape[i] = pick(1, whole[i]);
        Sizes strides[2];
        for (Sizes &stride : strides)
            stride = packed ? packed_strides(whole) : Sizes{pick(0, 20), pick(0, 20), pick(0, 5), pick(0, 3)};
        if (equal)
            for (std::size_t i = 0; i < 4; ++i)
                strides[1][i] = shapes[1][i] > 1 ? strides[0][i] : pick(0, 9);
        const annulus_tensor out = float_tensor(0, shapes[0], strides[0]);
        const annulus_tensor in = float_tensor(pick(-60, 60), shapes[1], strides[1]);

        std::size_t out_count;
        std::size_t in_count;
        const auto out_elements = elements_of(out, out_count);
        const auto in_elements = elements_of(in, in_count);
        const bool distinct = out_elements.size() == out_count;
        const bool alone_accepted = overlap_complaint({}, {{"out", &out}}).empty();
        ASSERT_FALSE(alone_accepted && !distinct) << "round " << round;
        if (packed) {
            ASSERT_TRUE(alone_accepted) << "round " << round;
        }
        refused_repeats += distinct ? 0 : 1;
        if (!alone_accepted)
            continue;

        const bool meet = std::any_of(out_elements.begin(), out_elements.end(),
                                      [&](std::uintptr_t element) { return in_elements.count(element) != 0; });
        const bool ranges_meet =
            *out_elements.begin() <= *in_elements.rbegin() && *in_elements.begin() <= *out_elements.rbegin();
        const bool accepted = overlap_complaint({{"in", &in}}, {{"out", &out}}).empty();
        ASSERT_FALSE(accepted && meet) << "round " << round;
        if (!ranges_meet || (equal && packed)) {
            ASSERT_EQ(accepted, !meet) << "round " << round;
        }
        if (overlap_complaint({}, {{"in", &in}}).empty()) {
            const std::string both_ways = overlap_complaint({{"out", &out}}, {{"in", &in}});
            ASSERT_EQ(both_ways.empty(), accepted) << "round " << round;
        }
        if (ranges_meet && equal && packed)
            ++(meet ? met_interleaved : apart_interleaved);
    }
    // The sweep had enough cases of every kind.
    EXPECT_GT(apart_interleaved, 1000);
    EXPECT_GT(met_interleaved, 1000);
    EXPECT_GT(refused_repeats, 1000);
}

} // namespace
