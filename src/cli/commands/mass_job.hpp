// SPDX-License-Identifier: Apache-2.0
// The attention masses of all keys, as `annulus map` finds them.
#pragma once

#include "cli/arrays/host_tensor.hpp"
#include "cli/commands/attend_arrays.hpp"
#include "cli/devices/memory.hpp"
#include "cli/ranks/ranks.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace annulus::cli {

// [B, H, N], in each process whole: 0 but for the keys of its ranks, until the process of rank 0 has collected them.
struct Masses {
    explicit Masses(const Inputs &inputs);

    // Once no rank refuses the sizes, in each process.
    void allocate() { values.resize(static_cast<std::size_t>(batch * heads * keys)); }
    // Those of a rank's keys; in the same pieces in every process.
    std::vector<Stretch> stretches(const std::vector<Range> &ranges);
    // [B, N].
    std::vector<double> mean_of_heads() const;

    std::int64_t batch, heads, keys;
    std::vector<double> values;
};

// A rank's part: the masses of its own keys. A rank that is alone finds them by some query rows at a time, whose masses
// add up; several take a batch entry at a time.
class MassJob {
  public:
    // Refuses sizes that cannot be, before any output exists. The calls check the rest.
    MassJob(annulus_context *context, Memory &memory, const Rank &rank, const Inputs &inputs, std::int64_t query_start);

    // `lse`: of all rows of Q, in the host's memory; without, it is found first.
    void run(const std::optional<annulus_tensor> &lse, Masses &masses);

  private:
    std::vector<annulus_tensor> own_rows(const annulus_tensor &of, int dimension) const;
    // The FLOPs of a forward call on `rows` query rows from n on, of one batch entry.
    double estimate_flops(std::int64_t n, std::int64_t rows) const;
    std::int64_t rows_of_piece(int passes) const;
    void allocate(std::int64_t forward_rows);
    void run_piece(const annulus_tensor &q, const annulus_tensor &k, const annulus_tensor *given_lse, std::int64_t b,
                   std::int64_t n);
    void add_to(Masses &masses, std::int64_t b) const;

    annulus_context *context_;
    Memory &memory_;
    const Rank &rank_;
    const Inputs &inputs_;
    const std::int64_t query_start_, batch_, heads_;
    const std::vector<Range> ranges_; // of its keys
    const std::int64_t rows_, keys_;  // its own
    const annulus_dtype sum_dtype_;
    const double entry_flops_; // of a forward call on its rows of a batch entry
    Allocation mass_memory_, out_memory_, lse_memory_;
    annulus_tensor mass_{}, out_{}, lse_{};
    std::vector<std::byte> piece_mass_; // in the host's memory
};

} // namespace annulus::cli
