// SPDX-License-Identifier: Apache-2.0
#include "support/mass.hpp"

#include "support/compare.hpp"
#include "support/mask.hpp"
#include "support/sequences.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace annulus::test {
namespace {

double dot(const double *a, const double *b, std::int32_t count) {
    double sum = 0;
    for (std::int32_t d = 0; d < count; ++d)
        sum += a[d] * b[d];
    return sum;
}

// Adds the probabilities of one query of a sequence to `mass`, which holds the masses of the sequence's keys.
void add_probabilities(const Problem &p, const Inputs &inputs, const Mask::Keys &keys, std::int64_t b, std::int32_t h,
                       std::int64_t row, double *mass) {
    const double *const q = &inputs.q[((b * p.query_length() + row) * p.heads + h) * p.dim];
    std::vector<double> scores;
    double largest = keys.padding > 0 ? 0 : -INFINITY;
    for (const std::int64_t m : keys.positions) {
        const double *const k = &inputs.k[((b * p.length + m) * p.kv() + p.kv_head(h)) * p.dim];
        scores.push_back(p.scale_or_default() * dot(q, k, p.dim));
        largest = std::max(largest, scores.back());
    }
    double sum = keys.padding > 0 ? static_cast<double>(keys.padding) * std::exp(-largest) : 0;
    for (const double score : scores)
        sum += std::exp(score - largest);
    for (std::size_t i = 0; i < scores.size(); ++i)
        mass[keys.positions[i]] += std::exp(scores[i] - largest) / sum;
}

} // namespace

std::vector<double> mass_by_definition(const Problem &problem, const Inputs &inputs) {
    std::vector<double> mass(static_cast<std::size_t>(problem.batch * problem.heads * problem.length));
    for (const SequenceRows &rows : sequences_of(problem)) {
        const Problem own = rows.cut(problem);
        const Inputs own_inputs = rows.cut(problem, inputs);
        const Mask mask(own);
        for (std::int32_t h = 0; h < own.heads; ++h)
            for (std::int64_t row = 0; row < own.query_length(); ++row) {
                const Mask::Keys keys = mask.keys(own.query_start() + row, h);
                for (std::int64_t b = 0; b < own.batch; ++b)
                    add_probabilities(
                        own, own_inputs, keys, b, h, row,
                        &mass[((rows.first_batch + b) * problem.heads + h) * problem.length + rows.start]);
            }
    }
    return mass;
}

void expect_mass(const Problem &problem, const std::vector<double> &mass, const std::vector<double> &exact) {
    expect_near("mass", mass, exact, tolerance_of(problem.dtype));
    for (std::size_t i = 0; i < exact.size(); ++i)
        ASSERT_TRUE(exact[i] != 0 || mass[i] == 0) << mass[i] << " at " << i << ", to which nobody attends";
}

} // namespace annulus::test
