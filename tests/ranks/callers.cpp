// SPDX-License-Identifier: Apache-2.0
#include "ranks/callers.hpp"

#include "support/compare.hpp"

#include <algorithm>
#include <span>

namespace annulus::test {

namespace {

// Returns the bytes of a dense tensor's elements.
std::span<unsigned char> elements_of(const annulus_tensor &tensor) {
    std::size_t bytes = bytes_of(tensor.dtype);
    for (std::int32_t d = 0; d < tensor.ndim; ++d)
        bytes *= static_cast<std::size_t>(tensor.shape[d]);
    return {static_cast<unsigned char *>(tensor.data), bytes};
}

// True if the elements still have the value with which their memory was made.
bool is_untouched(const annulus_tensor &tensor) {
    return std::ranges::all_of(elements_of(tensor), [](unsigned char byte) { return byte == 0xFF; });
}

} // namespace

Problem small_problem() {
    return {.batch = 2,
            .length = 24,
            .heads = 4,
            .kv_heads = 2,
            .branches = {{},
                         {.segment = 12,
                          .dilation = 3,
                          .phase = ANNULUS_PHASE_FIXED,
                          .residue = 1,
                          .query = ANNULUS_QUERY_EVERY,
                          .order = ANNULUS_ORDER_HILBERT,
                          .width = 4,
                          .first_head = 1,
                          .head_count = 2}},
            .dtype = ANNULUS_FLOAT32};
}

bool holds(const std::string &message, const std::string &words) {
    return message.find(words) != std::string::npos;
}

Caller::Caller(const Part &part, annulus_comm *comm)
    : part_(part), call_(shard_problem(part.problem, part.rows),
                         random_inputs(shard_problem(part.problem, part.rows), 1), host_memory()),
      given_(call_.arguments) {
    annulus_context *context = nullptr;
    check(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0));
    context_.reset(context);
    check(annulus_context_set_threads(context, 1));
    if (part.has_config) {
        const Config config = make_config(part.problem, ANNULUS_ENGINE_AUTO);
        check(annulus_config_set_exchange(config.get(), part.exchange));
        part.configure(config.get());
        check(annulus_context_set_config(context, config.get()));
    }
    check(annulus_comm_set_timeout(comm, part.timeout));
    check(annulus_context_set_comm(context, comm));
    if (!part.lengths.empty()) {
        const annulus_shards shards = {sizeof shards, 0, static_cast<std::int32_t>(part.lengths.size()),
                                       part.lengths.data(), part.owners.empty() ? nullptr : part.owners.data()};
        check(annulus_context_set_shards(context, &shards));
    }
    part.prepare(context);
    Call::Arguments &a = given_;
    if (!is_forward()) // O and LSE are inputs of backward
        for (const annulus_tensor *input : {&a.out, &a.lse})
            std::ranges::fill(elements_of(*input), 0);
    pointers_ = {&a.q, &a.k, &a.v, &a.out, &a.lse, &a.d_out, &a.d_lse, &a.d_q, &a.d_k, &a.d_v, &call_.options};
    part.spoil(a, pointers_);
}

annulus_status Caller::run(const Pointers &p) const {
    switch (part_.pass) {
    case ANNULUS_PASS_FORWARD:
        return annulus_forward(context_.get(), p.q, p.k, p.v, p.out, p.lse, p.options);
    case ANNULUS_PASS_BACKWARD:
        return annulus_backward(context_.get(), p.q, p.k, p.v, p.out, p.lse, p.d_out, p.d_lse, p.d_q, p.d_k, p.d_v,
                                p.options);
    case ANNULUS_PASS_MASS:
        break;
    }
    return annulus_attention_mass(context_.get(), p.q, p.k, p.lse, &given_.mass, p.options);
}

Outcome Caller::call() {
    const Pointers &p = pointers_;
    Outcome outcome;
    outcome.status = run(p);
    if (outcome.status != ANNULUS_OK)
        outcome.message = annulus_last_error();
    const Call::Arguments &a = call_.arguments;
    const std::vector<const annulus_tensor *> outputs =
        is_forward() ? std::vector{&a.out, &a.lse} : std::vector{&a.d_q, &a.d_k, &a.d_v, &a.mass};
    for (const annulus_tensor *output : outputs)
        outcome.untouched = outcome.untouched && is_untouched(*output);
    return outcome;
}

std::vector<Outcome> call_all(const std::vector<Part> &parts, const std::vector<Comm> &comms) {
    std::vector<Outcome> outcomes(parts.size());
    for_each_rank(static_cast<int>(parts.size()),
                  [&](int rank) { outcomes[rank] = Caller(parts[rank], comms[rank].get()).call(); });
    return outcomes;
}

void expect_service(const std::vector<Comm> &comms) {
    const Problem problem = small_problem();
    static const Inputs inputs = random_inputs(problem, 3);
    static const Results wanted = run(problem, inputs, {.threads = 1});
    RankOptions options;
    options.lengths = even_lengths(problem.length, ranks);
    options.run.threads = 1;
    expect_near(run_ranks(problem, inputs, options, comms), wanted, tolerance_of(problem.dtype));
}

} // namespace annulus::test
