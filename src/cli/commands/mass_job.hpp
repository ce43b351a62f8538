// SPDX-License-Identifier: Apache-2.0
// Computes the attention masses of all keys for `annulus map`.
#pragma once

#include "cli/arrays/host_tensor.hpp"
#include "cli/commands/attend_arrays.hpp"
#include "cli/devices/memory.hpp"
#include "cli/ranks/ranks.hpp"
#include "cli/report/progress.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace annulus::cli {

// The masses [B, H, N]. Each process has the whole array and fills in the keys of its ranks. The rest is 0 until the
// process of rank 0 collects it.
struct Masses {
    explicit Masses(const Inputs &inputs);

    // Allocates the array. Each process calls it after every rank has accepted the sizes.
    void allocate() { values.resize(static_cast<std::size_t>(batch * heads * keys)); }
    // Returns where the masses of a rank's keys lie, in pieces that are the same in every process.
    std::vector<Stretch> stretches(const std::vector<Range> &ranges);
    // Returns the mean over the heads, [B, N].
    std::vector<double> mean_of_heads() const;

    std::int64_t batch, heads, keys;
    std::vector<double> values;
};

// Computes the masses of a rank's own keys. If there is one rank, it takes some query rows at a time and adds up the
// masses. Several ranks take a batch entry at a time.
class MassJob {
  public:
    // Throws if the sizes are impossible, before any output exists. The calls check everything else.
    MassJob(annulus_context *context, Memory &memory, const Rank &rank, const Inputs &inputs, std::int64_t query_start);

    // Returns the FLOPs of the pieces of run(), for Progress.
    double flops(bool has_lse) const;

    // `lse` holds all rows of Q in the host's memory. Without it, forward computes it first. `progress` may be null.
    void run(const std::optional<annulus_tensor> &lse, Masses &masses, Progress *progress);

  private:
    std::vector<annulus_tensor> own_rows(const annulus_tensor &tensor, int dimension) const;
    // Estimates the FLOPs of a forward call on the `rows` query rows from row n on, of one batch entry.
    double estimate_flops(std::int64_t n, std::int64_t rows) const;
    std::int64_t rows_of_piece(bool has_lse) const;
    void allocate(std::int64_t forward_rows);
    void run_piece(const annulus_tensor &q, const annulus_tensor &k, const annulus_tensor *given_lse, std::int64_t b,
                   std::int64_t n);
    void add_to(Masses &masses, std::int64_t b) const;

    annulus_context *context_;
    Memory &memory_;
    const Rank &rank_;
    const Inputs &inputs_;
    const std::int64_t query_start_, batch_, heads_;
    const std::vector<Range> ranges_; // of this rank's keys
    const std::int64_t rows_, keys_;  // on this rank
    const annulus_dtype sum_dtype_;
    const double entry_flops_; // of forward on this rank's rows of one batch entry
    Allocation mass_memory_, out_memory_, lse_memory_;
    annulus_tensor mass_{}, out_{}, lse_{};
    std::vector<std::byte> piece_mass_; // in the host's memory
};

} // namespace annulus::cli
