// SPDX-License-Identifier: Apache-2.0
// Ranks as threads over the local transport, each of which may bring something else to a call than the others.
#pragma once

#include "support/ranks.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace annulus::test {

constexpr int ranks = 3;
constexpr annulus_pass passes[] = {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD};

// Every shard needs rows of every other.
Problem small_problem();

// Pointers as a call takes them.
struct Pointers {
    const annulus_tensor *q, *k, *v, *out, *lse, *d_out, *d_lse, *d_q, *d_k, *d_v;
    const annulus_call_options *options = nullptr;
};

// What a rank brings to a call, right or wrong.
struct Part {
    Problem problem = small_problem();
    std::int64_t rows = small_problem().length / ranks;
    std::vector<std::int64_t> lengths = {}; // of the shards; empty: none are set
    std::vector<std::int32_t> owners = {};  // empty: a shard a rank
    annulus_exchange exchange = ANNULUS_EXCHANGE_AUTO;
    annulus_pass pass = ANNULUS_PASS_FORWARD;
    double timeout = 60;
    bool has_config = true;
    std::function<void(annulus_config *)> configure = [](annulus_config *) {};
    std::function<void(annulus_context *)> prepare = [](annulus_context *) {};
    std::function<void(Call::Arguments &, Pointers &)> spoil = [](Call::Arguments &, Pointers &) {};
};

struct Outcome {
    annulus_status status = ANNULUS_OK;
    std::string message; // of a failure
    bool untouched = true;
};

bool holds(const std::string &message, const std::string &words);

// A rank's context and tensors, ready for its call.
class Caller {
  public:
    Caller(const Part &part, annulus_comm *comm);

    Outcome call();

  private:
    annulus_status run(const Pointers &pointers) const;
    bool is_forward() const { return part_.pass == ANNULUS_PASS_FORWARD; }

    const Part part_;
    const Call call_;
    Call::Arguments given_;
    Pointers pointers_{};
    Context context_;
};

std::vector<Outcome> call_all(const std::vector<Part> &parts, const std::vector<Comm> &comms);

// Fails unless the communicator serves a correct forward and backward call.
void expect_service(const std::vector<Comm> &comms);

// One thing that a rank does otherwise, and what the message must name.
struct Otherwise {
    std::string name;
    std::string words;
    std::function<void(Part &, int rank)> change;
    annulus_status status = ANNULUS_ERROR_ARGUMENT;

    friend void PrintTo(const Otherwise &otherwise, std::ostream *out) { *out << otherwise.name; }
};

inline std::string name_of(const testing::TestParamInfo<Otherwise> &info) {
    return info.param.name;
}

} // namespace annulus::test
