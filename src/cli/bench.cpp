// SPDX-License-Identifier: Apache-2.0
// annulus bench: how fast, beside the rate of the machine's own matrix product measured in the same run.
#include "bench_case.hpp"
#include "commands.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "sgemm_rate.hpp"

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
    std::string format = "text";
};

ProblemOptions problem_of(std::int64_t tokens, std::int32_t heads, std::int32_t head_dim) {
    ProblemOptions problem;
    problem.tokens = tokens;
    problem.heads = heads;
    problem.head_dim = head_dim;
    return problem;
}

PatternOptions branches_of(std::vector<std::string> branches, bool causal) {
    PatternOptions pattern;
    pattern.branches = std::move(branches);
    pattern.causal = causal;
    return pattern;
}

// Equal numbers of (query, key) pairs, dense and dilated.
std::vector<BenchCase> default_cases() {
    std::vector<BenchCase> cases;
    for (const std::int32_t head_dim : {64, 128})
        for (const bool causal : {false, true})
            for (const auto &[branch, tokens] : {std::pair("2048:1", 8192), std::pair("8192:4", 32768)})
                cases.push_back(
                    {std::string(branch) + (causal ? " causal" : "") + ", H=4 D=" + std::to_string(head_dim),
                     problem_of(tokens, 4, head_dim), branches_of({branch}, causal)});
    BenchCase gigapath{"Prov-GigaPath, H=16 D=48", problem_of(10001, 16, 48), {}};
    gigapath.pattern.presets = {"gigapath"};
    cases.push_back(gigapath);
    return cases;
}

BenchCase custom_case(const BenchOptions &options) {
    std::string name;
    for (const std::string &branch : options.pattern.labels())
        name += (name.empty() ? "" : " ") + branch;
    name += options.pattern.causal ? " causal" : "";
    const ProblemOptions &p = options.problem;
    name += ", H=" + std::to_string(p.heads) + " D=" + std::to_string(p.head_dim);
    if (p.kv_heads && p.kv_heads != p.heads)
        name += " G=" + std::to_string(p.kv_heads);
    if (p.batch != 1)
        name += " B=" + std::to_string(p.batch);
    return {name + (p.dtype == "float32" ? "" : " " + p.dtype), p, options.pattern};
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
            real_cell(rate / line.measurement.sgemm_rates.median(), 2),
            seconds_cell(seconds),
            seconds_cell(times.seconds.min()),
            seconds_cell(times.seconds.max()),
            scaled_cell(line.tokens / seconds, "/s"),
            bytes_cell(times.workspace_bytes),
            times.measured_peak_bytes ? bytes_cell(*times.measured_peak_bytes) : missing_cell()};
}

