// SPDX-License-Identifier: Apache-2.0
// How long the kernels of a pass take on a GPU, predicted from the pairs that they compute.
//
//   launches + (pairs computed + pairs' worth of each query) * FLOPs of a pair / FLOP/s + bytes of rows / (bytes/s)
//
// A key that several branches give a query is computed once, so the pairs computed are fewer than those counted. Where
// causality or a window hides keys, kernels compute some more, since they compute whole blocks. The constants are in
// tuning.hpp.
#pragma once

#include "cli/commands/tuning.hpp"
#include "cli/devices/gpu_models.hpp"

#include <annulus/annulus.h>

#include <optional>
#include <vector>

namespace annulus::cli {

// What a branch asks of a rank, over batch and heads.
struct BranchWork {
    double pairs;   // as an estimate counts them
    double queries; // that have keys
    double covered; // the share of the pairs that another branch has, too
    int bounds;     // on how many sides of a query causality or a window hides keys of its segment
};

// Returns BranchWork::bounds.
int bounds_of(const annulus_branch &branch, bool causal);

// Returns for each branch of a config the share of its pairs that one other branch has as well. `length`: of the
// sequence. Branches along a curve share nothing.
std::vector<double> covered_shares(const std::vector<annulus_branch> &branches, std::int64_t length,
                                   std::int32_t heads);

// Returns the share of a rank's rows that are queries of a branch.
double query_share(const annulus_branch &branch, std::int32_t heads);

// Returns the seconds of a pass. `tensor_bytes` are all bytes of the rank's tensors, of which the kernels read the
// share `read_share`. Returns nothing if the engine was not measured.
std::optional<double> kernel_seconds(const GpuModel &model, annulus_engine engine, bool allow_tf32,
                                     const annulus_problem &problem, annulus_pass pass,
                                     const std::vector<BranchWork> &branches, double tensor_bytes, double read_share);

} // namespace annulus::cli
