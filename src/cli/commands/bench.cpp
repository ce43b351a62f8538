// SPDX-License-Identifier: Apache-2.0
// annulus bench: measures speed, and in the same run the rates of the hardware's own matrix product and, on a GPU, of
// its copies.
#include "cli/arrays/output_file.hpp"
#include "cli/commands/bench_case.hpp"
#include "cli/commands/bench_cases.hpp"
#include "cli/commands/bench_host.hpp"
#include "cli/commands/bench_links.hpp"
#include "cli/commands/bench_plot.hpp"
#include "cli/commands/bench_ranks.hpp"
#include "cli/commands/bench_scaling.hpp"
#include "cli/commands/bench_sequences.hpp"
#include "cli/commands/commands.hpp"
#include "cli/commands/context.hpp"
#include "cli/commands/links.hpp"
#include "cli/commands/machine_facts.hpp"
#include "cli/commands/problem_options.hpp"
#include "cli/devices/memory.hpp"
#include "cli/ranks/ranks.hpp"
#include "cli/report/progress.hpp"
#include "cli/report/report.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace annulus::cli {

namespace {

struct BenchOptions {
    ProblemOptions problem; // of the user's own case; without options: the cases of bench_cases.hpp
    PatternOptions pattern;
    ExecutionOptions execution;
    int repeats = 5;
    bool scaling = false;
    std::string sequences; // empty: none
    RankOptions ranks;
    bool weak = false;
    std::string links; // path; empty: does not measure links
    std::string plot;  // path; empty: no picture
    std::string format = "text";
};

struct Line {
    std::string name;
    double tokens;
    Measurement measurement;
};

std::vector<Cell> case_row(const Line &line, const char *pass, const PassTimes &times) {
    const double seconds = times.seconds.median(), rate = times.flops / seconds;
    return {text_cell(line.name),
            text_cell(pass),
            count_cell(static_cast<std::int64_t>(line.tokens)),
            scaled_cell(rate, "FLOP/s"),
            real_cell(rate / line.measurement.product_rates.median(), 2),
            seconds_cell(seconds),
            seconds_cell(times.seconds.min()),
            seconds_cell(times.seconds.max()),
            scaled_cell(line.tokens / seconds, "/s"),
            bytes_cell(times.workspace_bytes),
            times.measured_peak_bytes ? bytes_cell(*times.measured_peak_bytes) : missing_cell()};
}

Table case_table(const std::vector<Line> &lines, const Yardstick &product) {
    Table table{"cases",
                "Cases: median times; " + product.name + " took turns with each case's calls",
                {{"case", "case"},
                 {"pass", "pass"},
                 {"tokens", "tokens"},
                 {"flops_per_second", "rate"},
                 {"share_of_" + product.name, "of " + product.name},
                 {"seconds", "time"},
                 {"seconds_min", "fastest"},
                 {"seconds_max", "slowest"},
                 {"tokens_per_second", "tokens"},
                 {"workspace_bytes", "workspace"},
                 {"measured_peak_bytes", "measured peak"}},
                {}};
    for (const Line &line : lines) {
        table.rows.push_back(case_row(line, "forward", line.measurement.forward));
        table.rows.push_back(case_row(line, "backward", line.measurement.backward));
    }
    return table;
}

// Measures the cost of planning. Each problem has another length, so that no kept plan is used.
Facts planning_facts() {
    const Context context = make_context(preset_of("longnet:2048,2,2,6"), {}, 16);
    annulus_problem problem = problem_of(1'000'000'000, 16, 128, "float32").problem();
    Sample seconds;
    std::uint64_t plan_bytes = 0;
    for (int i = 0; i < 100; ++i) {
        ++problem.sequence_length;
        seconds.add(seconds_of([&] {
            for (const annulus_pass pass : {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD})
                plan_bytes = std::max(plan_bytes, estimate_of(context.get(), problem, pass).plan_bytes);
        }));
    }
    return {"planning",
            "Planning 1,000,000,000 tokens, 6 branches, 16 heads",
            {{{"seconds", "time, median"}, seconds_cell(seconds.median())},
             {{"seconds_min", "fastest"}, seconds_cell(seconds.min())},
             {{"seconds_max", "slowest"}, seconds_cell(seconds.max())},
             {{"problems", "problems, all distinct"}, count_cell(static_cast<std::int64_t>(seconds.size()))},
             {{"plan_bytes", "plan"}, bytes_cell(plan_bytes)}}};
}

void bench_cases(const BenchOptions &options, const std::vector<BenchCase> &cases, Memory &memory, Report &report) {
    std::vector<Yardstick> yardsticks =
        memory.yardsticks(dtype_of(options.problem.dtype), options.execution.allow_tf32);
    double work = 0;
    for (const BenchCase &bench_case : cases)
        work += work_of(bench_case, options.execution, options.repeats, yardsticks, memory);
    Progress progress(work);
    std::vector<Line> lines;
    for (const BenchCase &bench_case : cases) {
        Workload workload(bench_case, Rank{.execution = options.execution}, memory);
        const double tokens =
            static_cast<double>(bench_case.problem.tokens) * static_cast<double>(workload.problem().batch);
        lines.push_back({bench_case.name, tokens, measure(workload, options.repeats, yardsticks, memory, progress)});
    }
    report.add(machine_facts(options.repeats, memory, yardsticks));
    report.add(case_table(lines, yardsticks.front()));
}

bool is_custom(const BenchOptions &options) {
    return options.problem.is_given() || options.pattern.is_given();
}

// Throws unless a case of the user's own has all its sizes. Otherwise the program would ignore them and run the default
// cases.
void check_complete(const BenchOptions &options) {
    if (!is_custom(options) && options.sequences.empty())
        return;
    const std::string reason = " must be given, at least 1, for a case of your own";
    if (options.sequences.empty() && !options.problem.tokens)
        throw bad_input("--tokens" + reason);
    if (!options.problem.heads)
        throw bad_input("--heads" + reason);
    if (!options.problem.head_dim)
        throw bad_input("--head-dim" + reason);
}

bool on_cpu(const BenchOptions &options) {
    return options.execution.device.kind == ANNULUS_DEVICE_CPU;
}

std::vector<BenchCase> cases_of(const BenchOptions &options) {
    if (is_custom(options))
        return {custom_case(options.problem, options.pattern)};
    return on_cpu(options) ? cpu_cases(options.problem.dtype) : cuda_cases(options.problem.dtype);
}

void finish(const BenchOptions &options, const Report &report) {
    report.print(options.format);
    if (!options.plot.empty())
        write_file("--plot", options.plot, draw_bench(report));
}

void bench_one_rank(BenchOptions options) {
    const std::unique_ptr<Memory> memory = make_memory(options.execution.device, options.execution.thread_count());
    if (options.problem.dtype.empty())
        options.problem.dtype = annulus_dtype_name(memory->fast_dtype());
    Report report;
    if (!options.sequences.empty()) {
        bench_sequences(parse_sequence_lengths(options.sequences), options.problem, options.pattern, options.execution,
                        options.repeats, *memory, report);
    } else if (options.scaling) {
        const Scaling cpu_scaling = {{65536, 131072, 262144, 524288, 1048576}, 1, false, 262144};
        const Scaling cuda_scaling = {{131072, 262144, 524288, 1048576}, 8, true, 1048576};
        bench_scaling(on_cpu(options) ? cpu_scaling : cuda_scaling, options.problem.dtype, options.execution,
                      options.repeats, *memory, report);
    } else {
        bench_cases(options, cases_of(options), *memory, report);
        if (!is_custom(options)) {
            report.add(planning_facts());
            if (!on_cpu(options))
                report.add(host_time_table(options.problem.dtype, options.execution, *memory));
        }
    }
    finish(options, report);
}

void bench_several_ranks(const BenchOptions &options, Ranks &ranks) {
    std::vector<RanksLine> lines;
    Report report;
    ranks.run([&](const Rank &rank) {
        const std::unique_ptr<Memory> memory = make_memory(rank.execution.device, rank.execution.thread_count());
        BenchOptions own = options;
        if (own.problem.dtype.empty())
            own.problem.dtype = annulus_dtype_name(memory->fast_dtype());
        const std::vector<RanksLine> measured =
            measure_over_ranks(cases_of(own), rank, *memory, options.repeats, options.weak);
        if (rank.index != 0)
            return;
        lines = measured;
        report.add(machine_facts(options.repeats, *memory, {}));
    });
    if (!ranks.has_rank_0())
        return;
    report.add(speed_table(lines, options.weak));
    report.add(rank_table(lines));
    finish(options, report);
}

void bench_links(const BenchOptions &options, Ranks &ranks) {
    Links links;
    Report report;
    ranks.run([&](const Rank &rank) {
        const std::unique_ptr<Memory> memory = make_memory(rank.execution.device, rank.execution.thread_count());
        const Links measured = measure_links(rank, *memory, options.repeats);
        if (rank.index != 0)
            return;
        links = measured;
        report.add(machine_facts(options.repeats, *memory, {}));
    });
    if (!ranks.has_rank_0())
        return;
    report.add(link_facts(links));
    finish(options, report);
    write_file("--links", options.links, links_text(links));
}

// Throws if --links comes with an option that it would ignore.
void check_links_options(const BenchOptions &options, int ranks) {
    if (options.links.empty())
        return;
    if (ranks == 1)
        throw bad_input("--links measures the links between ranks: give --ranks");
    if (!options.execution.exchange.empty())
        throw bad_input("--exchange " + options.execution.exchange +
                        ": cannot be given with --links, which measures messages that are gathered");
    if (is_custom(options) || !options.problem.dtype.empty() || options.scaling || options.weak ||
        !options.sequences.empty() || !options.plot.empty() || options.ranks.sharding != Sharding::even)
        throw bad_input("--links has problems of its own, and no picture: of the other options for problems, ranks and "
                        "pictures only --repeats, --ranks, --only-nccl and --timeout can be given with it");
}

void bench(const BenchOptions &options) {
    if (is_custom(options) && options.scaling)
        throw bad_input("--scaling has a problem and a pattern of its own");
    if (!options.sequences.empty()) {
        parse_sequence_lengths(options.sequences);
        if (options.scaling)
            throw bad_input("--scaling has a problem of its own, without --sequences");
        if (options.problem.tokens || options.problem.batch != 1)
            throw bad_input("--sequences says how many tokens there are: --tokens and --batch cannot be given with it");
    }
    check_complete(options);
    const std::unique_ptr<Ranks> ranks = make_ranks(options.ranks, options.execution);
    ranks->in_each_process([&] {
        if (ranks->count() > 1 && options.scaling)
            throw bad_input("--scaling is for one rank");
        if (ranks->count() > 1 && !options.sequences.empty())
            throw bad_input("--sequences is for one rank");
        if (ranks->count() == 1 && options.weak)
            throw bad_input("--weak compares several ranks with one: give --ranks");
        if (!options.plot.empty() && ranks->has_rank_0())
            OutputFile("--plot", options.plot, 1); // a path that cannot be written fails before the measurements
        check_links_options(options, ranks->count());
        if (!options.links.empty() && ranks->has_rank_0())
            OutputFile("--links", options.links, 1);
        if (!options.links.empty())
            bench_links(options, *ranks);
        else if (ranks->count() > 1)
            bench_several_ranks(options, *ranks);
        else
            bench_one_rank(options);
    });
}

} // namespace

void add_bench_command(CLI::App &program) {
    auto options = std::make_shared<BenchOptions>();
    Command command(
        program, "bench",
        "Time forward and backward on random data beside OpenBLAS's sgemm, on a GPU beside cuBLAS's product of the "
        "same dtype: a set of cases, or one of your own. 'workspace' is what the library announces; 'measured peak' "
        "is what the first call takes above its tensors: the rise of the process's memory (VmHWM), on a GPU what the "
        "call allocates and what it leaves on the device (handles, kernels' code). With several ranks, on 1/P of the "
        "CPU threads each or a GPU each, they are compared with one rank of the same kind, measured in turns.");
    command.number<int>("--repeats", options->repeats, 1, "Timed calls of each case after a warm-up, 5 unless given")
        .value("R");
    command.flag("--scaling", options->scaling, "Time a token at growing lengths up to 1,048,576 instead");
    command
        .text("--sequences", options->sequences,
              "Time one call over COUNT sequences, of lengths spread evenly from MIN to MAX, beside a batch of COUNT "
              "sequences of their mean length")
        .value("COUNT:MIN:MAX");
    options->problem.add_to(command, false);
    options->pattern.add_to(command);
    options->execution.add_to(command);
    options->ranks.add_to(command, true);
    command
        .flag("--weak", options->weak,
              "Give each rank this number of tokens, and one rank alone the same number; else it computes all")
        .group("Ranks");
    command
        .file("--links", options->links,
              "Measure how fast the ranks agree and how fast the links between them are instead, and save it to this "
              "JSON file for plan --links")
        .group("Ranks");
    command.file("--plot", options->plot, "Draw the rates of the table, or with --scaling a token's times, as SVG")
        .ends_in(".svg");
    add_format_option(command, options->format);
    command.example("annulus bench --tokens 8Ki --heads 4 --head-dim 64 --branch 1Ki:1 --branch 4Ki:4 --causal");
    command.runs([options] { bench(*options); });
}

} // namespace annulus::cli
