// SPDX-License-Identifier: Apache-2.0
// The memory of a problem's tensors, the host's or a GPU's, with copies, a clock, and the yardsticks of its hardware.
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

// A part of a memory. Its deleter releases it; the memory must live longer.
struct Release {
    Memory *memory;
    void operator()(std::byte *data) const;
};
using Allocation = std::unique_ptr<std::byte, Release>;

class Memory {
  public:
    using Work = std::function<void()>;

    virtual ~Memory() = default;

    // Allocates bytes. In the host's memory all pages exist before anything is measured.
    virtual Allocation allocate(std::size_t bytes) = 0;
    // True if calls on this device use arrays in the host's memory directly.
    virtual bool is_host() const = 0;
    virtual void copy_in(void *to, const void *from_host, std::size_t bytes) = 0;
    virtual void copy_out(void *to_host, const void *from, std::size_t bytes) = 0;

    // Orders the context's calls with the other work of this device.
    virtual void order(annulus_context *context) = 0;
    // Waits for all work begun.
    virtual void finish() = 0;
    virtual double seconds_of(const Work &work) = 0;
    // Returns the memory that `work`, calls of the context, uses beyond its tensors. Returns nothing if the system does
    // not tell.
    virtual std::optional<std::uint64_t> peak_bytes_of(annulus_context *context, const Work &work) = 0;
    // Returns the number of untimed rounds after the first call.
    virtual int warm_up_rounds() const = 0;

    // The size of the pieces of a long job: about half a second of work, and query rows in multiples of `rows`.
    // `dilation` is the largest of the pattern.
    struct Piece {
        double flops;
        std::int64_t rows;
    };
    virtual Piece piece(std::int64_t heads, std::int64_t dilation) const = 0;

    // Returns the default dtype of benchmarks.
    virtual annulus_dtype fast_dtype() const = 0;
    // Returns the yardsticks. The first is a matrix product.
    virtual std::vector<Yardstick> yardsticks(annulus_dtype dtype, bool allow_tf32) = 0;
    // Returns the hardware that computes, for a report.
    virtual std::vector<Facts::Fact> facts() const = 0;

  protected:
    friend Release;
    virtual void release(std::byte *data) noexcept = 0;
};

// Runs the yardstick once more and returns its rate. Spread these calls over a run, so that the median is the
// hardware's rate during the run.
double measure(Yardstick &yardstick, Memory &memory);

// Makes the memory of the host, with `threads` threads that compute, or of a GPU. Throws Failure if there is no such
// device.
std::unique_ptr<Memory> make_memory(const DeviceChoice &device, int threads);

} // namespace annulus::cli
