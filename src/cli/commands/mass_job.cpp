// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/mass_job.hpp"

#include "cli/commands/context.hpp"
#include "cli/devices/mirror.hpp"

#include <algorithm>
#include <iterator>

namespace annulus::cli {

Masses::Masses(const Inputs &inputs) : batch(inputs.q.shape[0]), heads(inputs.q.shape[2]), keys(inputs.k.shape[1]) {}

std::vector<Stretch> Masses::stretches(const std::vector<Range> &ranges) {
    const annulus_tensor all = view(values.data(), ANNULUS_FLOAT64, {batch, heads, keys});
    std::vector<Stretch> stretches;
    for (const Range &range : ranges)
        std::ranges::copy(stretches_of(slice(all, 2, range.start, range.length)), std::back_inserter(stretches));
    return stretches;
}

std::vector<double> Masses::mean_of_heads() const {
    std::vector<double> means(static_cast<std::size_t>(batch * keys));
    const auto n = static_cast<std::size_t>(keys), h = static_cast<std::size_t>(heads);
    for (std::size_t i = 0; i < values.size(); ++i)
        means[i / n / h * n + i % n] += values[i] / static_cast<double>(heads);
    return means;
}

MassJob::MassJob(annulus_context *context, Memory &memory, const Rank &rank, const Inputs &inputs,
                 std::int64_t query_start)
    : context_(context), memory_(memory), rank_(rank), inputs_(inputs), query_start_(query_start),
      batch_(inputs.q.shape[0]), heads_(inputs.q.shape[2]), ranges_(rank.shards(inputs.k.shape[1]).ranges(rank.index)),
      rows_(rank.comm ? rank.shards(inputs.q.shape[1]).rows(rank.index) : inputs.q.shape[1]),
      keys_(rank.shards(inputs.k.shape[1]).rows(rank.index)), sum_dtype_(inputs.dtype_of_sums()),
      entry_flops_(estimate_flops(0, rows_)) {}

double MassJob::flops(bool has_lse) const {
    const std::int64_t step = rows_of_piece(has_lse);
    double flops = 0;
    for (std::int64_t n = 0; n == 0 || n < rows_; n += step)
        flops += estimate_flops(n, std::min(step, rows_ - n));
    return static_cast<double>(batch_) * flops;
}

void MassJob::run(const std::optional<annulus_tensor> &lse, Masses &masses, Progress *progress) {
    Mirror q(memory_, own_rows(inputs_.q, 1), 1), k(memory_, own_rows(inputs_.k, 1), 1);
    std::optional<Mirror> given_lse;
    if (lse)
        given_lse.emplace(memory_, own_rows(*lse, 2), 2);
    q.copy_in();
    k.copy_in();
    if (given_lse)
        given_lse->copy_in();
    const std::int64_t step = rows_of_piece(lse.has_value());
    allocate(lse ? 0 : step);
    rank_.meet(); // from here on only library calls, which report their failure to the other ranks
    for (std::int64_t b = 0; b < batch_; ++b)
        for (std::int64_t n = 0; n == 0 || n < rows_; n += step) {
            const std::int64_t rows = std::min(step, rows_ - n);
            if (progress)
                progress->begin(estimate_flops(n, rows));
            annulus_tensor lse_rows{};
            if (given_lse)
                lse_rows = slice(slice(given_lse->tensor(), 0, b, 1), 2, n, rows);
            run_piece(slice(slice(q.tensor(), 0, b, 1), 1, n, rows), slice(k.tensor(), 0, b, 1),
                      given_lse ? &lse_rows : nullptr, b, n);
            add_to(masses, b);
        }
}

std::vector<annulus_tensor> MassJob::own_rows(const annulus_tensor &tensor, int dimension) const {
    if (!rank_.comm)
        return {tensor};
    std::vector<annulus_tensor> parts;
    for (const Range &range : ranges_)
        parts.push_back(slice(tensor, dimension, range.start, range.length));
    return parts;
}

double MassJob::estimate_flops(std::int64_t n, std::int64_t rows) const {
    annulus_problem problem = inputs_.sizes();
    problem.batch = 1;
    return forward_flops(context_, problem, query_start_ + n, rows, rank_.comm != nullptr);
}

// Returns the query rows of a piece. With several ranks it is all rows, since they must take the same pieces.
std::int64_t MassJob::rows_of_piece(bool has_lse) const {
    const int passes = has_lse ? 1 : 2;
    const Memory::Piece piece = memory_.piece(heads_, largest_dilation(context_));
    const double pieces = rank_.comm ? 1 : passes * entry_flops_ / piece.flops;
    if (pieces <= 1)
        return std::max<std::int64_t>(rows_, 1);
    return (static_cast<std::int64_t>(static_cast<double>(rows_) / pieces) / piece.rows + 1) * piece.rows;
}

// Allocates the masses of a piece and, for forward_rows rows, the results of forward.
void MassJob::allocate(std::int64_t forward_rows) {
    const auto make = [&](annulus_dtype dtype, const Shape &shape, Allocation &memory) {
        annulus_tensor tensor = view(nullptr, dtype, shape);
        memory = memory_.allocate(std::max<std::size_t>(bytes_of(tensor), 1));
        tensor.data = memory.get();
        return tensor;
    };
    mass_ = make(sum_dtype_, {1, heads_, keys_}, mass_memory_);
    piece_mass_.resize(bytes_of(mass_));
    if (forward_rows == 0)
        return;
    out_ = make(inputs_.q.dtype, {1, forward_rows, heads_, inputs_.q.shape[3]}, out_memory_);
    lse_ = make(sum_dtype_, {1, heads_, forward_rows}, lse_memory_);
}

void MassJob::run_piece(const annulus_tensor &q, const annulus_tensor &k, const annulus_tensor *given_lse,
                        std::int64_t b, std::int64_t n) {
    annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
    if (!rank_.comm) {
        options.flags = ANNULUS_CALL_QUERY_WINDOW;
        options.query_start = query_start_ + n;
    }
    inputs_.name_sequences(options, b, 1);
    const annulus_tensor lse = given_lse ? *given_lse : slice(lse_, 2, 0, q.shape[1]);
    if (!given_lse) {
        const annulus_tensor out = slice(out_, 1, 0, q.shape[1]);
        check(annulus_forward(context_, &q, &k, &k, &out, &lse, &options));
    }
    check(annulus_attention_mass(context_, &q, &k, &lse, &mass_, &options));
    memory_.finish();
    memory_.copy_out(piece_mass_.data(), mass_.data, piece_mass_.size());
}

void MassJob::add_to(Masses &masses, std::int64_t b) const {
    const auto add = [&](const auto *piece) {
        for (std::int64_t h = 0; h < heads_; ++h)
            for (const Range &range : ranges_) {
                double *to = masses.values.data() + (b * heads_ + h) * masses.keys + range.start;
                for (std::int64_t i = 0; i < range.length; ++i)
                    to[i] += static_cast<double>(*piece++);
            }
    };
    if (sum_dtype_ == ANNULUS_FLOAT64)
        add(reinterpret_cast<const double *>(piece_mass_.data()));
    else
        add(reinterpret_cast<const float *>(piece_mass_.data()));
}

} // namespace annulus::cli
