// SPDX-License-Identifier: Apache-2.0
// One pass over all branches visits keys of nested branches once. But its cells are as short as the shortest segments:
// where a few units of a cell meet many times the keys of the others, these wait in most steps of their tile. Then two
// passes can take less time: one over the more dilated branches, with longer cells, which leaves float32 sums of its
// rows, and one over the others, which adds these to its own and writes all rows.
#pragma once

#include "cuda/fused/plan/launch_plan.hpp"

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

namespace annulus {

// A pass of linear order, without classes of residues, in two: after its `less_dilated` least dilated branches. None
// where that cannot be: either would be no pass, or the one over these branches leaves rows out.
std::optional<std::vector<PlannedGrid>> cut_after(int less_dilated, const PlannedGrid &whole, const Plan &plan,
                                                  GridOf what, const KernelShape &shape);

// Where passes are cut on a device, kept from call to call: to find out takes longer than all other planning.
class PassCuts {
  public:
    // Cuts the only one of `passes` in two, if that is expected to save time on the device's multiprocessors. Kernels
    // of the same shape take the same time, whatever they compute.
    void cut(std::vector<PlannedGrid> &passes, const Plan &plan, GridOf what, const KernelShape &shape,
             int multiprocessors);

  private:
    struct Entry {
        TileGrid whole;
        KernelShape shape;
        int less_dilated; // as find_cut() found
    };
    int find(const PlannedGrid &whole, const Plan &plan, GridOf what, const KernelShape &shape, int multiprocessors);

    std::array<Entry, 16> entries_;
    std::size_t count_ = 0, next_ = 0;
};

} // namespace annulus
