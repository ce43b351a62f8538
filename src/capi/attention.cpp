// SPDX-License-Identifier: Apache-2.0
// annulus/attention.h, the passes: from the caller's tensors to a checked call.
#include <annulus/attention.h>

#include "call/pass_call.hpp"
#include "capi/guard.hpp"
#include "capi/problem.hpp"
#include "core/argument.hpp"
#include "core/error.hpp"

using namespace annulus;

namespace {

// What Q, K and V say, on one rank or several.
Problem check_call_inputs(const annulus_context &context, const annulus_tensor &q, const annulus_tensor &k,
                          const annulus_tensor &v, const annulus_window *window) {
    if (!context.comm)
        return check_inputs(q, k, v, window, false);
    if (window)
        throw Error(ANNULUS_ERROR_UNSUPPORTED,
                    "window is not NULL; with several ranks the query rows of a rank are those of its shard");
    const Problem problem = check_inputs(q, k, v, nullptr, true);
    context.check_rows(problem.queries.length);
    return problem;
}

} // namespace

annulus_status annulus_forward(annulus_context *context, const annulus_tensor *q, const annulus_tensor *k,
                               const annulus_tensor *v, const annulus_tensor *out, const annulus_tensor *lse,
                               const annulus_window *window) {
    return guard([&] {
        PassCall call(context, ANNULUS_PASS_FORWARD);
        call.carry_out([&]() -> CheckedCall {
            required(q, "q");
            required(k, "k");
            required(v, "v");
            required(out, "out");
            const Problem problem = check_call_inputs(call.context(), *q, *k, *v, window);
            check_query_rows(problem, {"out", out});
            if (lse)
                check_statistic(problem, {"lse", lse});
            return {{problem, {}}, {.q = *q, .k = *k, .v = *v, .out = *out, .lse = lse}};
        });
    });
}

annulus_status annulus_backward(annulus_context *context, const annulus_tensor *q, const annulus_tensor *k,
                                const annulus_tensor *v, const annulus_tensor *out, const annulus_tensor *lse,
                                const annulus_tensor *d_out, const annulus_tensor *d_lse, const annulus_tensor *d_q,
                                const annulus_tensor *d_k, const annulus_tensor *d_v, const annulus_window *window) {
    return guard([&] {
        PassCall call(context, ANNULUS_PASS_BACKWARD);
        call.carry_out([&]() -> CheckedCall {
            required(q, "q");
            required(k, "k");
            required(v, "v");
            required(out, "out");
            required(lse, "lse");
            required(d_out, "d_out");
            required(d_q, "d_q");
            required(d_k, "d_k");
            required(d_v, "d_v");
            const Problem problem = check_call_inputs(call.context(), *q, *k, *v, window);
            check_query_rows(problem, {"out", out});
            check_statistic(problem, {"lse", lse});
            check_query_rows(problem, {"d_out", d_out});
            if (d_lse)
                check_statistic(problem, {"d_lse", d_lse});
            check_query_rows(problem, {"d_q", d_q});
            check_key_rows(problem, {"d_k", d_k});
            check_key_rows(problem, {"d_v", d_v});
            return {{problem, {}}, {*q, *k, *v, *out, lse, *d_out, d_lse, *d_q, *d_k, *d_v}};
        });
    });
}
