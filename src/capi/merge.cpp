// SPDX-License-Identifier: Apache-2.0
// annulus/attention.h, annulus_merge().
#include "call/merge.hpp"
#include "capi/guard.hpp"
#include "capi/problem.hpp"
#include "capi/sized_struct.hpp"
#include "core/argument.hpp"

#include <annulus/attention.h>

#include <cstdio>

using namespace annulus;

namespace {

void check_options(const annulus_merge_options *options) {
    if (!options)
        return;
    const annulus_merge_options given = read_sized("options", options, &annulus_merge_options::flags);
    if (given.flags != 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "flags of options is %#llx; it must be 0",
                    static_cast<unsigned long long>(given.flags));
}

} // namespace

annulus_status annulus_merge(annulus_context *context, int32_t count, const annulus_tensor *outs,
                             const annulus_tensor *lses, const annulus_tensor *out, const annulus_tensor *lse,
                             const annulus_merge_options *options) {
    return guard([&] {
        const ContextUse use(context);
        check_options(options);
        check_between("count", count, 1, ANNULUS_MAX_MERGE_PARTS);
        required(outs, "outs");
        required(lses, "lses");
        required(out, "out");
        const Problem problem = check_results({"outs[0]", outs});
        char name[32];
        for (std::int32_t i = 0; i < count; ++i) {
            std::snprintf(name, sizeof name, "outs[%d]", i);
            check_query_rows(problem, {name, outs + i});
            std::snprintf(name, sizeof name, "lses[%d]", i);
            check_statistic(problem, {name, lses + i});
        }
        check_query_rows(problem, {"out", out});
        if (lse)
            check_statistic(problem, {"lse", lse});
        run_merge(*context, {problem, count, outs, lses, *out, lse});
    });
}
