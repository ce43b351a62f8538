// SPDX-License-Identifier: Apache-2.0
// Shared by the fuzz targets: choices that the input makes, and checks that end the process.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace annulus::fuzz {

// Ends the process unless `good` is true. libFuzzer then reports the input.
#define EXPECT(good, ...)                                                                                              \
    do {                                                                                                               \
        if (!(good)) {                                                                                                 \
            std::fprintf(stderr, "%s:%d: not so: %s: ", __FILE__, __LINE__, #good);                                    \
            std::fprintf(stderr, __VA_ARGS__);                                                                         \
            std::fputc('\n', stderr);                                                                                  \
            std::abort();                                                                                              \
        }                                                                                                              \
    } while (false)

class Input {
  public:
    Input(const std::uint8_t *data, std::size_t size) : bytes_(data, size), wildness_(below(4)) {}

    FuzzedDataProvider &bytes() { return bytes_; }
    bool is_empty() { return bytes_.remaining_bytes() == 0; }

    // Returns 0 … count - 1; 0 after the end of the input.
    int below(int count) { return bytes_.ConsumeIntegralInRange(0, count - 1); }
    // Returns true once in `count` times, never after the end of the input.
    bool once_in(int count) { return below(count) == count - 1; }
    // Returns true if the next value may be illegal. The input says how often; in a quarter of all inputs it is never.
    bool is_wild() {
        constexpr int rates[] = {0, 64, 16, 4};
        return wildness_ > 0 && once_in(rates[wildness_]);
    }

    // Returns a number from low to high; sometimes any number, mostly an extreme one.
    std::int64_t number(std::int64_t low, std::int64_t high) {
        return is_wild() ? any_number() : bytes_.ConsumeIntegralInRange(low, high);
    }
    std::int64_t any_number() {
        constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
        constexpr std::int64_t numbers[] = {0,
                                            -1,
                                            1,
                                            2,
                                            -2,
                                            3,
                                            7,
                                            255,
                                            256,
                                            4095,
                                            4096,
                                            4097,
                                            65535,
                                            65536,
                                            65537,
                                            (1LL << 31) - 2,
                                            (1LL << 31) - 1,
                                            1LL << 31,
                                            -(1LL << 31),
                                            1LL << 32,
                                            (1LL << 40) + 1,
                                            3037000499, // the square root of the largest number
                                            1LL << 53,
                                            1LL << 61,
                                            1LL << 62,
                                            (1LL << 62) - 1,
                                            largest,
                                            largest - 1,
                                            largest / 3,
                                            -largest,
                                            -largest - 1};
        const int count = sizeof numbers / sizeof *numbers;
        const int chosen = below(count + 2);
        return chosen < count ? numbers[chosen] : bytes_.ConsumeIntegral<std::int64_t>();
    }
    std::int32_t number32(std::int32_t low, std::int32_t high) { return static_cast<std::int32_t>(number(low, high)); }
    // Returns an enumerator from first to last; sometimes a value that is none of them.
    template <class Enum> Enum choice(Enum first, Enum last) {
        return static_cast<Enum>(number32(static_cast<std::int32_t>(first), static_cast<std::int32_t>(last)));
    }
    double real() {
        constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
        constexpr double numbers[] = {0.25, 1, -1, 0, -0.0, 1e-36, 1e36, 1e-37, 1e37, -1e36, 5e-324, 1e300, inf, nan};
        const int count = sizeof numbers / sizeof *numbers;
        const int chosen = below(count + 1);
        return chosen < count ? numbers[chosen] : bytes_.ConsumeFloatingPoint<double>();
    }

  private:
    FuzzedDataProvider bytes_;
    const int wildness_;
};

// Makes numbers that the fuzzer need not choose: SplitMix64.
class Numbers {
  public:
    explicit Numbers(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    // Returns a number from -1 to 1, in steps that every dtype represents exactly.
    double real() { return static_cast<double>(static_cast<int>(next() % 129) - 64) / 64; }

  private:
    std::uint64_t state_;
};

} // namespace annulus::fuzz
