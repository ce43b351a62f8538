// SPDX-License-Identifier: Apache-2.0
#include "sgemm_rate.hpp"

#include <cblas.h>

#include <thread>

namespace annulus::cli {

namespace {

void multiply(int n, const std::vector<float> &a, const std::vector<float> &b, std::vector<float> &c) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.0F, a.data(), n, b.data(), n, 0.0F, c.data(), n);
}

} // namespace

SgemmRate::SgemmRate(int threads)
    : threads_(threads), own_threads_(openblas_get_parallel() != 0), size_(!own_threads_  ? 2048
                                                                           : threads <= 8 ? 3072
                                                                                          : 4096) {
    const auto elements = static_cast<std::size_t>(size_) * static_cast<std::size_t>(size_);
    const auto products = static_cast<std::size_t>(own_threads_ ? 1 : threads);
    for (auto *matrices : {&a_, &b_, &c_})
        matrices->assign(products, std::vector<float>(elements, 0.5F));
}

double SgemmRate::measure() {
    const auto multiply_all = [&] { own_threads_ ? multiply_once() : multiply_on_every_thread(); };
    if (rates_.size() == 0)
        multiply_all(); // warms up
    const double seconds = seconds_of(multiply_all);
    const double n = size_;
    const double rate = 2 * n * n * n * static_cast<double>(a_.size()) / seconds;
    rates_.add(rate);
    return rate;
}

void SgemmRate::multiply_once() {
    const int before = openblas_get_num_threads();
    openblas_set_num_threads(threads_);
    multiply(size_, a_[0], b_[0], c_[0]);
    openblas_set_num_threads(before);
}

void SgemmRate::multiply_on_every_thread() {
    std::vector<std::jthread> team;
    for (std::size_t i = 0; i < a_.size(); ++i)
        team.emplace_back([this, i] { multiply(size_, a_[i], b_[i], c_[i]); });
}

std::string SgemmRate::description() const {
    const std::string n = std::to_string(size_);
    const std::string threads = std::to_string(threads_) + (threads_ == 1 ? " thread" : " threads");
    return n + " x " + n + " x " + n + ", " + (own_threads_ ? "one on " : "one on each of ") + threads;
}

} // namespace annulus::cli
