// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_host.hpp"

#include "cli/commands/bench_case.hpp"
#include "cli/commands/bench_cases.hpp"
#include "cli/devices/sample.hpp"
#include "cli/ranks/ranks.hpp"

#include <cstdint>

namespace annulus::cli {

namespace {

constexpr int warm_up_calls = 20, timed_calls = 200;

template <class Compute> std::vector<Cell> host_time_row(const char *pass, const Compute &compute, Memory &memory) {
    Sample seconds;
    for (int i = 0; i < warm_up_calls + timed_calls; ++i) {
        memory.finish();
        const double call_seconds = seconds_of(compute);
        if (i >= warm_up_calls)
            seconds.add(call_seconds);
    }
    memory.finish();
    return {text_cell(pass), seconds_cell(seconds.median()), seconds_cell(seconds.min()), seconds_cell(seconds.max()),
            count_cell(timed_calls)};
}

} // namespace

Table host_time_table(const std::string &dtype, const ExecutionOptions &execution, Memory &memory) {
    const ProblemOptions problem = problem_of(10001, 16, 64, dtype);
    const PatternOptions pattern = preset_of("longnet:2048,2,2,6");
    const std::string name = "LongNet, 6 branches, 10,001 tokens" + sizes_text(problem);
    Workload workload({name, problem, pattern}, Rank{.execution = execution}, memory);
    Table table{"host_time",
                "Host time of a repeated call: " + name,
                {{"pass", "pass"},
                 {"seconds", "time"},
                 {"seconds_min", "fastest"},
                 {"seconds_max", "slowest"},
                 {"calls", "calls"}},
                {}};
    table.rows.push_back(host_time_row(
        "forward", [&] { workload.forward(); }, memory));
    workload.add_gradients();
    table.rows.push_back(host_time_row(
        "backward", [&] { workload.backward(); }, memory));
    return table;
}

} // namespace annulus::cli
