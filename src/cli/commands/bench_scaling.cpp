// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_scaling.hpp"

#include "cli/commands/bench_case.hpp"
#include "cli/commands/bench_cases.hpp"
#include "cli/commands/machine_facts.hpp"
#include "cli/report/progress.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace annulus::cli {

namespace {

Table scaling_table(const std::string &key, const std::string &title, const Scaling &scaling,
                    const std::vector<PassTimes> &times, const Yardstick &product) {
    Table table{key,
                title,
                {{"tokens", "tokens"},
                 {"seconds_per_token", "a token"},
                 {"relative", "to the shortest"},
                 {"seconds", "time"},
                 {"seconds_min", "fastest"},
                 {"seconds_max", "slowest"},
                 {"share_of_" + product.name, "of " + product.name},
                 {"workspace_bytes", "workspace"}},
                {}};
    const double first = times[0].seconds.median() / static_cast<double>(scaling.lengths[0]);
    for (std::size_t j = 0; j < times.size(); ++j) {
        const Sample &seconds = times[j].seconds;
        const double median = seconds.median(), each = median / static_cast<double>(scaling.lengths[j]);
        table.rows.push_back({count_cell(scaling.lengths[j]), seconds_cell(each), real_cell(each / first, 3),
                              seconds_cell(median), seconds_cell(seconds.min()), seconds_cell(seconds.max()),
                              real_cell(times[j].flops / median / product.rates.median(), 2),
                              bytes_cell(times[j].workspace_bytes)});
    }
    return table;
}

void add_tables(const Scaling &scaling, const std::string &dtype, const std::vector<PassTimes> &forward,
                const std::vector<PassTimes> &backward, const Yardstick &product, Report &report) {
    const std::string what =
        ", 4096:1 and 16384:4" + sizes_text(problem_of(0, scaling.heads, 64, dtype)) + ", median time of a token";
    report.add(scaling_table("scaling", "Scaling: forward" + what, scaling, forward, product));
    if (scaling.times_backward)
        report.add(scaling_table("scaling_backward", "Scaling: backward" + what, scaling, backward, product));
}

} // namespace

// The lengths take turns, and calls on short sequences are repeated in a row. A disturbance by other programs then
// affects all lengths alike.
void bench_scaling(const Scaling &scaling, const std::string &dtype, const ExecutionOptions &execution, int repeats,
                   Memory &memory, Report &report) {
    const std::vector<std::string> branches = {"4096:1", "16384:4"};
    std::vector<Yardstick> yardsticks = memory.yardsticks(dtype_of(dtype), execution.allow_tf32);
    const auto measure_yardsticks = [&] {
        for (Yardstick &yardstick : yardsticks)
            measure(yardstick, memory);
    };
    std::vector<std::unique_ptr<Workload>> workloads;
    std::vector<PassTimes> forward, backward;
    double warm_up = 0, round = 0; // FLOPs
    const auto calls_of = [&](std::size_t j) {
        return std::max<std::int64_t>(scaling.tokens_in_a_row / scaling.lengths[j], 1);
    };
    for (std::size_t j = 0; j < scaling.lengths.size(); ++j) {
        workloads.push_back(std::make_unique<Workload>(
            BenchCase{"", problem_of(scaling.lengths[j], scaling.heads, 64, dtype), branches_of(branches, false)},
            Rank{.execution = execution}, memory));
        const annulus_estimate &forward_estimate = workloads.back()->forward_estimate();
        const annulus_estimate &backward_estimate = workloads.back()->backward_estimate();
        forward.push_back({{}, forward_estimate.flops, forward_estimate.workspace_bytes, {}});
        backward.push_back({{}, backward_estimate.flops, backward_estimate.workspace_bytes, {}});
        const double both = forward_estimate.flops + (scaling.times_backward ? backward_estimate.flops : 0);
        warm_up += scaling.times_backward ? both : 0;
        round += yardsticks.front().amount + static_cast<double>(calls_of(j)) * both;
    }
    Progress progress(forward.front().flops + warm_up + repeats * round);
    progress.begin(forward.front().flops);
    workloads.front()->forward(); // warms up
    if (scaling.times_backward)
        for (std::size_t j = 0; j < workloads.size(); ++j) {
            progress.begin(forward[j].flops + backward[j].flops);
            workloads[j]->forward();
            workloads[j]->add_gradients();
            workloads[j]->backward();
        }

    for (int i = 0; i < repeats; ++i)
        for (std::size_t j = 0; j < workloads.size(); ++j) {
            const std::int64_t calls = calls_of(j);
            const auto time = [&](PassTimes &times, void (Workload::*pass)()) {
                progress.begin(static_cast<double>(calls) * times.flops);
                times.seconds.add(memory.seconds_of([&] {
                    for (std::int64_t call = 0; call < calls; ++call)
                        ((*workloads[j]).*pass)();
                }) / static_cast<double>(calls));
            };
            progress.begin(yardsticks.front().amount);
            measure_yardsticks();
            time(forward[j], &Workload::forward);
            if (scaling.times_backward)
                time(backward[j], &Workload::backward);
        }
    measure_yardsticks();
    report.add(machine_facts(repeats, memory, yardsticks));
    add_tables(scaling, dtype, forward, backward, yardsticks.front(), report);
}

} // namespace annulus::cli
