// SPDX-License-Identifier: Apache-2.0
#include "cli/devices/sgemm_yardstick.hpp"

#include "cli/devices/loaded_library.hpp"

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace annulus::cli {

namespace {

constexpr int side = 2048; // of the square matrices

struct Matrices {
    std::vector<float> a, b, c;
};

// OpenBLAS, loaded on demand. It starts threads and takes address space when it is loaded, and no other command needs
// it.
class OpenBlas {
  public:
    OpenBlas() {
        const LoadedLibrary library("libopenblas.so.0", "bench compares with the sgemm of OpenBLAS");
        library.find(threads, "openblas_get_num_threads");
        library.find(set_threads, "openblas_set_num_threads");
        library.find(sgemm, "cblas_sgemm");
    }

    int (*threads)();
    void (*set_threads)(int count);
    void (*sgemm)(int order, int transposed_a, int transposed_b, int m, int n, int k, float alpha, const float *a,
                  int lda, const float *b, int ldb, float beta, float *c, int ldc);
    // Constants of CBLAS.
    static constexpr int row_major = 101, not_transposed = 111;
};

// Computes each product on one thread of our own. OpenBLAS's threads would spin for a while after a product and take
// that time from the next measurement.
void multiply(const OpenBlas &blas, std::vector<Matrices> &products) {
    const int before = blas.threads();
    blas.set_threads(1);
    {
        std::vector<std::jthread> team;
        team.reserve(products.size());
        for (Matrices &product : products)
            team.emplace_back([&] {
                blas.sgemm(OpenBlas::row_major, OpenBlas::not_transposed, OpenBlas::not_transposed, side, side, side,
                           1.0F, product.a.data(), side, product.b.data(), side, 0.0F, product.c.data(), side);
            });
    }
    blas.set_threads(before);
}

} // namespace

Yardstick sgemm_yardstick(int threads) {
    const OpenBlas blas;
    const std::vector<float> matrix(static_cast<std::size_t>(side) * side, 0.5F);
    const auto products =
        std::make_shared<std::vector<Matrices>>(static_cast<std::size_t>(threads), Matrices{matrix, matrix, matrix});
    const std::string n = std::to_string(side);
    return {"sgemm",
            n + " x " + n + " x " + n + ", one on each of " + std::to_string(threads) +
                (threads == 1 ? " thread" : " threads"),
            Yardstick::flops,
            2.0 * side * side * side * threads,
            [blas, products] { multiply(blas, *products); },
            {}};
}

} // namespace annulus::cli
