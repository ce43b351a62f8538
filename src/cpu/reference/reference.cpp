// SPDX-License-Identifier: Apache-2.0
// The reference engine: the definition, evaluated for every pair of a query and a key, in float64. Nothing here is
// fast. Only sizes, pattern and scale come from the plan, so that every other engine can be compared with this one.
#include "core/dtype.hpp"
#include "core/tensor.hpp"
#include "core/workspace.hpp"
#include "cpu/clear_rows.hpp"
#include "cpu/reference/definition.hpp"
#include "cpu/reference/engine.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

namespace annulus {

namespace {

// A key that a query attends to.
struct Attended {
    std::int64_t m;      // global position of the key
    double multiplicity; // number of branches in which the query has the key
    double score;        // scale * Q[n] . K[m]
    double p;            // multiplicity * exp(score - LSE)
};

// The arrays of a call in its workspace.
struct Scratch {
    std::int64_t *segments; // branches x N: for each branch, the segment of every global position
    std::int64_t *residues; // branches x N: its residue
    Attended *keys;         // of one query
    double *row;            // of O or of dQ
    double *d_k;            // of one batch entry and key/value head
    double *d_v;
};

Scratch book(Workspace &workspace, const Plan &plan, annulus_pass pass) {
    const Problem &problem = plan.problem();
    const auto branches = static_cast<std::int64_t>(plan.pattern().branches.size());
    Scratch scratch{};
    scratch.segments = workspace.take<std::int64_t>(branches, problem.sequence_length);
    scratch.residues = workspace.take<std::int64_t>(branches, problem.sequence_length);
    scratch.keys = workspace.take<Attended>(problem.keys.length);
    scratch.row = workspace.take<double>(problem.head_dim);
    if (pass == ANNULUS_PASS_BACKWARD) {
        scratch.d_k = workspace.take<double>(problem.keys.length, problem.head_dim);
        scratch.d_v = workspace.take<double>(problem.keys.length, problem.head_dim);
    }
    return scratch;
}

// ---- The formulas, for tensors of T.

template <class T> double dot(const T *a, const T *b, std::int32_t length) {
    double sum = 0;
    for (std::int32_t d = 0; d < length; ++d)
        sum += to_double(a[d]) * to_double(b[d]);
    return sum;
}

// Returns Q . K, or NaN if a sum of finite numbers overflows: a partial sum may overflow when the whole does not.
template <class T> double product(const T *q, const T *k, std::int32_t length) {
    const double sum = dot(q, k, length);
    const auto is_infinite = [](T x) { return std::isinf(to_double(x)); };
    const bool is_partial =
        std::isinf(sum) && std::none_of(q, q + length, is_infinite) && std::none_of(k, k + length, is_infinite);
    return is_partial ? std::numeric_limits<double>::quiet_NaN() : sum;
}

template <class T> void add(double *sum, double factor, const T *a, std::int32_t length) {
    for (std::int32_t d = 0; d < length; ++d)
        sum[d] += factor * to_double(a[d]);
}

template <class T> void store(T *to, const double *from, std::int32_t length) {
    for (std::int32_t d = 0; d < length; ++d)
        to[d] = from_float<T>(from[d]);
}

// Does not add 0: that would turn -0 into 0.
template <class T> void store_sum(T *to, const double *from, std::int32_t length) {
    for (std::int32_t d = 0; d < length; ++d)
        if (from[d] != 0)
            to[d] = from_float<T>(to_double(to[d]) + from[d]);
}

template <class T> class Reference {
  public:
    Reference(const Plan &plan, Workspace &workspace, annulus_pass pass)
        : problem_(plan.problem()), scale_(plan.scale()), scratch_(book(workspace, plan, pass)),
          definition_(plan, scratch_.segments, scratch_.residues) {
        definition_.fill();
    }

    void forward(const CallTensors &t) const {
        for (std::int64_t b = 0; b < problem_.batch; ++b)
            for (std::int32_t h = 0; h < problem_.heads; ++h)
                for (std::int64_t i = 0; i < problem_.queries.length; ++i)
                    forward_row(t, b, h, i);
    }

    void backward(const CallTensors &t) const {
        const std::int32_t D = problem_.head_dim, group = problem_.heads / problem_.kv_heads;
        for (std::int64_t b = 0; b < problem_.batch; ++b)
            for (std::int32_t g = 0; g < problem_.kv_heads; ++g) {
                std::fill_n(scratch_.d_k, problem_.keys.length * D, 0.0);
                std::fill_n(scratch_.d_v, problem_.keys.length * D, 0.0);
                for (std::int32_t h = g * group; h < (g + 1) * group; ++h)
                    for (std::int64_t i = 0; i < problem_.queries.length; ++i)
                        backward_row(t, b, h, i);
                for (std::int64_t j = 0; j < problem_.keys.length; ++j) {
                    if (!problem_.gradients.only_v)
                        store_gradient(problem_.gradients.k, t.d_k, b, j, g, scratch_.d_k + j * D);
                    store_gradient(problem_.gradients.v, t.d_v, b, j, g, scratch_.d_v + j * D);
                }
            }
    }

  private:
    using Statistic = std::conditional_t<std::is_same_v<T, double>, double, float>;

    // The keys of A(n, h), where n is row i of the queries.
    struct Row {
        const Attended *begin, *end;
        double lse; // -infinity if there are no keys, NaN if all have the score -infinity
    };

    // Keys outside A(n, h) are not even read.
    Row attend(const annulus_tensor &q, const annulus_tensor &k, std::int64_t b, std::int32_t h, std::int64_t i) const {
        const Window &keys = problem_.keys;
        const std::int64_t n = problem_.queries.start + i;
        const auto zero_keys = static_cast<double>(definition_.zero_keys(n, h));
        Attended *const begin = scratch_.keys, *end = begin;
        double largest = zero_keys > 0 ? 0 : -std::numeric_limits<double>::infinity();
        for (std::int64_t m = keys.start; m < keys.end(); ++m)
            if (const int multiplicity = definition_.multiplicity(n, m, h)) {
                const double score = scale_ * product(row<T>(q, b, i, h), key_row(k, b, m, h), problem_.head_dim);
                *end++ = {m, static_cast<double>(multiplicity), score, 0};
                largest = std::max(largest, score);
            }

        // Subtracting the largest score keeps the exponentials in range; any finite shift gives the same result. The
        // probabilities are divided by the sum, not computed from LSE: next to a large score, LSE has no digits left
        // for the sum's logarithm. If all scores are -infinity, the result is NaN.
        const double shift = largest == std::numeric_limits<double>::infinity() ? 0 : largest;
        double sum = zero_keys > 0 ? zero_keys * std::exp(-shift) : 0;
        for (Attended *key = begin; key != end; ++key) {
            key->p = key->multiplicity * std::exp(key->score - shift);
            sum += key->p;
        }
        for (Attended *key = begin; key != end; ++key)
            key->p /= sum;
        return {begin, end, shift + std::log(sum)};
    }

    void forward_row(const CallTensors &t, std::int64_t b, std::int32_t h, std::int64_t i) const {
        const auto [begin, end, lse] = attend(t.q, t.k, b, h, i);
        std::fill_n(scratch_.row, problem_.head_dim, 0.0);
        for (const Attended *key = begin; key != end; ++key)
            add(scratch_.row, key->p, key_row(t.v, b, key->m, h), problem_.head_dim);
        store(row<T>(t.out, b, i, h), scratch_.row, problem_.head_dim);
        if (t.lse)
            *statistic<Statistic>(*t.lse, b, h, i) = static_cast<Statistic>(lse);
    }

    // Returns the factor that turns P over the keys of this call into P under the caller's LSE. That LSE may count
    // other keys as well (a merged LSE). If it does not, the factor is 1: the LSE is a rounded form of what Q and K
    // give.
    static double merged_factor(double lse, Statistic merged_lse) {
        return static_cast<Statistic>(lse) == merged_lse ? 1 : std::exp(lse - merged_lse);
    }

    // Writes dQ[n], and adds the contributions of query n to dK and dV.
    void backward_row(const CallTensors &t, std::int64_t b, std::int32_t h, std::int64_t i) const {
        const std::int32_t D = problem_.head_dim;
        const Row attended = attend(t.q, t.k, b, h, i);
        const T *q = row<T>(t.q, b, i, h), *d_out = row<T>(t.d_out, b, i, h);
        const double factor = merged_factor(attended.lse, *statistic<Statistic>(*t.lse, b, h, i));
        const double d_lse = t.d_lse ? *statistic<Statistic>(*t.d_lse, b, h, i) : 0;
        const double delta = dot(d_out, row<T>(t.out, b, i, h), D);

        std::fill_n(scratch_.row, D, 0.0);
        for (const Attended *key = attended.begin; key != attended.end; ++key) {
            const T *k = key_row(t.k, b, key->m, h), *v = key_row(t.v, b, key->m, h);
            const std::int64_t j = key->m - problem_.keys.start;
            const double p = key->p * factor;
            const double d_s = p * (dot(d_out, v, D) - delta + d_lse) * scale_;
            add(scratch_.d_v + j * D, p, d_out, D);
            add(scratch_.row, d_s, k, D);
            add(scratch_.d_k + j * D, d_s, q, D);
        }
        if (!problem_.gradients.only_v)
            store_gradient(problem_.gradients.q, t.d_q, b, i, h, scratch_.row);
    }

    void store_gradient(const GradientTarget &target, const annulus_tensor &t, std::int64_t b, std::int64_t n,
                        std::int32_t h, const double *gradient) const {
        const auto store_in = [&](auto *to) {
            if (target.adds)
                store_sum(to, gradient, problem_.head_dim);
            else
                store(to, gradient, problem_.head_dim);
        };
        if (target.is_float32)
            store_in(row<float>(t, b, n, h));
        else
            store_in(row<T>(t, b, n, h));
    }

    // Returns the row of K or V at global position m that query head h reads.
    const T *key_row(const annulus_tensor &t, std::int64_t b, std::int64_t m, std::int32_t h) const {
        return row<T>(t, b, m - problem_.keys.start, h / (problem_.heads / problem_.kv_heads));
    }

    const Problem &problem_;
    double scale_;
    Scratch scratch_;
    Definition definition_;
};

// ---- The engine.

// Calls use(Reference) for the Reference of the problem's element type.
template <class Use> void with_reference(const Plan &plan, Workspace &workspace, annulus_pass pass, const Use &use) {
    switch (plan.problem().dtype) {
    case ANNULUS_FLOAT64:
        return use(Reference<double>(plan, workspace, pass));
    case ANNULUS_FLOAT32:
        return use(Reference<float>(plan, workspace, pass));
    case ANNULUS_BFLOAT16:
        return use(Reference<bfloat16>(plan, workspace, pass));
    case ANNULUS_FLOAT16:
        return use(Reference<float16>(plan, workspace, pass));
    case ANNULUS_DTYPE_NONE:
        break;
    }
}

class ReferenceExecutable final : public Executable {
  public:
    ReferenceExecutable(const Plan &plan, annulus_pass pass) : plan_(plan), pass_(pass) {
        Workspace ledger;
        book(ledger, plan, pass);
        bytes_ = ledger.used();
    }

    std::size_t workspace_bytes() const override { return bytes_; }

    void run(const CallTensors &tensors, const PartialResults &, void *memory, void *) override {
        Workspace workspace(memory);
        with_reference(plan_, workspace, pass_, [&](const auto &reference) {
            if (pass_ == ANNULUS_PASS_FORWARD)
                reference.forward(tensors);
            else
                reference.backward(tensors);
        });
    }

  private:
    const Plan plan_;
    const annulus_pass pass_;
    std::size_t bytes_;
};

Preparation prepare(const Plan &plan, annulus_pass pass, KeyScope, Device &, const Limits &) {
    return {std::make_unique<ReferenceExecutable>(plan, pass)};
}

} // namespace

const Engine reference_engine{
    .id = ANNULUS_ENGINE_REFERENCE,
    .device = ANNULUS_DEVICE_CPU,
    .has_key_scopes = false,
    .prepare = prepare,
    .clear = clear_rows,
};

} // namespace annulus
