// SPDX-License-Identifier: Apache-2.0
// Calls of a process whose address space is limited or that cannot start more threads. Each call succeeds or reports
// that memory is missing, and none hangs.
#include "support/compare.hpp"
#include "support/ranks.hpp"
#include "support/run.hpp"

#include "faults/child.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace annulus::test {
namespace {

void check_system(const char *what, int result) {
    if (result != 0)
        throw std::system_error(errno, std::generic_category(), what);
}

// Lowers a soft limit of this process until lift().
class Limit {
  public:
    Limit(int resource, rlim_t value) : resource_(resource) {
        check_system("getrlimit", getrlimit(static_cast<__rlimit_resource>(resource_), &before_));
        set({std::min(value, before_.rlim_max), before_.rlim_max});
    }
    void lift() const { set(before_); }

  private:
    void set(const rlimit &limit) const {
        check_system("setrlimit", setrlimit(static_cast<__rlimit_resource>(resource_), &limit));
    }

    int resource_;
    rlimit before_{};
};

rlim_t address_space_in_use() {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

// Returns true if every byte is 0xFF, as Call leaves outputs.
bool is_untouched(const annulus_tensor &tensor) {
    std::int64_t bytes = annulus_dtype_bits(tensor.dtype) / 8;
    for (int d = 0; d < tensor.ndim; ++d)
        bytes *= tensor.shape[d];
    const auto *const first = static_cast<const unsigned char *>(tensor.data);
    return std::all_of(first, first + bytes, [](unsigned char byte) { return byte == 0xFF; });
}

double distance(const std::vector<double> &got, const std::vector<double> &wanted) {
    std::vector<double> difference(wanted.size());
    std::transform(got.begin(), got.end(), wanted.begin(), difference.begin(), std::minus<>());
    return norm(difference) / norm(wanted);
}

void expect_right(const Results &got, const Results &exact) {
    for (const double error : {distance(got.out, exact.out), distance(got.lse, exact.lse), distance(got.d_q, exact.d_q),
                               distance(got.d_k, exact.d_k), distance(got.d_v, exact.d_v)})
        if (!(error <= tolerance_of(ANNULUS_FLOAT32)))
            throw std::runtime_error("wrong by " + std::to_string(error));
}

const Problem problem = {.length = 571,
                         .heads = 3,
                         .dim = 48,
                         .branches = {{}, {.dilation = 7, .query = ANNULUS_QUERY_RESIDUE}},
                         .dtype = ANNULUS_FLOAT32};

// A thread's context and calls.
class User {
  public:
    User(const Inputs &inputs, const Results &exact)
        : inputs_(inputs), exact_(exact), config_(make_config(problem, ANNULUS_ENGINE_CPU)),
          call_(problem, inputs, host_memory()) {}

    // Runs both passes on a context, which it makes if there is none. Stops when memory is refused.
    void use() {
        passes_ = 0;
        if (!context_) {
            annulus_context *made = nullptr;
            if (!served(annulus_context_create(&made, ANNULUS_DEVICE_CPU, 0)))
                return;
            context_.reset(made);
        }
        if (!served(annulus_context_set_config(context_.get(), config_.get())))
            return;
        check(annulus_context_set_threads(context_.get(), 4));
        if (!served(call_.forward(context_.get())))
            return;
        passes_ = 1;
        if (served(call_.backward(context_.get())))
            passes_ = 2;
    }

    bool done() const { return passes_ == 2; }

    // Checks that results of successful calls are right and that refused calls left their outputs unchanged. Then calls
    // both passes again, without a limit.
    void check_outcome() {
        const Call::Arguments &a = call_.arguments;
        if (passes_ < 1 && !(is_untouched(a.out) && is_untouched(a.lse)))
            throw std::runtime_error("out or lse was written");
        if (passes_ < 2 && !(is_untouched(a.d_q) && is_untouched(a.d_k) && is_untouched(a.d_v)))
            throw std::runtime_error("a gradient was written");
        if (done())
            expect_right(call_.results(), exact_);
        call_.reset(inputs_);
        use();
        if (!done())
            throw std::runtime_error("memory is refused where there is no limit");
        expect_right(call_.results(), exact_);
    }

  private:
    static bool served(annulus_status status) {
        if (status != ANNULUS_ERROR_MEMORY)
            check(status);
        return status == ANNULUS_OK;
    }

    const Inputs &inputs_;
    const Results &exact_;
    Config config_;
    Context context_;
    Call call_;
    int passes_ = 0;
};

// Returns the amounts of address space to leave free.
std::vector<rlim_t> rooms() {
    std::vector<rlim_t> values = {0};
    for (rlim_t room = 1 << 16; room < 1 << 30; room *= 2)
        values.push_back(room);
    return values;
}

class AddressSpace : public testing::TestWithParam<int> {};

TEST_P(AddressSpace, IsServedOrRefused) {
    const int users = GetParam();
    const Inputs inputs = random_inputs(problem, 1);
    const Results exact = run_exact(problem, inputs);
    int served = 0, refused = 0;
    for (const rlim_t room : rooms()) {
        const std::string outcome = in_child([&] {
            std::vector<std::unique_ptr<User>> all;
            for (int i = 0; i < users; ++i)
                all.push_back(std::make_unique<User>(inputs, exact));
            std::vector<std::string> failures(all.size());
            std::latch ready(users), limited(1), done(users), lifted(1);
            std::vector<std::jthread> threads;
            for (std::size_t i = 0; i < all.size(); ++i)
                threads.emplace_back([&, i] {
                    ready.count_down();
                    limited.wait();
                    try {
                        all[i]->use();
                    } catch (const std::exception &error) {
                        failures[i] = error.what();
                    }
                    done.count_down();
                });
            ready.wait();
            const Limit limit(RLIMIT_AS, address_space_in_use() + room);
            limited.count_down();
            done.wait();
            limit.lift();
            const bool all_done = std::all_of(all.begin(), all.end(), [](const auto &user) { return user->done(); });
            for (std::size_t i = 0; i < all.size(); ++i) {
                if (!failures[i].empty())
                    return failures[i];
                all[i]->check_outcome();
            }
            return std::string(all_done ? "served" : "refused");
        });
        served += outcome == "served";
        refused += outcome == "refused";
        EXPECT_TRUE(outcome == "served" || outcome == "refused") << outcome << ", with " << room << " bytes left";
    }
    EXPECT_GT(served, 0);
    EXPECT_GT(refused, 0);
}

INSTANTIATE_TEST_SUITE_P(Limits, AddressSpace, testing::Values(1, 5), [](const testing::TestParamInfo<int> &users) {
    return std::to_string(users.param) + "_users";
});

// ---- Ranks with many shards of a few rows, assigned to the ranks in turn.

constexpr std::int64_t rows_of_shard = 3;

Ranges striped(int shards, int ranks) {
    Ranges ranges{std::vector<std::int64_t>(static_cast<std::size_t>(shards), rows_of_shard), {}};
    for (std::int32_t i = 0; i < shards; ++i)
        ranges.ranks.push_back(i % ranks);
    return ranges;
}

Problem striped_problem(int shards, std::int64_t segment) {
    return {.length = shards * rows_of_shard,
            .heads = 1,
            .dim = 8,
            .branches = {{.segment = segment}},
            .dtype = ANNULUS_FLOAT32};
}

// Returns the outcome of an estimate of rank 1, within 256 MiB.
std::string outcome_of_estimate(int shards, int ranks, std::int64_t segment) {
    return in_child([&] {
        const Problem whole = striped_problem(shards, segment);
        const Context context = make_context(make_config(whole, ANNULUS_ENGINE_CPU).get(), 1);
        const Ranges ranges = striped(shards, ranks);
        const annulus_problem sizes = sizes_of(whole);
        const annulus_shards view = ranges.view(ranks);
        annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
        const Limit limit(RLIMIT_AS, address_space_in_use() + (rlim_t{256} << 20));
        const annulus_status status =
            annulus_estimate_rank(context.get(), &sizes, ANNULUS_PASS_BACKWARD, &view, 1, &estimate);
        limit.lift();
        return status == ANNULUS_OK ? "served"
                                    : annulus_status_name(status) + (": " + std::string(annulus_last_error()));
    });
}

// If segments reach few shards, only those shards cost time.
TEST(Striped, ShardsInReachAreWhatPlansGrowWith) {
    EXPECT_EQ(outcome_of_estimate(4096, 4, 32), "served");
    EXPECT_EQ(outcome_of_estimate(65536, 4096, 32), "served");
}

TEST(Striped, MoreThanAPlanMayTakeIsRefused) {
    const auto expect = [](int shards, const std::string &words) {
        const std::string outcome = outcome_of_estimate(shards, 2, 0);
        EXPECT_EQ(outcome.find("unsupported: " + std::to_string(shards) + " shards"), 0U) << outcome;
        EXPECT_NE(outcome.find(words), std::string::npos) << outcome;
    };
    expect(512, "more than 2097152 steps"); // for all shards together
    expect(16384, "planning for rank 1 takes 268419072 pairs of a sending and a receiving shard; there may be 524288");
}

TEST(Striped, CallsWorkInLittleMemory) {
    constexpr int shards = 2048, ranks = 2;
    const Problem whole = striped_problem(shards, 32);
    const Inputs inputs = random_inputs(whole, 1);
    const Results wanted = run(whole, inputs, {.threads = 1});
    EXPECT_EQ(in_child(
                  [&]() -> std::string {
                      const Limit limit(RLIMIT_AS, address_space_in_use() + (rlim_t{1} << 30));
                      RankOptions options;
                      options.run.threads = 1;
                      expect_right(run_ranges(whole, inputs, options, striped(shards, ranks), make_local_comms(ranks)),
                                   wanted);
                      return "";
                  },
                  60),
              "");
}

// A call has no limit of steps but a limit of pairs.
TEST(Striped, CallsThatTakeTooMuchAreRefused) {
    constexpr int shards = 2048, ranks = 2;
    const Problem whole = striped_problem(shards, 0);
    const Inputs inputs = random_inputs(whole, 1);
    const std::string outcome = in_child([&]() -> std::string {
        const Limit limit(RLIMIT_AS, address_space_in_use() + (rlim_t{1} << 30));
        RankOptions options;
        options.run.threads = 1;
        run_ranges(whole, inputs, options, striped(shards, ranks), make_local_comms(ranks));
        return "served";
    });
    EXPECT_NE(outcome.find("takes 4192256 pairs"), std::string::npos) << outcome; // 1024 * 2047 * 2
}

TEST(Limits, NoMoreThreads) {
    const Inputs inputs = random_inputs(problem, 1);
    const Results exact = run_exact(problem, inputs);
    const std::string outcome = in_child([&]() -> std::string {
        constexpr uid_t nobody = 65534; // the limit does not bind root
        if (geteuid() == 0 && setresuid(nobody, nobody, nobody) != 0)
            return "root cannot become another user";
        const Limit limit(RLIMIT_NPROC, 0);
        try {
            std::thread([] {}).join();
            return "threads can be started";
        } catch (const std::system_error &) {
        }
        expect_right(run(problem, inputs, {.threads = 4}), exact);
        return "";
    });
    if (outcome == "root cannot become another user")
        GTEST_SKIP() << outcome;
    EXPECT_EQ(outcome, "");
}

} // namespace
} // namespace annulus::test
