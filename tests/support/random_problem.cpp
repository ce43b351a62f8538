// SPDX-License-Identifier: Apache-2.0
#include "support/random_problem.hpp"

#include <random>

namespace annulus::test {
namespace {

class Generator {
  public:
    explicit Generator(std::uint64_t seed) : engine_(seed) {}

    Problem problem() {
        Problem p;
        p.batch = number(1, 3);
        p.length = chance(0.2) ? number(1, 16) : chance(0.8) ? number(17, 150) : number(151, 330);
        p.kv_heads = static_cast<std::int32_t>(number(1, 3));
        p.heads = p.kv_heads * static_cast<std::int32_t>(number(1, 3));
        p.dim = 8 * static_cast<std::int32_t>(chance(0.8) ? number(1, 6) : number(7, 32));
        p.causal = chance(0.5);
        p.zero_keys = chance(0.3);
        if (chance(0.2))
            p.scale = static_cast<double>(number(-4, 8)) / 8;
        if (chance(0.3)) {
            const std::int64_t start = number(0, p.length - 1);
            p.window = QueryWindow{start, number(1, p.length - start)};
        }
        p.layout = static_cast<Layout>(number(0, 3));
        p.dtype = static_cast<annulus_dtype>(number(1, 4));
        p.spread = chance(0.2) ? 4 : 1;
        p.branches.clear();
        for (std::int64_t count = number(1, 4); count > 0; --count)
            p.branches.push_back(branch(p));
        if (chance(0.2))
            share_heads(p);
        return p;
    }

    Problem sliding_problem(bool has_global) {
        Problem p = problem();
        for (BranchSpec &b : p.branches)
            if (chance(0.7))
                b = !has_global || chance(0.7) ? window(p, b) : global(p, b);
        p.keys_once = chance(0.4);
        return p;
    }

  private:
    std::int64_t number(std::int64_t least, std::int64_t greatest) {
        return std::uniform_int_distribution<std::int64_t>(least, greatest)(engine_);
    }
    bool chance(double probability) { return std::bernoulli_distribution(probability)(engine_); }

    BranchSpec branch(const Problem &p) {
        BranchSpec b;
        b.segment = chance(0.2) ? 0 : chance(0.3) ? number(1, 8) : number(1, p.length + p.length / 3 + 1);
        b.dilation = chance(0.8) ? number(1, 6) : number(7, 40);
        b.phase = static_cast<annulus_phase_rule>(number(0, 2));
        b.residue = b.phase == ANNULUS_PHASE_FIXED ? number(0, 50) : 0;
        b.query = static_cast<annulus_query_rule>(number(0, 2));
        if (chance(0.4)) {
            b.order = ANNULUS_ORDER_HILBERT;
            b.width = chance(0.5) ? divisor(b.segment ? b.segment : p.length) : 0;
        }
        if (chance(0.3)) {
            b.first_head = static_cast<std::int32_t>(number(0, p.heads - 1));
            b.head_count = static_cast<std::int32_t>(number(1, p.heads - b.first_head));
        }
        return b;
    }

    // Returns a window with the heads of another branch: often short, sometimes unbounded or longer than the sequence.
    BranchSpec window(const Problem &p, const BranchSpec &other) {
        const auto steps = [&] { return chance(0.1) ? -1 : chance(0.6) ? number(0, 9) : number(0, p.length + 3); };
        BranchSpec b = window_spec(steps(), steps(), chance(0.5) ? 1 : number(2, 9));
        b.first_head = other.first_head;
        b.head_count = other.head_count;
        b.phase = other.phase;
        b.residue = other.residue;
        if (chance(0.4))
            b.query = ANNULUS_QUERY_DILATED;
        return b;
    }

    // Returns global positions with the heads of another branch. Sometimes the sequence ends before or among them.
    BranchSpec global(const Problem &p, const BranchSpec &other) {
        BranchSpec b =
            global_spec(chance(0.4) ? 0 : number(0, p.length + 2), number(1, chance(0.8) ? 5 : p.length), chance(0.5));
        b.first_head = other.first_head;
        b.head_count = other.head_count;
        return b;
    }

    // Makes the problem's heads a part of more heads, and gives some branches other ranges of all heads. Such a range
    // may contain none of the problem's heads.
    void share_heads(Problem &p) {
        p.head_shard.first = static_cast<std::int32_t>(number(0, 7));
        p.head_shard.total = p.head_shard.first + p.heads + static_cast<std::int32_t>(number(0, 7));
        for (BranchSpec &b : p.branches)
            if (b.head_count != 0) {
                b.first_head = static_cast<std::int32_t>(number(0, p.head_shard.total - 1));
                b.head_count = static_cast<std::int32_t>(number(1, p.head_shard.total - b.first_head));
            }
    }

    std::int64_t divisor(std::int64_t of) {
        std::int64_t candidate = number(1, of);
        while (of % candidate)
            --candidate;
        return candidate;
    }

    std::mt19937_64 engine_;
};

} // namespace

Problem random_problem(std::uint64_t seed) {
    return Generator(seed).problem();
}

Problem random_sliding_problem(std::uint64_t seed) {
    return Generator(seed).sliding_problem(true);
}

Problem random_window_problem(std::uint64_t seed) {
    return Generator(seed).sliding_problem(false);
}

} // namespace annulus::test
