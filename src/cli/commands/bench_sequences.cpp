// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_sequences.hpp"

#include "cli/commands/bench_case.hpp"
#include "cli/commands/bench_cases.hpp"
#include "cli/commands/machine_facts.hpp"
#include "cli/report/progress.hpp"

#include <vector>

namespace annulus::cli {

namespace {

struct TimedPass {
    const char *name;
    void (Workload::*compute)();
    Sample packed, equal; // seconds
};

std::vector<Cell> row_of(const TimedPass &pass, double packed_pairs, double equal_pairs) {
    const double packed = pass.packed.median(), equal = pass.equal.median();
    const double packed_rate = packed_pairs / packed, equal_rate = equal_pairs / equal;
    return {text_cell(pass.name),
            seconds_cell(packed),
            seconds_cell(pass.packed.min()),
            seconds_cell(pass.packed.max()),
            scaled_cell(packed_rate, "pairs/s"),
            seconds_cell(equal),
            scaled_cell(equal_rate, "pairs/s"),
            real_cell(equal_rate / packed_rate, 3)};
}

} // namespace

void bench_sequences(const SequenceLengths &lengths, const ProblemOptions &problem, const PatternOptions &pattern,
                     const ExecutionOptions &execution, int repeats, Memory &memory, Report &report) {
    BenchCase packed_case = custom_case(problem, pattern), equal_case = packed_case;
    packed_case.sequence_starts = starts_of(lengths);
    packed_case.problem.tokens = packed_case.sequence_starts.back();
    packed_case.problem.batch = 1;
    const std::int64_t mean = (packed_case.problem.tokens + lengths.count / 2) / lengths.count;
    equal_case.problem.tokens = mean;
    equal_case.problem.batch = lengths.count;
    const Rank rank = {.execution = execution};
    Workload packed(packed_case, rank, memory), equal(equal_case, rank, memory);
    TimedPass passes[] = {{"forward", &Workload::forward, {}, {}}, {"backward", &Workload::backward, {}, {}}};
    const auto work_of = [](const Workload &workload, const TimedPass &pass) {
        return (pass.compute == &Workload::forward ? workload.forward_estimate() : workload.backward_estimate()).flops;
    };
    double round = 0;
    for (const TimedPass &pass : passes)
        round += work_of(packed, pass) + work_of(equal, pass);
    Progress progress((1 + repeats) * round);
    for (Workload *workload : {&packed, &equal}) {
        progress.begin(workload->forward_estimate().flops + workload->backward_estimate().flops);
        workload->forward(); // warms up
        workload->add_gradients();
        workload->backward();
    }
    for (int i = 0; i < repeats; ++i)
        for (TimedPass &pass : passes) {
            progress.begin(work_of(packed, pass));
            pass.packed.add(memory.seconds_of([&] { (packed.*pass.compute)(); }));
            progress.begin(work_of(equal, pass));
            pass.equal.add(memory.seconds_of([&] { (equal.*pass.compute)(); }));
        }
    const std::string count = std::to_string(lengths.count);
    Table table{"sequences",
                "Sequences: " + count + " of " + std::to_string(lengths.min_length) + " to " +
                    std::to_string(lengths.max_length) + " rows in one call, in turns with a batch of " + count +
                    " of " + std::to_string(mean) + "; " + packed_case.name + ", median times",
                {{"pass", "pass"},
                 {"seconds", "time"},
                 {"seconds_min", "fastest"},
                 {"seconds_max", "slowest"},
                 {"pairs_per_second", "rate"},
                 {"batch_seconds", "batch's time"},
                 {"batch_pairs_per_second", "batch's rate"},
                 {"time_to_batch_rate", "time to that at the batch's rate"}},
                {}};
    for (const TimedPass &pass : passes)
        table.rows.push_back(row_of(pass, packed.forward_estimate().pairs, equal.forward_estimate().pairs));
    report.add(machine_facts(repeats, memory, {}));
    report.add(table);
}

} // namespace annulus::cli
