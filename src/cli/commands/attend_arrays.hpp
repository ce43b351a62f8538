// SPDX-License-Identifier: Apache-2.0
// The arrays of `annulus attend`: its inputs as files hold them, which `annulus map` has too, and where its results go.
#pragma once

#include "cli/arrays/host_tensor.hpp"
#include "cli/arrays/npy.hpp"
#include "cli/ranks/ranks.hpp"

#include <annulus/attention.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace annulus::cli {

// What the user says of them.
struct AttendFiles {
    std::string q, k, v, out, lse; // paths; no LSE, and no V but K's, where empty
    std::string dtype;             // to convert the inputs to; empty: none
    std::optional<std::int64_t> query_start;
    std::string starts, lengths; // of sequences: lists or paths; empty: none

    // Those that are read by attend and by map.
    std::vector<NamedFile> inputs() const;
};

// Refuses several ranks where Q is a part of the rows.
void refuse_ranks_of_a_part(const AttendFiles &files, const RankOptions &ranks);

// The inputs, which each process maps whole.
class Inputs {
  public:
    explicit Inputs(const AttendFiles &files);

    void check_unchanged() const;

    // As it stands in the file of Q: with a batch or without.
    const Shape &shape_of_q() const { return q_.shape(); }

    annulus_tensor q, k, v; // with a batch
    // Of LSE, and of what is summed over queries.
    annulus_dtype dtype_of_sums() const { return q.dtype == ANNULUS_FLOAT64 ? ANNULUS_FLOAT64 : ANNULUS_FLOAT32; }

    // The first row of each packed sequence, and the end of the last; empty where none are named.
    const std::vector<std::int64_t> &starts() const { return starts_; }

    // The sizes of a call on all batch entries.
    annulus_problem sizes() const;

    // Which sequences the rows of some batch entries consist of, for a call on them.
    void name_sequences(annulus_call_options &options, std::int64_t first_entry, std::int64_t entries) const;

  private:
    std::vector<const InputArray *> arrays() const;

    InputArray q_, k_;
    std::optional<InputArray> v_;
    std::vector<std::int64_t> starts_, lengths_;
};

// O and LSE: whole, in files, in the process of rank 0; in any other the rows of its own rank, in memory, one range
// behind the other.
class Results {
  public:
    Results(const AttendFiles &files, const Inputs &inputs) : files_(files), inputs_(inputs) {}

    void make_files();
    void hold(const std::vector<Range> &ranges);

    // The rows of a rank, in the order of `ranges`, which are its own. No LSE where none is wanted.
    std::vector<annulus_tensor> out(const std::vector<Range> &ranges) const { return parts(out_, 1, ranges); }
    std::vector<annulus_tensor> lse(const std::vector<Range> &ranges) const;
    // In the same pieces in every process: of each range a batch entry of O, a head of a batch entry of LSE.
    std::vector<Stretch> stretches(const std::vector<Range> &ranges) const;

    // Gives the files, if they are here, their names.
    void commit();

  private:
    void set_tensors(void *out, void *lse, std::int64_t rows);
    std::vector<annulus_tensor> parts(const annulus_tensor &of, int dimension, const std::vector<Range> &ranges) const;

    const AttendFiles &files_;
    const Inputs &inputs_;
    std::optional<OutputArray> out_file_, lse_file_;
    std::vector<std::byte> out_memory_, lse_memory_;
    annulus_tensor out_{};
    std::optional<annulus_tensor> lse_;
    bool are_whole_ = false; // else they are the rows of one rank
};

} // namespace annulus::cli
