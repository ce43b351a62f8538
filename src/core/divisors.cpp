// SPDX-License-Identifier: Apache-2.0
// A number is split into primes: small ones by division, the others by Pollard's rho, where Miller and Rabin's test
// says when there is nothing left to split. Its divisors are their products.
#include "core/divisors.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace annulus {

namespace {

__extension__ using Wide = unsigned __int128;

// Products modulo an odd n < 2^63 by Montgomery's method: x stands for x / 2^64 mod n, so that no division is needed.
class Montgomery {
  public:
    explicit Montgomery(std::uint64_t n) : n_(n), inverse_(n), one_(-n % n) {
        // Newton's iteration for 1 / n mod 2^64; n itself is right in the lowest 3 bits.
        for (int bits = 3; bits < 64; bits *= 2)
            inverse_ *= 2 - n * inverse_;
    }

    std::uint64_t one() const { return one_; }
    std::uint64_t minus_one() const { return n_ - one_; }
    // What stands for x < n.
    std::uint64_t of(std::uint64_t x) const { return static_cast<std::uint64_t>(Wide{x} * one_ % n_); }

    std::uint64_t product(std::uint64_t a, std::uint64_t b) const {
        const Wide ab = Wide{a} * b;
        const auto high = static_cast<std::uint64_t>(ab >> 64), low = static_cast<std::uint64_t>(ab);
        const auto taken = static_cast<std::uint64_t>(Wide{low * inverse_} * n_ >> 64);
        return high >= taken ? high - taken : high - taken + n_;
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

// For an odd n above 37.
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
    // No composite number below 2^64 is without a witness among these.
    constexpr std::uint64_t bases[] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
    return std::none_of(std::begin(bases), std::end(bases), is_witness);
}

// A divisor of an odd composite n, neither 1 nor n.
std::uint64_t find_divisor(std::uint64_t n) {
    const Montgomery ring(n);
    for (std::uint64_t c = 1;; ++c) {
        // x -> x^2 + c runs into a cycle modulo every prime divisor, modulo the smallest one first as a rule.
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
        // Many differences to a greatest common divisor; one by one where too many come together.
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

// Adds the prime divisors of n, which has none below `least`, in any order and as often as they divide it.
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
    std::vector<std::int64_t> divisors = {1}; // that are at most the root, of the primes so far
    std::size_t before_prime = 0;             // those without the prime at hand
    std::int64_t last = 0;
    for (const std::int64_t p : prime_divisors(n)) {
        // The same prime once more is multiplied with what it gave the last time.
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
