// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_sequences.hpp"

#include "cli/commands/bench_case.hpp"
#include "cli/commands/bench_cases.hpp"
#include "cli/commands/machine_facts.hpp"
#include "cli/report/failure.hpp"
#include "cli/report/progress.hpp"
#include "cli/report/text.hpp"

#include <optional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

namespace annulus::cli {

namespace {

constexpr std::int64_t max_sequences = 1'000'000;
constexpr std::int64_t max_rows = std::int64_t{1} << 40; // of all sequences together

// Returns the first row of each sequence and the end of the last. The lengths are spread evenly from min_length to
// max_length, in an order that is random but always the same.
std::vector<std::int64_t> starts_of(const SequenceLengths &lengths) {
    std::vector<std::int64_t> shuffled;
    std::mt19937_64 generator(1);
    for (std::int64_t i = 0; i < lengths.count; ++i) {
        const std::int64_t steps = lengths.count > 1 ? lengths.count - 1 : 1;
        shuffled.push_back(lengths.min_length + (lengths.max_length - lengths.min_length) * i / steps);
        std::swap(shuffled.back(), shuffled[generator() % shuffled.size()]);
    }
    std::vector<std::int64_t> starts = {0};
    for (const std::int64_t length : shuffled)
        starts.push_back(starts.back() + length);
    return starts;
}

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

SequenceLengths parse_sequence_lengths(const std::string &text) {
    const std::vector<std::string_view> parts = split(text, ':');
    std::vector<std::int64_t> numbers;
    for (const std::string_view part : parts)
        numbers.push_back(parse_count(part).value_or(0));
    if (numbers.size() != 3 || numbers[0] < 1 || numbers[0] > max_sequences || numbers[1] < 1 ||
        numbers[2] < numbers[1] || numbers[2] > max_rows / numbers[0])
        throw bad_input("--sequences " + text +
                        ": must be COUNT:MIN:MAX, with COUNT from 1 to 1000000, MIN from 1 to MAX, and no more than "
                        "2^40 rows together");
    return {numbers[0], numbers[1], numbers[2]};
}

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
