// SPDX-License-Identifier: Apache-2.0
#include "sgemm_rate.hpp"

#include <cblas.h>

#include <thread>

namespace annulus::cli {

namespace {

constexpr int size = 2048; // of the square matrices

} // namespace

SgemmRate::SgemmRate(int threads) {
    const std::vector<float> matrix(static_cast<std::size_t>(size) * size, 0.5F);
    products_.assign(static_cast<std::size_t>(threads), {matrix, matrix, matrix});
}

double SgemmRate::measure() {
    if (rates_.size() == 0)
        multiply(); // warms up
    const double seconds = seconds_of([&] { multiply(); });
    const double n = size;
    const double rate = 2 * n * n * n * static_cast<double>(products_.size()) / seconds;
    rates_.add(rate);
    return rate;
}

// Each product on one thread: the threads of OpenBLAS's own would go on spinning for a while after theirs, and take
// that time from what is measured next.
void SgemmRate::multiply() {
    const int before = openblas_get_num_threads();
    openblas_set_num_threads(1);
    {
        std::vector<std::jthread> team;
        for (Product &product : products_)
            team.emplace_back([&product] {
                cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, size, size, size, 1.0F, product.a.data(), size,
                            product.b.data(), size, 0.0F, product.c.data(), size);
            });
    }
    openblas_set_num_threads(before);
}

std::string SgemmRate::description() const {
    const std::string n = std::to_string(size), threads = std::to_string(products_.size());
    return n + " x " + n + " x " + n + ", one on each of " + threads + (products_.size() == 1 ? " thread" : " threads");
}

} // namespace annulus::cli
