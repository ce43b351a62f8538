// SPDX-License-Identifier: Apache-2.0
// The arrays of `annulus attend`. The input files serve `annulus map`, too.
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

// The files and their options, as the user gave them.
struct AttendFiles {
    std::string q, k, v, out, lse; // paths; if empty: lse: none, v: the file of K
    std::string dtype;             // the dtype to convert the inputs to; empty: their own
    std::optional<std::int64_t> query_start;
    std::string starts, lengths; // of packed sequences: lists or paths; empty: none

    // Returns the files that both attend and map read.
    std::vector<NamedFile> inputs() const;
};

// Throws if several ranks are asked for and Q has only a part of the rows.
void refuse_ranks_of_a_part(const AttendFiles &files, const RankOptions &ranks);

// The inputs. Each process maps the whole files.
class Inputs {
  public:
    explicit Inputs(const AttendFiles &files);

    void check_unchanged() const;

    // Returns the shape in the file of Q, with or without a batch.
    const Shape &shape_of_q() const { return q_.shape(); }

    annulus_tensor q, k, v; // with a batch
    // Returns the dtype of LSE and of attention masses.
    annulus_dtype dtype_of_sums() const { return q.dtype == ANNULUS_FLOAT64 ? ANNULUS_FLOAT64 : ANNULUS_FLOAT32; }

    // The first row of each packed sequence, and the end of the last one. Empty if there are no packed sequences.
    const std::vector<std::int64_t> &starts() const { return starts_; }

    // Returns the sizes of a call on all batch entries.
    annulus_problem sizes() const;

    // Sets the sequences in `options`, for a call on `entries` batch entries from first_entry on.
    void name_sequences(annulus_call_options &options, std::int64_t first_entry, std::int64_t entries) const;

  private:
    std::vector<const InputArray *> arrays() const;

    InputArray q_, k_;
    std::optional<InputArray> v_;
    std::vector<std::int64_t> starts_, lengths_;
};

// O and LSE. The process of rank 0 has them whole, in files. Every other process has the rows of its own rank in
// memory, range after range.
class Results {
  public:
    Results(const AttendFiles &files, const Inputs &inputs) : files_(files), inputs_(inputs) {}

    // Creates the files, in the process of rank 0.
    void make_files();
    // Allocates memory for the rows of a rank, in any other process.
    void hold(const std::vector<Range> &ranges);

    // Return the rows of a rank, a tensor for each of its `ranges`. lse() is empty if the user wants no LSE.
    std::vector<annulus_tensor> out(const std::vector<Range> &ranges) const { return parts(out_, 1, ranges); }
    std::vector<annulus_tensor> lse(const std::vector<Range> &ranges) const;
    // Returns where the rows of a rank lie, in pieces that are the same in every process. For each range a piece is a
    // batch entry of O. Then follow pieces of LSE, each a head of a batch entry.
    std::vector<Stretch> stretches(const std::vector<Range> &ranges) const;

    // Gives the files, if this process has them, their names.
    void commit();

  private:
    void set_tensors(void *out, void *lse, std::int64_t rows);
    std::vector<annulus_tensor> parts(const annulus_tensor &tensor, int dimension,
                                      const std::vector<Range> &ranges) const;

    const AttendFiles &files_;
    const Inputs &inputs_;
    std::optional<OutputArray> out_file_, lse_file_;
    std::vector<std::byte> out_memory_, lse_memory_;
    annulus_tensor out_{};
    std::optional<annulus_tensor> lse_;
    bool are_whole_ = false; // false: they are the rows of one rank
};

} // namespace annulus::cli
