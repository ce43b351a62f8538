// SPDX-License-Identifier: Apache-2.0
// Divisors are products of primes. Small primes are found by trial division, large ones by Pollard's rho. Miller and
// Rabin's test says when a factor is prime.
#include "core/divisors.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace annulus {

namespace {

__extension__ using UnsignedWide = unsigned __int128;

// Multiplies modulo an odd n < 2^63 by Montgomery's method: x stands for x / 2^64 mod n, so that no division is needed.
class Montgomery {
  public:
    explicit Montgomery(std::uint64_t n) : n_(n), inverse_(n), one_(-n % n) {
        // Newton's iteration for 1 / n mod 2^64; n itself is right in the lowest 3 bits.
        for (int bits = 3; bits < 64; bits *= 2)
            inverse_ *= 2 - n * inverse_;
    }

    std::uint64_t one() const { return one_; }
    std::uint64_t minus_one() const { return n_ - one_; }
    // Returns the number that stands for x, for x < n.
    std::uint64_t of(std::uint64_t x) const { return static_cast<std::uint64_t>(UnsignedWide{x} * one_ % n_); }

    std::uint64_t product(std::uint64_t a, std::uint64_t b) const {
        const UnsignedWide ab = UnsignedWide{a} * b;
        const auto high = static_cast<std::uint64_t>(ab >> 64), low = static_cast<std::uint64_t>(ab);
        const auto reduction = static_cast<std::uint64_t>(UnsignedWide{low * inverse_} * n_ >> 64);
        return high >= reduction ? high - reduction : high - reduction + n_;
    }

    std::uint64_t power(std::uint64_t base, std::uint64_t exponent) const {
        std::uint64_t result = one_;
        for (; exponent != 0; exponent /= 2) {
            if (exponent % 2 != 0)
                result = product(result, base);
            base = product(base, base);
        }
        return result;
    }

  private:
    std::uint64_t n_, inverse_, one_;
};

// True if n is prime, for an odd n above 37.
bool is_prime(std::uint64_t n) {
    const Montgomery ring(n);
    std::uint64_t odd = n - 1;
    int twos = 0;
    for (; odd % 2 == 0; odd /= 2)
        ++twos;
    const auto is_witness = [&](std::uint64_t base) {
        std::uint64_t x = ring.power(ring.of(base), odd);
        if (x == ring.one())
            return false;
        for (int i = 0; i < twos; ++i, x = ring.product(x, x))
            if (x == ring.minus_one())
                return false;
        return true;
    };
    // Every composite number below 2^64 has a witness among these bases.
    constexpr std::uint64_t bases[] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
    return std::none_of(std::begin(bases), std::end(bases), is_witness);
}

// Returns a divisor of an odd composite n that is neither 1 nor n.
std::uint64_t find_divisor(std::uint64_t n) {
    const Montgomery ring(n);
    for (std::uint64_t c = 1;; ++c) {
        // x -> x^2 + c enters a cycle modulo every prime divisor; usually it does so first modulo the smallest one.
        const auto next = [&](std::uint64_t x) {
            const std::uint64_t square = ring.product(x, x);
            return square >= n - c ? square - (n - c) : square + c;
        };
        std::uint64_t slow = 2, fast = 2;
        const auto difference = [&] {
            slow = next(slow);
            fast = next(next(fast));
            return slow > fast ? slow - fast : fast - slow;
        };
        // Takes one greatest common divisor for many differences. If it is n, goes through the differences one by one.
        constexpr int together = 256;
        std::uint64_t divisor = 1;
        while (divisor == 1) {
            const std::uint64_t slow_before = slow, fast_before = fast;
            std::uint64_t product = 1;
            for (int i = 0; i < together; ++i)
                product = ring.product(product, difference());
            divisor = std::gcd(product, n);
            if (divisor != n)
                continue;
            slow = slow_before;
            fast = fast_before;
            do
                divisor = std::gcd(difference(), n);
            while (divisor == 1);
        }
        if (divisor != n)
            return divisor;
    }
}

// Adds the prime divisors of n, in any order and with multiplicity. n has no prime divisor below `least`.
void add_primes(std::uint64_t n, std::uint64_t least, std::vector<std::int64_t> &primes) {
    if (n == 1)
        return;
    if (n < least * least || is_prime(n)) {
        primes.push_back(static_cast<std::int64_t>(n));
        return;
    }
    const std::uint64_t divisor = find_divisor(n);
    add_primes(divisor, least, primes);
    add_primes(n / divisor, least, primes);
}

std::vector<std::int64_t> prime_divisors(std::int64_t n) {
    std::vector<std::int64_t> primes;
    constexpr std::int64_t small = 256;
    for (std::int64_t p = 2; p < small; ++p)
        for (; n % p == 0; n /= p)
            primes.push_back(p);
    add_primes(static_cast<std::uint64_t>(n), small, primes);
    std::sort(primes.begin(), primes.end());
    return primes;
}

std::int64_t root_of(std::int64_t n) {
    auto root = static_cast<std::int64_t>(std::sqrt(static_cast<double>(n)));
    while (root > n / root)
        --root;
    while (root + 1 <= n / (root + 1))
        ++root;
    return root;
}

} // namespace

std::int64_t largest_divisor_to_root(std::int64_t n) {
    const std::int64_t root = root_of(n);
    std::vector<std::int64_t> divisors = {1}; // divisors up to the root, made of the primes so far
    std::size_t before_prime = 0;             // divisors that were there before the current prime
    std::int64_t last = 0;
    for (const std::int64_t p : prime_divisors(n)) {
        // If the prime repeats, only the divisors that its last occurrence added are multiplied by it.
        const std::size_t from = p == last ? before_prime : 0, end = divisors.size();
        for (std::size_t i = from; i < end; ++i)
            if (divisors[i] <= root / p)
                divisors.push_back(divisors[i] * p);
        before_prime = end;
        last = p;
    }
    return *std::max_element(divisors.begin(), divisors.end());
}

} // namespace annulus
