// SPDX-License-Identifier: Apache-2.0
#include "fuzz/abi/estimates.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

namespace annulus::fuzz {

namespace {

// Returns a length, tiny or large, near powers of two.
std::int64_t any_length(Input &input) {
    const int bits = input.below(64);
    return bits < 8 ? input.number(1, 64) : input.number((1LL << (bits - 1)) - 3, (1LL << (bits - 1)) + 3);
}

class AnyProblem {
  public:
    explicit AnyProblem(Input &input) {
        annulus_problem problem = ANNULUS_PROBLEM_INIT;
        problem.dtype = input.choice(ANNULUS_FLOAT64, ANNULUS_FLOAT16);
        problem.kv_heads = input.number32(1, 4);
        problem.heads = static_cast<std::int32_t>(
            input.is_wild() ? input.number(1, 1 << 20) : std::int64_t{problem.kv_heads} * (1 + input.below(4)));
        problem.head_dim = static_cast<std::int32_t>(input.is_wild() ? input.any_number() : 8 * (1 + input.below(32)));
        problem.batch = input.number(1, 4);
        problem.sequence_length = any_length(input);
        problem.row_alignment = input.once_in(2) ? input.number(0, 0) : 1LL << input.below(13);
        problem.gradient_dtype = input.once_in(3) ? ANNULUS_FLOAT32 : input.choice(annulus_dtype{}, annulus_dtype{});
        annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
        const bool has_window = input.once_in(4);
        if (has_window) {
            options.flags = ANNULUS_CALL_QUERY_WINDOW;
            options.query_start = input.number(0, std::max<std::int64_t>(problem.sequence_length, 0));
        }
        if (has_window || input.is_wild())
            problem.query_length = input.number(1, 64);
        const bool has_sequences = input.once_in(3);
        if (has_sequences) {
            const int count = 1 + input.below(4);
            for (int i = 0; i <= count; ++i)
                starts_.push_back(input.number(0, std::max<std::int64_t>(problem.sequence_length, 0)));
            std::ranges::sort(starts_);
            options.sequence_count = input.is_wild() ? std::min<std::int64_t>(input.number(-1, 0), 0) : count;
            options.sequence_starts = starts_.data();
            options.flags |= static_cast<std::uint64_t>(input.number(0, 0));
        }
        if (has_window || has_sequences) {
            options_.emplace(input, options);
            problem.options = options_->get();
        }
        length_ = problem.sequence_length;
        problem_.emplace(input, problem);
    }

    annulus_problem *get() { return problem_->get(); }
    std::int64_t length() const { return length_; }
    double heads_of_kv_head() { return static_cast<double>(get()->heads) / get()->kv_heads; }

  private:
    std::vector<std::int64_t> starts_;
    std::optional<Sized<annulus_call_options>> options_;
    std::optional<Sized<annulus_problem>> problem_;
    std::int64_t length_ = 0;
};

bool is_near(double a, double b) {
    return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b));
}

} // namespace

void ask_estimate(Input &input, Handles &handles) {
    AnyProblem problem(input);
    Sized<annulus_estimate> result(input, ANNULUS_ESTIMATE_INIT);
    const annulus_pass pass = input.choice(ANNULUS_PASS_FORWARD, ANNULUS_PASS_MASS);
    const std::int32_t branch = input.number32(ANNULUS_ALL_BRANCHES, 2);
    if (!succeeded(annulus_estimate_problem(handles.context(), problem.get(), pass, branch, result.get()))) {
        EXPECT(result.is_untouched(), "the estimate was written");
        return;
    }
    annulus_estimate all = ANNULUS_ESTIMATE_INIT;
    EXPECT(annulus_estimate_problem(handles.context(), problem.get(), pass, ANNULUS_ALL_BRANCHES, &all) == ANNULUS_OK,
           "%s", annulus_last_error());
    const double dim = problem.get()->head_dim;
    const double factor = pass == ANNULUS_PASS_FORWARD    ? 4
                          : pass == ANNULUS_PASS_BACKWARD ? 10
                                                          : 4 * std::ceil(problem.heads_of_kv_head() / dim);
    EXPECT(std::isfinite(all.pairs) && all.pairs >= 0, "%g pairs", all.pairs);
    EXPECT(is_near(all.flops, factor * all.pairs * dim), "%g pairs, %g FLOPs", all.pairs, all.flops);
    double pairs = 0;
    for (std::int32_t i = 0;; ++i) {
        annulus_estimate branch_estimate = ANNULUS_ESTIMATE_INIT;
        if (annulus_estimate_problem(handles.context(), problem.get(), pass, i, &branch_estimate) != ANNULUS_OK)
            break;
        pairs += branch_estimate.pairs;
    }
    EXPECT(is_near(pairs, all.pairs), "%g pairs of all branches, %g of each", all.pairs, pairs);
}

void ask_workspace(Input &input, Handles &handles) {
    AnyProblem problem(input);
    std::uint64_t bytes = 7;
    const annulus_pass pass = input.choice(ANNULUS_PASS_FORWARD, ANNULUS_PASS_MASS);
    if (!succeeded(annulus_workspace_size(handles.context(), problem.get(), pass, &bytes)))
        EXPECT(bytes == 7, "bytes was written");
}

