// SPDX-License-Identifier: Apache-2.0
// Where a problem's tensors lie, the host's memory or a GPU's: memory, copies, a clock, and what the hardware there
// does at its best.
#pragma once

#include "handles.hpp"
#include "report.hpp"
#include "sample.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace annulus::cli {

class Place;

// Memory of a place, given back to it; no longer than the place lives.
struct Release {
    Place *place;
    void operator()(std::byte *memory) const;
};
using Memory = std::unique_ptr<std::byte, Release>;

// Work of a known size that the hardware does as fast as it can: what the rates of cases are held against.
struct Yardstick {
    struct Unit {
        const char *key, *text;
    };
    static constexpr Unit flops = {"flops_per_second", "FLOP/s"};
    static constexpr Unit bytes = {"bytes_per_second", "B/s"};

    std::string name;
    std::string description;
    Unit unit;
    double amount; // FLOPs or bytes
    std::function<void()> work;
    Sample rates; // all measurements
};

class Place {
  public:
    using Work = std::function<void()>;

    virtual ~Place() = default;

    // In the host's memory it is there, page by page, before anything is measured.
    virtual Memory allocate(std::size_t bytes) = 0;
    // Whether calls here take arrays in the host's memory as they are.
    virtual bool is_host() const = 0;
    virtual void copy_in(void *to, const void *from_host, std::size_t bytes) = 0;
    virtual void copy_out(void *to_host, const void *from, std::size_t bytes) = 0;

    // Puts the context's calls in one order with the work of this place.
    virtual void order(annulus_context *context) = 0;
    // Waits for what was begun.
    virtual void finish() = 0;
    virtual double seconds_of(const Work &work) = 0;
    // The memory that `work`, calls of the context, takes beside its tensors; none where the system does not tell.
    virtual std::optional<std::uint64_t> peak_bytes_of(annulus_context *context, const Work &work) = 0;
    // Untimed rounds, after the first, before anything is timed.
    virtual int warm_up_rounds() const = 0;

    // What a long job is cut into: about a second of work, and query rows in multiples of `rows`.
    struct Piece {
        double flops;
        std::int64_t rows;
    };
    virtual Piece piece() const = 0;

    // The dtype of benchmarks that are not told any.
    virtual annulus_dtype fast_dtype() const = 0;
    // The first is a matrix product.
    virtual std::vector<Yardstick> yardsticks(annulus_dtype dtype, bool allow_tf32) = 0;
    // What computes, for a report.
    virtual Facts::Fact fact() const = 0;

  protected:
    friend Release;
    virtual void release(std::byte *memory) noexcept = 0;
};

// Runs the yardstick once more; its rate. To be spread over a run, so that the median is the rate the hardware had
// during it.
double measure(Yardstick &yardstick, Place &place);

// The host, of which `threads` threads compute, or a GPU. Throws Failure where there is no such device.
std::unique_ptr<Place> make_place(const DeviceChoice &device, int threads);

} // namespace annulus::cli
