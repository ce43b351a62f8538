// SPDX-License-Identifier: Apache-2.0
#include "sgemm_yardstick.hpp"

#include <cblas.h>

#include <thread>

namespace annulus::cli {

namespace {

constexpr int size = 2048; // of the square matrices

struct Product {
    std::vector<float> a, b, c;
};

// Each product on one thread: the threads of OpenBLAS's own would go on spinning for a while after theirs, and take
// that time from what is measured next.
void multiply(std::vector<Product> &products) {
    const int before = openblas_get_num_threads();
    openblas_set_num_threads(1);
    {
        std::vector<std::jthread> team;
        team.reserve(products.size());
        for (Product &product : products)
            team.emplace_back([&product] {
                cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, size, size, size, 1.0F, product.a.data(), size,
                            product.b.data(), size, 0.0F, product.c.data(), size);
            });
    }
    openblas_set_num_threads(before);
}

} // namespace

Yardstick sgemm_yardstick(int threads) {
    const std::vector<float> matrix(static_cast<std::size_t>(size) * size, 0.5F);
    const auto products =
        std::make_shared<std::vector<Product>>(static_cast<std::size_t>(threads), Product{matrix, matrix, matrix});
    const std::string n = std::to_string(size);
    return {"sgemm",
            n + " x " + n + " x " + n + ", one on each of " + std::to_string(threads) +
                (threads == 1 ? " thread" : " threads"),
            Yardstick::flops,
            2.0 * size * size * size * threads,
            [products] { multiply(*products); },
            {}};
}

} // namespace annulus::cli
