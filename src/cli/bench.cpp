// SPDX-License-Identifier: Apache-2.0
// annulus bench: how fast, beside the rates of the hardware's own matrix product, and of its copies on a GPU, measured
// in the same run.
#include "bench_case.hpp"
#include "bench_ranks.hpp"
#include "commands.hpp"
#include "options.hpp"
#include "place.hpp"
#include "progress.hpp"
#include "ranks.hpp"
#include "report.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace annulus::cli {

namespace {

struct BenchOptions {
    ProblemOptions problem; // of a case of the user's own; tokens 0: the cases below
    PatternOptions pattern;
    ExecutionOptions execution;
    int repeats = 5;
    bool scaling = false;
    RankOptions ranks;
    bool weak = false;
    std::string format = "text";
};

ProblemOptions problem_of(std::int64_t tokens, std::int32_t heads, std::int32_t head_dim, const std::string &dtype) {
    ProblemOptions problem;
    problem.tokens = tokens;
    problem.heads = heads;
    problem.head_dim = head_dim;
    problem.dtype = dtype;
    return problem;
}

PatternOptions branches_of(std::vector<std::string> branches, bool causal) {
    PatternOptions pattern;
    pattern.branches = std::move(branches);
    pattern.causal = causal;
    return pattern;
}

PatternOptions preset_of(std::string preset, bool causal = false) {
    PatternOptions pattern;
    pattern.presets.push_back(std::move(preset));
    pattern.causal = causal;
    return pattern;
}

// ", H=8 D=64" and what else is not as usual.
std::string sizes_text(const ProblemOptions &p) {
    std::string text = ", H=" + std::to_string(p.heads) + " D=" + std::to_string(p.head_dim);
    if (p.kv_heads && p.kv_heads != p.heads)
        text += " G=" + std::to_string(p.kv_heads);
    if (p.batch != 1)
        text += " B=" + std::to_string(p.batch);
    return text + (p.dtype == "float32" ? "" : " " + p.dtype);
}

BenchCase make_case(const std::string &name, const ProblemOptions &problem, const PatternOptions &pattern) {
    return {name + (pattern.causal ? " causal" : "") + sizes_text(problem), problem, pattern};
}

// Equal numbers of (query, key) pairs, dense and dilated.
std::vector<BenchCase> one_branch_cases(std::int64_t dense_tokens, std::int64_t dilated_tokens, std::int32_t heads,
                                        const std::string &dtype) {
    std::vector<BenchCase> cases;
    for (const std::int32_t head_dim : {64, 128})
        for (const bool causal : {false, true})
            for (const auto &[branch, tokens] :
                 {std::pair("2048:1", dense_tokens), std::pair("8192:4", dilated_tokens)})
                cases.push_back(
                    make_case(branch, problem_of(tokens, heads, head_dim, dtype), branches_of({branch}, causal)));
    return cases;
}

BenchCase gigapath_case(std::int64_t tokens, const std::string &dtype) {
    return make_case("Prov-GigaPath", problem_of(tokens, 16, 48, dtype), preset_of("gigapath"));
}

std::vector<BenchCase> cpu_cases(const std::string &dtype) {
    std::vector<BenchCase> cases = one_branch_cases(8192, 32768, 4, dtype);
    cases.push_back(gigapath_case(10001, dtype));
    return cases;
}

std::vector<BenchCase> cuda_cases(const std::string &dtype) {
    std::vector<BenchCase> cases = one_branch_cases(65536, 262144, 16, dtype);
    for (const bool causal : {false, true})
        cases.push_back(make_case("LongNet 2048:1 to 65536:32", problem_of(262144, 16, 128, dtype),
                                  preset_of("longnet:2048,2,2,6", causal)));
    for (const std::int64_t tokens : {10001, 70001})
        cases.push_back(gigapath_case(tokens, dtype));
    return cases;
}

BenchCase custom_case(const BenchOptions &options) {
    std::string name;
    for (const std::string &branch : options.pattern.labels())
        name += (name.empty() ? "" : " ") + branch;
    return make_case(name, options.problem, options.pattern);
}

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

Facts machine_facts(const BenchOptions &options, const Place &place, const std::vector<Yardstick> &yardsticks) {
    Facts facts{"machine",
                "Machine",
                {{{"build_info", "build"}, text_cell(annulus_build_info())},
                 place.fact(),
                 {{"repeats", "repeats"}, count_cell(options.repeats)}}};
    for (const auto &[name, description, unit, amount, work, rates] : yardsticks) {
        const std::string key = name + "_" + unit.key;
        facts.facts.insert(
            facts.facts.end(),
            {{{name, name}, text_cell(description)},
             {{key, name + " rate, median"}, scaled_cell(rates.median(), unit.text)},
             {{key + "_min", name + " rate, lowest"}, scaled_cell(rates.min(), unit.text)},
             {{key + "_max", name + " rate, highest"}, scaled_cell(rates.max(), unit.text)},
             {{name + "_measurements", name + " measurements"}, count_cell(static_cast<std::int64_t>(rates.size()))}});
    }
    return facts;
}

// What planning costs when no plan is kept: every problem is another one.
Facts planning_facts() {
    const Context context = make_context(preset_of("longnet:2048,2,2,6"), {}, 16);
    annulus_problem problem = problem_of(1'000'000'000, 16, 128, "float32").problem();
    Sample seconds;
    std::uint64_t plan_bytes = 0;
    for (int i = 0; i < 100; ++i) {
        annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
        problem.key_length = problem.query_length = ++problem.sequence_length;
        seconds.add(seconds_of(
            [&] { check(annulus_estimate_problem(context.get(), &problem, ANNULUS_ALL_BRANCHES, &estimate)); }));
        plan_bytes = std::max(plan_bytes, estimate.plan_bytes);
    }
    return {"planning",
            "Planning 1,000,000,000 tokens, 6 branches, 16 heads",
            {{{"seconds", "time, median"}, seconds_cell(seconds.median())},
             {{"seconds_min", "fastest"}, seconds_cell(seconds.min())},
             {{"seconds_max", "slowest"}, seconds_cell(seconds.max())},
             {{"problems", "problems, all distinct"}, count_cell(static_cast<std::int64_t>(seconds.size()))},
             {{"plan_bytes", "plan"}, bytes_cell(plan_bytes)}}};
}

void bench_cases(const BenchOptions &options, const std::vector<BenchCase> &cases, Place &place, Report &report) {
    std::vector<Yardstick> yardsticks = place.yardsticks(dtype_of(options.problem.dtype), options.execution.allow_tf32);
    Progress progress(static_cast<double>(cases.size()));
    std::vector<Line> lines;
    for (const BenchCase &bench_case : cases) {
        Run run(bench_case, Rank{.execution = options.execution}, place);
        const double tokens = static_cast<double>(bench_case.problem.tokens) * static_cast<double>(run.problem().batch);
        lines.push_back({bench_case.name, tokens, measure(run, options.repeats, yardsticks, place)});
        progress.advance(1);
    }
    report.add(machine_facts(options, place, yardsticks));
    report.add(case_table(lines, yardsticks.front()));
}

struct Scaling {
    std::vector<std::int64_t> lengths;
    std::int32_t heads;
    bool backward; // too
    std::int64_t tokens_in_a_row;
};

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

// The time of a token must not grow with their number. The lengths take turns, and short ones are done several times in
// a row, so that what else the machine does hits all of them alike.
void bench_scaling(const BenchOptions &options, const Scaling &scaling, Place &place, Report &report) {
    const std::vector<std::string> branches = {"4096:1", "16384:4"};
    const std::string &dtype = options.problem.dtype;
    std::vector<Yardstick> yardsticks = place.yardsticks(dtype_of(dtype), options.execution.allow_tf32);
    const auto measure_yardsticks = [&] {
        for (Yardstick &yardstick : yardsticks)
            measure(yardstick, place);
    };
    std::vector<std::unique_ptr<Run>> runs;
    std::vector<PassTimes> forward, backward;
    for (const std::int64_t length : scaling.lengths) {
        runs.push_back(std::make_unique<Run>(
            BenchCase{"", problem_of(length, scaling.heads, 64, dtype), branches_of(branches, false)},
            Rank{.execution = options.execution}, place));
        const annulus_estimate &estimate = runs.back()->estimate();
        forward.push_back({{}, estimate.forward_flops, estimate.forward_workspace_bytes, {}});
        backward.push_back({{}, estimate.backward_flops, estimate.backward_workspace_bytes, {}});
    }
    runs.front()->forward(); // warms up
    if (scaling.backward)
        for (const auto &run : runs) {
            run->forward();
            run->add_gradients();
            run->backward();
        }

    Progress progress(options.repeats * static_cast<double>(runs.size()));
    for (int i = 0; i < options.repeats; ++i)
        for (std::size_t j = 0; j < runs.size(); ++j) {
            const std::int64_t calls = std::max<std::int64_t>(scaling.tokens_in_a_row / scaling.lengths[j], 1);
            const auto time = [&](PassTimes &times, void (Run::*pass)()) {
                times.seconds.add(place.seconds_of([&] {
                    for (std::int64_t call = 0; call < calls; ++call)
                        ((*runs[j]).*pass)();
                }) / static_cast<double>(calls));
            };
            measure_yardsticks();
            time(forward[j], &Run::forward);
            if (scaling.backward)
                time(backward[j], &Run::backward);
            progress.advance(1);
        }
    measure_yardsticks();

    const std::string what =
        ", 4096:1 and 16384:4" + sizes_text(problem_of(0, scaling.heads, 64, dtype)) + ", median time of a token";
    report.add(machine_facts(options, place, yardsticks));
    report.add(scaling_table("scaling", "Scaling: forward" + what, scaling, forward, yardsticks.front()));
    if (scaling.backward)
        report.add(
            scaling_table("scaling_backward", "Scaling: backward" + what, scaling, backward, yardsticks.front()));
}

bool is_custom(const BenchOptions &options) {
    return options.problem.tokens || options.problem.heads || options.problem.head_dim || !options.pattern.empty();
}

bool on_cpu(const BenchOptions &options) {
    return options.execution.device.kind == ANNULUS_DEVICE_CPU;
}

std::vector<BenchCase> cases_of(const BenchOptions &options) {
    if (is_custom(options))
        return {custom_case(options)};
    return on_cpu(options) ? cpu_cases(options.problem.dtype) : cuda_cases(options.problem.dtype);
}

void bench_one_rank(BenchOptions options) {
    const std::unique_ptr<Place> place = make_place(options.execution.device, options.execution.thread_count());
    if (options.problem.dtype.empty())
        options.problem.dtype = annulus_dtype_name(place->fast_dtype());
    Report report;
    if (options.scaling) {
        const Scaling cpu_scaling = {{65536, 131072, 262144, 524288, 1048576}, 1, false, 262144};
        const Scaling cuda_scaling = {{131072, 262144, 524288, 1048576}, 8, true, 1048576};
        bench_scaling(options, on_cpu(options) ? cpu_scaling : cuda_scaling, *place, report);
    } else {
        bench_cases(options, cases_of(options), *place, report);
        if (!is_custom(options))
            report.add(planning_facts());
    }
    report.print(options.format);
}

void bench_several_ranks(const BenchOptions &options, Ranks &ranks) {
    std::vector<RanksLine> lines;
    Report report;
    ranks.run([&](const Rank &rank) {
        const std::unique_ptr<Place> place = make_place(rank.execution.device, rank.execution.thread_count());
        BenchOptions own = options;
        if (own.problem.dtype.empty())
            own.problem.dtype = annulus_dtype_name(place->fast_dtype());
        const std::vector<RanksLine> measured =
            measure_over_ranks(cases_of(own), rank, *place, options.repeats, options.weak);
        if (rank.index != 0)
            return;
        lines = measured;
        report.add(machine_facts(options, *place, {}));
    });
    if (!ranks.lead())
        return;
    report.add(speed_table(lines, options.weak));
    report.add(rank_table(lines));
    report.print(options.format);
}

void bench(const BenchOptions &options) {
    if (options.repeats < 1)
        throw bad_input("--repeats " + std::to_string(options.repeats) + ": must be at least 1");
    if (is_custom(options) && options.scaling)
        throw bad_input("--scaling has a problem and a pattern of its own");
    const std::unique_ptr<Ranks> ranks = make_ranks(options.ranks, options.execution);
    ranks->in_each_process([&] {
        if (ranks->count() > 1 && options.scaling)
            throw bad_input("--scaling is for one rank");
        if (ranks->count() == 1 && options.weak)
            throw bad_input("--weak compares several ranks with one: give --ranks");
        if (ranks->count() > 1)
            bench_several_ranks(options, *ranks);
        else
            bench_one_rank(options);
    });
}

} // namespace

void add_bench_command(CLI::App &program) {
    auto options = std::make_shared<BenchOptions>();
    CLI::App *command = program.add_subcommand(
        "bench",
        "Time forward and backward on random data beside OpenBLAS's sgemm, on a GPU beside cuBLAS's product of the "
        "same dtype: a set of cases, or one of your own. 'workspace' is what the library announces; 'measured peak' "
        "is what the first call takes above its tensors: the rise of the process's memory (VmHWM), on a GPU what the "
        "call allocates and what it leaves on the device (handles, kernels' code). With several ranks, on 1/P of the "
        "CPU threads each or a GPU each, they are compared with one rank of the same kind, measured in turns.");
    add_number<int>(*command, "--repeats", options->repeats, "Timed calls of each case after a warm-up, 5 unless given")
        ->type_name("R");
    command->add_flag("--scaling", options->scaling, "Time a token at growing lengths up to 1,048,576 instead");
    options->problem.add_to(*command, false);
    options->pattern.add_to(*command);
    options->execution.add_to(*command);
    options->ranks.add_to(*command);
    command
        ->add_flag("--weak", options->weak,
                   "The tokens are those of each rank, and one rank computes as many; else it computes all")
        ->group("Ranks");
    add_format_option(*command, options->format);
    command->callback([options] { bench(*options); });
}

} // namespace annulus::cli
