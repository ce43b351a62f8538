// SPDX-License-Identifier: Apache-2.0
// The memory that a problem's tensors lie in, the host's or a GPU's, with what is there: copies, a clock, and the rates
// of the hardware at its best.
#pragma once

#include "cli/devices/handles.hpp"
#include "cli/devices/yardstick.hpp"
#include "cli/report/report.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace annulus::cli {

class Memory;

// A part of a memory, given back to it; it lives no longer than the memory.
struct Release {
    Memory *memory;
    void operator()(std::byte *data) const;
};
using Allocation = std::unique_ptr<std::byte, Release>;

class Memory {
  public:
    using Work = std::function<void()>;

    virtual ~Memory() = default;

    // In the host's memory it is there, page by page, before anything is measured.
    virtual Allocation allocate(std::size_t bytes) = 0;
    // Whether calls here take arrays in the host's memory as they are.
    virtual bool is_host() const = 0;
    virtual void copy_in(void *to, const void *from_host, std::size_t bytes) = 0;
    virtual void copy_out(void *to_host, const void *from, std::size_t bytes) = 0;

    // Puts the context's calls in one order with the work of this device.
    virtual void order(annulus_context *context) = 0;
    // Waits for what was begun.
    virtual void finish() = 0;
    virtual double seconds_of(const Work &work) = 0;
    // The memory that `work`, calls of the context, takes beside its tensors; none where the system does not tell.
    virtual std::optional<std::uint64_t> peak_bytes_of(annulus_context *context, const Work &work) = 0;
    // Untimed rounds, after the first, before anything is timed.
    virtual int warm_up_rounds() const = 0;

    // What a long job is cut into: about half a second of work, and query rows in multiples of `rows`. `dilation` is
    // the largest of the pattern's.
    struct Piece {
        double flops;
        std::int64_t rows;
    };
    virtual Piece piece(std::int64_t heads, std::int64_t dilation) const = 0;

    // The dtype of benchmarks that are not told any.
    virtual annulus_dtype fast_dtype() const = 0;
    // The first is a matrix product.
    virtual std::vector<Yardstick> yardsticks(annulus_dtype dtype, bool allow_tf32) = 0;
    // What computes, for a report.
    virtual std::vector<Facts::Fact> facts() const = 0;

  protected:
    friend Release;
    virtual void release(std::byte *data) noexcept = 0;
};

// Runs the yardstick once more; its rate. To be spread over a run, so that the median is the rate the hardware had
// during it.
double measure(Yardstick &yardstick, Memory &memory);

// The host, of which `threads` threads compute, or a GPU. Throws Failure where there is no such device.
std::unique_ptr<Memory> make_memory(const DeviceChoice &device, int threads);

} // namespace annulus::cli
