// SPDX-License-Identifier: Apache-2.0
// annulus/attention.h, the passes: each checks its arguments and runs.
#include <annulus/attention.h>

#include "call/invocation.hpp"
#include "call/mass_executable.hpp"
#include "capi/guard.hpp"
#include "capi/options.hpp"
#include "capi/problem.hpp"
#include "core/argument.hpp"
#include "core/error.hpp"

#include <cstdint>
#include <new>
#include <optional>
#include <utility>
#include <vector>

using namespace annulus;

namespace {

// Returns the problem of Q, K and V, on one rank or several.
Problem check_call_inputs(const annulus_context &context, const annulus_tensor &q, const annulus_tensor &k,
                          const annulus_tensor &v, std::optional<std::int64_t> query_start) {
    if (!context.comm)
        return check_inputs(q, k, v, query_start, false);
    if (query_start)
        refuse_query_window();
    const Problem problem = check_inputs(q, k, v, std::nullopt, true);
    context.shards.check_rows(context.comm->rank(), problem.queries.length);
    return problem;
}

// Returns the sequences of a call. Ranks tell one another later how many rows they have together.
std::vector<Sequence> check_call_sequences(const annulus_context &context, const annulus_call_options &options,
                                           const Problem &problem) {
    return check_sequences(options, problem.batch, context.comm ? std::nullopt : std::optional(problem.sequence_length),
                           context.required_config().pattern);
}

// Runs a pass with the arguments that check(context) returns. If anything fails, the other ranks hear of it.
template <class Check> annulus_status run_pass(annulus_context *context, annulus_pass pass, const Check &check) {
    return guard([&] {
        Invocation invocation(context, pass);
        try {
            context->required_config();
            invocation.run(check(invocation.context()));
        } catch (const Error &error) {
            invocation.decline(error.what());
            throw;
        } catch (const std::bad_alloc &) {
            invocation.decline("out of memory");
            throw;
        }
    });
}

} // namespace

annulus_status annulus_forward(annulus_context *context, const annulus_tensor *q, const annulus_tensor *k,
                               const annulus_tensor *v, const annulus_tensor *out, const annulus_tensor *lse,
                               const annulus_call_options *options) {
    return run_pass(context, ANNULUS_PASS_FORWARD, [&](const annulus_context &in_use) -> Arguments {
        required(q, "q");
        required(k, "k");
        required(v, "v");
        required(out, "out");
        const annulus_call_options given = read_options(options, ANNULUS_PASS_FORWARD);
        const Problem problem = check_call_inputs(in_use, *q, *k, *v, query_window(given));
        std::vector<Sequence> sequences = check_call_sequences(in_use, given, problem);
        check_query_rows(problem, {"out", out});
        if (lse)
            check_statistic(problem, {"lse", lse});
        return {{problem, std::move(sequences)}, {.q = *q, .k = *k, .v = *v, .out = *out, .lse = lse}};
    });
}

annulus_status annulus_attention_mass(annulus_context *context, const annulus_tensor *q, const annulus_tensor *k,
                                      const annulus_tensor *lse, const annulus_tensor *mass,
                                      const annulus_call_options *options) {
    return run_pass(context, ANNULUS_PASS_MASS, [&](const annulus_context &in_use) -> Arguments {
        required(q, "q");
        required(k, "k");
        required(lse, "lse");
        required(mass, "mass");
        const annulus_call_options given = read_options(options, ANNULUS_PASS_MASS);
        Problem problem = check_call_inputs(in_use, *q, *k, *k, query_window(given));
        std::vector<Sequence> sequences = check_call_sequences(in_use, given, problem);
        check_statistic(problem, {"lse", lse});
        check_mass(problem, {"mass", mass});
        problem.gradients = mass_gradients(problem.dtype);
        return {{problem, std::move(sequences)}, {.q = *q, .k = *k, .v = {}, .out = {}, .lse = lse, .mass = *mass}};
    });
}

annulus_status annulus_backward(annulus_context *context, const annulus_tensor *q, const annulus_tensor *k,
                                const annulus_tensor *v, const annulus_tensor *out, const annulus_tensor *lse,
                                const annulus_tensor *d_out, const annulus_tensor *d_lse, const annulus_tensor *d_q,
                                const annulus_tensor *d_k, const annulus_tensor *d_v,
                                const annulus_call_options *options) {
    return run_pass(context, ANNULUS_PASS_BACKWARD, [&](const annulus_context &in_use) -> Arguments {
        required(q, "q");
        required(k, "k");
        required(v, "v");
        required(out, "out");
        required(lse, "lse");
        required(d_out, "d_out");
        required(d_q, "d_q");
        required(d_k, "d_k");
        required(d_v, "d_v");
        const annulus_call_options given = read_options(options, ANNULUS_PASS_BACKWARD);
        Problem problem = check_call_inputs(in_use, *q, *k, *v, query_window(given));
        std::vector<Sequence> sequences = check_call_sequences(in_use, given, problem);
        check_query_rows(problem, {"out", out});
        check_statistic(problem, {"lse", lse});
        check_query_rows(problem, {"d_out", d_out});
        if (d_lse)
            check_statistic(problem, {"d_lse", d_lse});
        problem.gradients = gradient_targets(given, problem.dtype, d_q->dtype, d_k->dtype, d_v->dtype);
        check_query_gradient(problem, {"d_q", d_q}, problem.gradients.q);
        check_key_gradient(problem, {"d_k", d_k}, problem.gradients.k);
        check_key_gradient(problem, {"d_v", d_v}, problem.gradients.v);
        return {{problem, std::move(sequences)}, {*q, *k, *v, *out, lse, *d_out, d_lse, *d_q, *d_k, *d_v}};
    });
}
