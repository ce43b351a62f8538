// SPDX-License-Identifier: Apache-2.0
#include "cli/devices/host_memory.hpp"

#include "cli/devices/sgemm_yardstick.hpp"

#include <algorithm>
#include <bit>
#include <fstream>
#include <limits>
#include <malloc.h>
#include <string>
#include <sys/utsname.h>

namespace annulus::cli {

namespace {

// Returns a field of /proc/self/status in bytes, such as VmHWM, the peak of the process's memory.
std::optional<std::uint64_t> memory_status(const std::string &field) {
    std::ifstream status("/proc/self/status");
    std::string name;
    std::uint64_t kibibytes = 0;
    while (status >> name) {
        if (name == field + ":")
            return status >> kibibytes ? std::optional(kibibytes * 1024) : std::nullopt;
        status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    }
    return std::nullopt;
}

// Returns text such as "AMD EPYC 7763 64-Core Processor", or the architecture if the system tells no name, as most Arm
// systems.
std::string processor_name() {
    std::ifstream processors("/proc/cpuinfo");
    for (std::string line; std::getline(processors, line);)
        if (const std::size_t colon = line.find(": "); line.starts_with("model name") && colon != std::string::npos)
            return line.substr(colon + 2);
    utsname system{};
    return uname(&system) == 0 ? system.machine : "unknown";
}

class HostMemory : public Memory {
  public:
    explicit HostMemory(int threads) : threads_(threads) {}

    Allocation allocate(std::size_t bytes) override { return {new std::byte[bytes](), {this}}; }

    bool is_host() const override { return true; }

    // memcpy() must not be given the null pointer of an empty vector, even for 0 bytes.
    void copy_in(void *to, const void *from_host, std::size_t bytes) override {
        std::copy_n(static_cast<const std::byte *>(from_host), bytes, static_cast<std::byte *>(to));
    }
    void copy_out(void *to_host, const void *from, std::size_t bytes) override { copy_in(to_host, from, bytes); }

    void order(annulus_context *) override {}
    void finish() override {}

    double seconds_of(const Work &work) override { return cli::seconds_of(work); }

    // Returns by how much the process's memory rises. First it gives freed memory back to the system, and resets the
    // high-water mark to the present use.
    std::optional<std::uint64_t> peak_bytes_of(annulus_context *, const Work &work) override {
        malloc_trim(0);
        const bool reset = static_cast<bool>(std::ofstream("/proc/self/clear_refs") << "5" << std::flush);
        const std::optional<std::uint64_t> before = memory_status("VmRSS");
        work();
        const std::optional<std::uint64_t> peak = memory_status("VmHWM");
        if (!reset || !before || !peak)
            return std::nullopt;
        return *peak - std::min(*peak, *before);
    }

    int warm_up_rounds() const override { return 0; }

    // Query windows that begin at multiples of the CPU engine's blocks give the same bits. A block has at most 128 ·
    // dilation rows, rounded up to a power of two, and at most 16384. A piece has several blocks for each thread.
    Piece piece(std::int64_t heads, std::int64_t dilation) const override {
        constexpr std::int64_t max_block_length = 16384, min_block_count = 8;
        const auto block = static_cast<std::int64_t>(std::bit_ceil(
            static_cast<std::uint64_t>(128 * std::clamp<std::int64_t>(dilation, 1, max_block_length / 128))));
        const std::int64_t blocks = (min_block_count * threads_ + heads - 1) / std::max<std::int64_t>(heads, 1);
        return {2e10 * threads_, block * std::max<std::int64_t>(blocks, 1)};
    }

    annulus_dtype fast_dtype() const override { return ANNULUS_FLOAT32; }

    std::vector<Yardstick> yardsticks(annulus_dtype, bool) override { return {sgemm_yardstick(threads_)}; }

    std::vector<Facts::Fact> facts() const override {
        return {{{"processor", "processor"}, text_cell(processor_name())},
                {{"threads", "threads"}, count_cell(threads_)}};
    }

  protected:
    void release(std::byte *data) noexcept override { delete[] data; }

  private:
    int threads_;
};

} // namespace

std::unique_ptr<Memory> make_host_memory(int threads) {
    return std::make_unique<HostMemory>(threads);
}

} // namespace annulus::cli
