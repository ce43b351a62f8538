// SPDX-License-Identifier: Apache-2.0
// Ranks as threads over the local transport. The ranks may bring different arguments, configs and shards to a call.
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

// Returns a problem in which every shard needs rows of every other shard.
Problem small_problem();

// The pointers that a call takes.
struct Pointers {
    const annulus_tensor *q, *k, *v, *out, *lse, *d_out, *d_lse, *d_q, *d_k, *d_v;
    const annulus_call_options *options = nullptr;
};

// A rank's part in a call, valid or not.
struct Part {
    Problem problem = small_problem();
    std::int64_t rows = small_problem().length / ranks;
    std::vector<std::int64_t> lengths = {}; // of the shards; empty: no shards are set
    std::vector<std::int32_t> owners = {};  // of the shards; empty: one shard for each rank
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
    std::string message;   // of a failure
    bool untouched = true; // no output was written
};

// True if `words` are part of the message.
bool holds(const std::string &message, const std::string &words);

// A rank with its context and tensors, ready for calls.
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

// Calls on all ranks at the same time. Returns the outcome of each rank.
std::vector<Outcome> call_all(const std::vector<Part> &parts, const std::vector<Comm> &comms);

// Fails unless the communicator serves a correct forward and backward call.
void expect_service(const std::vector<Comm> &comms);

// One difference of a rank from the other ranks, and the words that the message must hold.
struct Difference {
    std::string name;
    std::string words;
    std::function<void(Part &, int rank)> change;
    annulus_status status = ANNULUS_ERROR_ARGUMENT;

    friend void PrintTo(const Difference &difference, std::ostream *out) { *out << difference.name; }
};

inline std::string name_of(const testing::TestParamInfo<Difference> &info) {
    return info.param.name;
}

} // namespace annulus::test
