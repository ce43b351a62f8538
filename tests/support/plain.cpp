// SPDX-License-Identifier: Apache-2.0
#include "support/plain.hpp"

#include "support/mask.hpp"

#include <cmath>
#include <limits>
#include <numeric>

namespace annulus::test {
namespace {

// Adds up eight columns side by side, so that compilers use vector instructions.
double dot(const double *a, const double *b, std::int32_t dim) {
    constexpr std::int32_t count = 8;
    double sums[count] = {};
    std::int32_t d = 0;
    for (; d + count <= dim; d += count)
        for (std::int32_t i = 0; i < count; ++i)
            sums[i] += a[d + i] * b[d + i];
    for (; d < dim; ++d)
        sums[0] += a[d] * b[d];
    return std::accumulate(sums, sums + count, 0.0);
}

void add(double *to, double factor, const double *row, std::int32_t dim) {
    for (std::int32_t d = 0; d < dim; ++d)
        to[d] += factor * row[d];
}

} // namespace

Results plain(const Problem &problem, const Inputs &inputs, annulus_dtype dtype) {
    const Mask mask(problem);
    const double scale = problem.scale_or_default();
    const std::int32_t dim = problem.dim;
    const auto rounded = [dtype](double x) { return round_to(dtype, x); };
    Results results;
    results.out.assign(problem.q_size(), 0);
    results.d_q.assign(problem.q_size(), 0);
    results.d_k.assign(problem.kv_size(), 0);
    results.d_v.assign(problem.kv_size(), 0);
    results.lse.assign(problem.lse_size(), -std::numeric_limits<double>::infinity());

    std::vector<double> weights;
    for (std::int64_t b = 0; b < problem.batch; ++b)
        for (std::int32_t h = 0; h < problem.heads; ++h) // head by head, since a head's rows fit into a cache
            for (std::int64_t j = 0; j < problem.query_length(); ++j) {
                const Mask::Keys keys = mask.keys(problem.query_start() + j, h);
                if (keys.positions.empty() && keys.padding == 0)
                    continue;
                const std::size_t row = ((b * problem.query_length() + j) * problem.heads + h) * dim;
                const std::size_t statistic = (b * problem.heads + h) * problem.query_length() + j;
                const auto kv_row = [&](std::int64_t m) {
                    return ((b * problem.length + m) * problem.kv() + problem.kv_head(h)) * dim;
                };
                weights.clear();
                double greatest = keys.padding ? 0 : -std::numeric_limits<double>::infinity();
                for (const std::int64_t m : keys.positions) {
                    weights.push_back(rounded(scale * dot(&inputs.q[row], &inputs.k[kv_row(m)], dim)));
                    greatest = std::max(greatest, weights.back());
                }
                // Divides by the sum itself. At large scores LSE has no digits left for the sum's logarithm.
                const double shift = greatest == std::numeric_limits<double>::infinity() ? 0 : greatest;
                double sum = keys.padding ? static_cast<double>(keys.padding) * std::exp(-shift) : 0;
                for (double &weight : weights) {
                    weight = std::exp(weight - shift);
                    sum += weight;
                }
                results.lse[statistic] = shift + std::log(sum);
                for (double &weight : weights)
                    weight = rounded(weight / sum);

                double *const out = &results.out[row];
                for (std::size_t i = 0; i < weights.size(); ++i)
                    add(out, weights[i], &inputs.v[kv_row(keys.positions[i])], dim);
                for (std::int32_t d = 0; d < dim; ++d)
                    out[d] = rounded(out[d]);

                const double *const d_out = &inputs.d_out[row];
                const double delta = rounded(dot(out, d_out, dim));
                const double d_lse = inputs.d_lse.empty() ? 0 : inputs.d_lse[statistic];
                for (std::size_t i = 0; i < weights.size(); ++i) {
                    const std::size_t key = kv_row(keys.positions[i]);
                    const double d_weight = rounded(dot(d_out, &inputs.v[key], dim));
                    const double d_score = rounded(scale * weights[i] * (d_weight - delta + d_lse));
                    add(&results.d_q[row], d_score, &inputs.k[key], dim);
                    add(&results.d_k[key], d_score, &inputs.q[row], dim);
                    add(&results.d_v[key], weights[i], d_out, dim);
                }
            }
    for (std::vector<double> *gradient : {&results.d_q, &results.d_k, &results.d_v})
        for (double &value : *gradient)
            value = rounded(value);
    return results;
}

} // namespace annulus::test
