// SPDX-License-Identifier: Apache-2.0
// A thousand calls of a context give the same bits while other contexts keep the device busy.
#include "cuda/cuda_memory.hpp"
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"

#include <gtest/gtest.h>

#include <exception>
#include <stop_token>
#include <string>
#include <thread>

namespace annulus::test {
namespace {

// A context with a stream of its own, and calls of both passes on it.
class User {
  public:
    User(const Problem &problem, std::uint64_t seed)
        : inputs_(random_inputs(problem, seed)), call_(problem, inputs_, memory_, true) {
        const RunOptions options = subject();
        context_ = make_context(make_config(problem, options).get(), options.threads, memory_);
    }

    // Computes again and waits for the device.
    void launch() {
        check(call_.forward(context_.get()));
        check(call_.backward(context_.get()));
        check_cuda(cudaStreamSynchronize(memory_.cuda_stream()));
    }

    Results compute() {
        call_.reset(inputs_);
        launch();
        return call_.results();
    }

  private:
    CudaMemory memory_;
    Inputs inputs_;
    Call call_;
    Context context_;
};

// Makes calls in a thread until it is destroyed. Reads results only at the end, to keep the device busy.
class Load {
  public:
    Load(const Problem &problem, std::uint64_t seed)
        : thread_([problem, seed](const std::stop_token &stop) {
              try {
                  User user(problem, seed);
                  while (!stop.stop_requested())
                      user.launch();
                  user.compute();
              } catch (const std::exception &error) {
                  ADD_FAILURE() << error.what();
              }
          }) {}

  private:
    std::jthread thread_;
};

class UnderLoad : public testing::TestWithParam<annulus_dtype> {};

TEST_P(UnderLoad, RepeatsAreBitEqual) {
    const Problem problem = taken(mixed_problem(GetParam()), subject());
    Problem longer = problem;
    longer.length = 5000;
    User user(problem, 1);
    const Results wanted = user.compute();
    const Load same_sizes(problem, 2), long_calls(longer, 3);
    for (int i = 1; i <= 1000 && !HasFailure(); ++i) {
        SCOPED_TRACE(testing::Message() << "repeat " << i);
        expect_identical(user.compute(), wanted);
    }
}

INSTANTIATE_TEST_SUITE_P(Device, UnderLoad, testing::ValuesIn(subject_dtypes()),
                         [](const auto &dtype) { return std::string(annulus_dtype_name(dtype.param)); });

} // namespace
} // namespace annulus::test