void ask_rank(Input &input, Handles &handles) {
    AnyProblem problem(input);
    // Plans of many ranks take long, so there are mostly few ranks. The largest numbers occur only if is_wild() asks
    // for them.
    const std::int32_t most = input.once_in(16) ? 256 : 16;
    const std::int32_t ranks = input.once_in(32) ? input.number32(5, most) : input.number32(1, 4);
    const std::int32_t rank = input.number32(0, std::clamp(ranks, 1, 4096) - 1);
    const int given = input.below(3); // shards: none, one a rank, any
    std::int32_t count = given == 0 ? input.number32(0, 0) : given == 1 ? ranks : input.number32(1, 6);
    const auto held = static_cast<std::size_t>(std::clamp(count, 0, 65536));
    std::vector<std::int64_t> lengths(held);
    std::vector<std::int32_t> owners(held);
    std::int64_t left = problem.length();
    for (std::size_t i = 0; i < held; ++i) {
        lengths[i] = i + 1 < held && i < 16 ? input.number(0, std::max<std::int64_t>(left, 0)) : left;
        if (__builtin_sub_overflow(left, lengths[i], &left))
            left = 0;
        owners[i] = i < 16 ? input.number32(0, std::clamp(ranks, 1, 4096) - 1) : 0;
    }
    Sized<annulus_shards> shards(input, {sizeof(annulus_shards), ranks, count, given == 0 ? nullptr : lengths.data(),
                                         given == 2 ? owners.data() : nullptr});
    Sized<annulus_estimate> result(input, ANNULUS_ESTIMATE_INIT);
    const annulus_pass pass = input.choice(ANNULUS_PASS_FORWARD, ANNULUS_PASS_MASS);
    const auto ask = [&](std::int32_t of, annulus_estimate *estimate) {
        return annulus_estimate_rank(handles.context(), problem.get(), pass, shards.get(), of, estimate);
    };
    if (!succeeded(ask(rank, result.get()))) {
        EXPECT(result.is_untouched(), "the estimate was written");
        return;
    }
    if (ranks > 4)
        return;
    // The ranks receive in total what they send.
    std::uint64_t sent = 0, received = 0;
    for (std::int32_t i = 0; i < ranks; ++i) {
        annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
        if (!succeeded(ask(i, &estimate))) // this rank's plan may take too many steps
            return;
        sent += estimate.sent_bytes;
        received += estimate.received_bytes;
    }
    EXPECT(sent == received, "%d ranks send %llu bytes and receive %llu", ranks, static_cast<unsigned long long>(sent),
           static_cast<unsigned long long>(received));
}

void ask_balance(Input &input, Handles &handles) {
    AnyProblem problem(input);
    const std::int32_t ranks = input.number32(1, input.once_in(16) ? 256 : 8), capacity = input.number32(1, 512);
    const auto held = static_cast<std::size_t>(std::clamp(capacity, 0, 65536));
    std::vector<std::int64_t> lengths(held, -7);
    std::vector<std::int32_t> owners(held, -7);
    std::int32_t count = -7;
    if (!succeeded(annulus_balance_shards(handles.context(), problem.get(), ranks, capacity, lengths.data(),
                                          owners.data(), &count))) {
        EXPECT(count == -7 && std::ranges::all_of(lengths, [](std::int64_t length) { return length == -7; }) &&
                   std::ranges::all_of(owners, [](std::int32_t owner) { return owner == -7; }),
               "shards were written");
        return;
    }
    EXPECT(count >= 1 && count <= capacity, "%d shards", count);
    std::vector<std::int64_t> rows(static_cast<std::size_t>(ranks));
    for (std::int32_t i = 0; i < count; ++i) {
        EXPECT(lengths[i] >= 0 && owners[i] >= 0 && owners[i] < ranks, "shard %d", i);
        rows[owners[i]] += lengths[i];
    }
    EXPECT(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}) == problem.length(), "the rows of the ranks");
    EXPECT(std::ranges::max(rows) - std::ranges::min(rows) <= 1, "ranks have different numbers of rows");
}

void ask_curve(Input &input) {
    constexpr std::int64_t most = 1 << 12;
    const std::int64_t length = input.number(1, 200), width = input.number(0, 20);
    if (length > most && (width == 0 || (width > 0 && length % width == 0)))
        return; // no memory here is large enough for it
    std::vector<std::int64_t> positions(static_cast<std::size_t>(std::clamp<std::int64_t>(length, 0, most)), -7);
    const bool is_null = input.is_wild();
    if (!succeeded(annulus_hilbert_curve(length, width, is_null ? nullptr : positions.data()))) {
        EXPECT(std::ranges::all_of(positions, [](std::int64_t p) { return p == -7; }), "positions was written");
        return;
    }
    std::ranges::sort(positions);
    for (std::size_t i = 0; i < positions.size(); ++i)
        EXPECT(positions[i] == static_cast<std::int64_t>(i), "position %zu", i);
}

} // namespace annulus::fuzz