Table case_table(const std::vector<Line> &lines) {
    Table table{"cases",
                "Cases: median times; sgemm took turns with each case's calls",
                {{"case", "case"},
                 {"pass", "pass"},
                 {"tokens", "tokens"},
                 {"flops_per_second", "rate"},
                 {"share_of_sgemm", "of sgemm"},
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

Facts machine_facts(const BenchOptions &options, const SgemmRate &sgemm) {
    const Sample &rates = sgemm.rates();
    return {"machine",
            "Machine",
            {{{"build_info", "build"}, text_cell(annulus_build_info())},
             {{"threads", "threads"}, count_cell(options.execution.thread_count())},
             {{"repeats", "repeats"}, count_cell(options.repeats)},
             {{"sgemm", "sgemm"}, text_cell(sgemm.description())},
             {{"sgemm_flops_per_second", "sgemm rate, median"}, scaled_cell(rates.median(), "FLOP/s")},
             {{"sgemm_flops_per_second_min", "sgemm rate, lowest"}, scaled_cell(rates.min(), "FLOP/s")},
             {{"sgemm_flops_per_second_max", "sgemm rate, highest"}, scaled_cell(rates.max(), "FLOP/s")},
             {{"sgemm_measurements", "sgemm measurements"}, count_cell(static_cast<std::int64_t>(rates.size()))}}};
}

// What planning costs when no plan is kept: every problem is another one.
Facts planning_facts() {
    PatternOptions pattern;
    pattern.presets = {"longnet:2048,2,2,6"};
    const Context context = make_context(pattern, {}, 16);
    annulus_problem problem = problem_of(1'000'000'000, 16, 128).problem();
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

void bench_cases(const BenchOptions &options, const std::vector<BenchCase> &cases, SgemmRate &sgemm, Report &report) {
    Progress progress(static_cast<double>(cases.size()));
    std::vector<Line> lines;
    for (const BenchCase &bench_case : cases) {
        Run run(bench_case, options.execution);
        const double tokens = static_cast<double>(bench_case.problem.tokens) * static_cast<double>(run.problem().batch);
        lines.push_back({bench_case.name, tokens, measure(run, options.repeats, sgemm)});
        progress.advance(1);
    }
    report.add(machine_facts(options, sgemm));
    report.add(case_table(lines));
}

// The time of a token must not grow with their number. The lengths take turns, and short ones are done several times in
// a row, so that what else the machine does hits all of them alike.
void bench_scaling(const BenchOptions &options, SgemmRate &sgemm, Report &report) {
    const std::vector<std::string> branches = {"4096:1", "16384:4"};
    const std::vector<std::int64_t> lengths = {65536, 131072, 262144, 524288, 1048576};
    constexpr std::int64_t tokens_in_a_row = 262144;
    std::vector<std::unique_ptr<Run>> runs(lengths.size());
    for (std::size_t j = 0; j < lengths.size(); ++j)
        runs[j] = std::make_unique<Run>(BenchCase{"", problem_of(lengths[j], 1, 64), branches_of(branches, false)},
                                        options.execution);
    runs.front()->forward(); // warms up
    std::vector<Sample> seconds(lengths.size());
    Progress progress(options.repeats * static_cast<double>(lengths.size()));
    for (int i = 0; i < options.repeats; ++i) {
        for (std::size_t j = 0; j < lengths.size(); ++j) {
            sgemm.measure();
            const std::int64_t calls = std::max<std::int64_t>(tokens_in_a_row / lengths[j], 1);
            seconds[j].add(seconds_of([&] {
                               for (std::int64_t call = 0; call < calls; ++call)
                                   runs[j]->forward();
                           }) /
                           static_cast<double>(calls));
            progress.advance(1);
        }
    }
    sgemm.measure();

    Table table{"scaling",
                "Scaling: forward, 4096:1 and 16384:4, H=1 D=64, median time of a token",
                {{"tokens", "tokens"},
                 {"seconds_per_token", "a token"},
                 {"relative", "to the shortest"},
                 {"seconds", "time"},
                 {"seconds_min", "fastest"},
                 {"seconds_max", "slowest"},
                 {"share_of_sgemm", "of sgemm"},
                 {"workspace_bytes", "workspace"}},
                {}};
    const double first = seconds[0].median() / static_cast<double>(lengths[0]);
    for (std::size_t j = 0; j < lengths.size(); ++j) {
        const double median = seconds[j].median(), each = median / static_cast<double>(lengths[j]);
        table.rows.push_back({count_cell(lengths[j]), seconds_cell(each), real_cell(each / first, 3),
                              seconds_cell(median), seconds_cell(seconds[j].min()), seconds_cell(seconds[j].max()),
                              real_cell(runs[j]->estimate().forward_flops / median / sgemm.rates().median(), 2),
                              bytes_cell(runs[j]->estimate().forward_workspace_bytes)});
    }
    report.add(machine_facts(options, sgemm));
    report.add(table);
}

void bench(const BenchOptions &options) {
    if (options.repeats < 1)
        throw bad_input("--repeats " + std::to_string(options.repeats) + ": must be at least 1");
    const bool custom =
        options.problem.tokens || options.problem.heads || options.problem.head_dim || !options.pattern.empty();
    if (custom && options.scaling)
        throw bad_input("--scaling has a problem and a pattern of its own");
    Report report;
    SgemmRate sgemm(options.execution.thread_count());
    if (options.scaling)
        bench_scaling(options, sgemm, report);
    else
        bench_cases(options, custom ? std::vector{custom_case(options)} : default_cases(), sgemm, report);
    if (!custom && !options.scaling)
        report.add(planning_facts());
    report.print(options.format);
}

} // namespace

void add_bench_command(CLI::App &program) {
    auto options = std::make_shared<BenchOptions>();
    CLI::App *command = program.add_subcommand(
        "bench",
        "Time forward and backward on random data beside OpenBLAS's sgemm: a set of cases, or one of your own. "
        "'workspace' is what the library announces; 'measured peak' is the rise of the process's memory (VmHWM) "
        "above its tensors during the first call.");
    command->add_option("--repeats", options->repeats, "Timed calls of each case after a warm-up, 5 unless given")
        ->type_name("R");
    command->add_flag("--scaling", options->scaling, "Time a token at 65,536 to 1,048,576 tokens instead");
    options->problem.add_to(*command, false);
    options->pattern.add_to(*command);
    options->execution.add_to(*command);
    add_format_option(*command, options->format);
    command->callback([options] { bench(*options); });
}

} // namespace annulus::cli
