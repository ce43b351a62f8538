// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_ranks.hpp"

#include "cli/report/progress.hpp"

#include <algorithm>
#include <memory>
#include <new>

namespace annulus::cli {

namespace {

using Pass = void (Workload::*)();

// A row of calls takes about seconds_in_a_row. It has at least one call and at most max_calls_in_a_row.
constexpr int max_calls_in_a_row = 10;
constexpr double seconds_in_a_row = 0.5;

// Returns the case that the ranks share. If `weak`, its tokens are those of `alone` for each rank.
BenchCase shared_case(const BenchCase &alone, int ranks, bool weak) {
    BenchCase shared = alone;
    if (weak && __builtin_mul_overflow(shared.problem.tokens, ranks, &shared.problem.tokens))
        throw bad_input("--tokens " + std::to_string(alone.problem.tokens) + ": too many for each of " +
                        std::to_string(ranks) + " ranks");
    return shared;
}

// Returns the FLOPs of a pass on a rank: its part of the shared problem, and the whole problem that it computes alone.
double work_of(const RanksPass &pass, const Rank &rank) {
    return pass.flops / rank.count + pass.alone_flops;
}

// Returns the FLOPs that the measurement of a case reports to its progress. It consists of the first calls, the
// warm-up, and rounds of a single call and a row of calls. A row counts as one call.
double work_of(const RanksLine &line, const Rank &rank, const Memory &memory, int repeats) {
    return (1 + memory.warm_up_rounds() + 2 * repeats) * (work_of(line.forward, rank) + work_of(line.backward, rank));
}

RanksLine line_of(const BenchCase &shared, const BenchCase &alone, const Rank &rank) {
    RanksLine line;
    line.name = shared.name;
    line.tokens = static_cast<double>(shared.problem.tokens) * static_cast<double>(shared.problem.batch);
    const PassFlops all = estimate_flops(shared, rank.execution), one = estimate_flops(alone, rank.execution);
    line.forward.flops = all.forward;
    line.forward.alone_flops = one.forward;
    line.backward.flops = all.backward;
    line.backward.alone_flops = one.backward;
    return line;
}

// Measures one case. Each rank has an object of its own.
class RanksMeasurement {
  public:
    // `progress` may be NULL.
    RanksMeasurement(const RanksLine &line, const BenchCase &shared, const BenchCase &alone, const Rank &rank,
                     Memory &memory, Progress *progress)
        : rank_(rank), memory_(memory), progress_(progress), alone_case_(alone), shared_(shared, rank, memory),
          line_(line) {
        line_.exchange = shared_.forward_estimate().exchange;
    }

    RanksLine measure(int repeats) {
        const double shared_round = (line_.forward.flops + line_.backward.flops) / rank_.count;
        begin(line_.forward.flops / rank_.count);
        line_.forward.costs = costs_of(&Workload::forward, ANNULUS_PASS_FORWARD);
        shared_.add_gradients();
        begin(line_.backward.flops / rank_.count);
        line_.backward.costs = costs_of(&Workload::backward, ANNULUS_PASS_BACKWARD);
        for (int i = 0; i < memory_.warm_up_rounds(); ++i) {
            begin(shared_round);
            shared_.forward();
            shared_.backward();
        }
        make_alone();
        for (int i = 0; i < repeats; ++i) {
            time(&Workload::forward, line_.forward);
            time(&Workload::backward, line_.backward);
        }
        return line_;
    }

  private:
    void begin(double work) {
        if (progress_)
            progress_->begin(work);
    }

    // Runs the first call of a pass. Returns what it costs each rank.
    std::vector<RankCost> costs_of(Pass pass, annulus_pass id) {
        RankCost cost{};
        cost.rows = shared_.rows();
        check(annulus_workspace_size(shared_.context(), &shared_.problem(), id, &cost.workspace_bytes));
        rank_.meet();
        const auto call = [&] { (shared_.*pass)(); };
        if (memory_.is_host() && !rank_.has_process) { // the system measures whole processes only
            call();
        } else if (const std::optional<std::uint64_t> peak = memory_.peak_bytes_of(shared_.context(), call)) {
            cost.peak_is_known = true;
            cost.peak_bytes = *peak;
        }
        annulus_traffic traffic = ANNULUS_TRAFFIC_INIT;
        check(annulus_context_last_traffic(shared_.context(), &traffic));
        cost.sent_bytes = traffic.sent_bytes;
        cost.received_bytes = traffic.received_bytes;
        return rank_.gather(cost);
    }

    // Prepares the problem that each rank computes alone. If one rank lacks the memory, no rank has a problem to
    // compare with.
    void make_alone() {
        try {
            Rank alone;
            alone.execution = rank_.execution;
            alone_ = std::make_unique<Workload>(alone_case_, alone, memory_);
            alone_->add_gradients();
            for (int i = 0; i <= memory_.warm_up_rounds(); ++i) {
                begin(line_.forward.alone_flops + line_.backward.alone_flops);
                alone_->forward();
                alone_->backward();
            }
            memory_.finish();
        } catch (const Failure &) {
            alone_.reset();
        } catch (const std::bad_alloc &) {
            alone_.reset();
        }
        if (std::ranges::min(rank_.gather(alone_ ? 1 : 0)) == 0)
            alone_.reset();
    }

    void time(Pass pass, RanksPass &results) {
        begin(results.alone_flops);
        if (alone_)
            time(*alone_, pass, results.alone, results.alone_flops);
        begin(results.flops / rank_.count);
        time(shared_, pass, results.times, results.flops / rank_.count);
    }

    void time(Workload &workload, Pass pass, CallTimes &times, double work) {
        const auto slowest = [&](double seconds) { return std::ranges::max(rank_.gather(seconds)); };
        rank_.meet();
        const double single = slowest(memory_.seconds_of([&] { (workload.*pass)(); }));
        times.single.add(single);
        const int calls = static_cast<int>(std::clamp(seconds_in_a_row / single, 1., double{max_calls_in_a_row}));
        rank_.meet(); // once more, so that ranks that waited long are awake
        begin(work);
        double host_seconds = 0;
        const double all_seconds = memory_.seconds_of([&] {
            host_seconds = seconds_of([&] {
                for (int i = 0; i < calls; ++i)
                    (workload.*pass)();
            });
        });
        times.in_a_row.add(slowest(all_seconds / calls));
        times.host.add(slowest(host_seconds / calls));
    }

    const Rank &rank_;
    Memory &memory_;
    Progress *const progress_;
    const BenchCase &alone_case_;
    Workload shared_;
    std::unique_ptr<Workload> alone_;
    RanksLine line_;
};

std::optional<std::uint64_t> largest_peak(const RanksPass &pass) {
    std::uint64_t largest = 0;
    for (const RankCost &cost : pass.costs) {
        if (!cost.peak_is_known)
            return std::nullopt;
        largest = std::max(largest, cost.peak_bytes);
    }
    return largest;
}

std::uint64_t largest(const RanksPass &pass, std::uint64_t RankCost::*bytes) {
    std::uint64_t result = 0;
    for (const RankCost &cost : pass.costs)
        result = std::max(result, cost.*bytes);
    return result;
}

Cell peak_cell(const std::optional<std::uint64_t> &bytes) {
    return bytes ? bytes_cell(*bytes) : missing_cell();
}

std::vector<Cell> speed_row(const RanksLine &line, const char *name, const RanksPass &pass) {
    const auto ranks = static_cast<double>(pass.costs.size());
    const Sample &single = pass.times.single;
    const double seconds = single.median(), in_a_row = pass.times.in_a_row.median(), rate = pass.flops / seconds;
    std::vector<Cell> row = {text_cell(line.name),
                             text_cell(name),
                             count_cell(static_cast<std::int64_t>(line.tokens)),
                             count_cell(static_cast<std::int64_t>(pass.costs.size())),
                             text_cell(exchange_name(line.exchange)),
                             scaled_cell(rate, "FLOP/s"),
                             scaled_cell(rate / ranks, "FLOP/s"),
                             seconds_cell(seconds),
                             seconds_cell(single.min()),
                             seconds_cell(single.max()),
                             seconds_cell(in_a_row),
                             seconds_cell(pass.times.host.median())};
    if (pass.alone.single.size() > 0) {
        const double alone = pass.alone.single.median(), alone_rate = pass.alone_flops / alone;
        const double alone_in_a_row = pass.alone.in_a_row.median();
        row.insert(row.end(), {seconds_cell(alone), scaled_cell(alone_rate, "FLOP/s"), real_cell(rate / alone_rate, 2),
                               real_cell(rate / ranks / alone_rate, 3), seconds_cell(alone_in_a_row),
                               real_cell(pass.flops / in_a_row / ranks / (pass.alone_flops / alone_in_a_row), 3)});
    } else {
        row.insert(row.end(), 6, missing_cell());
    }
    row.insert(row.end(), {bytes_cell(largest(pass, &RankCost::workspace_bytes)), peak_cell(largest_peak(pass)),
                           bytes_cell(largest(pass, &RankCost::sent_bytes)),
                           bytes_cell(largest(pass, &RankCost::received_bytes))});
    return row;
}

} // namespace

std::vector<RanksLine> measure_over_ranks(const std::vector<BenchCase> &cases, const Rank &rank, Memory &memory,
                                          int repeats, bool weak) {
    std::vector<RanksLine> lines;
    double work = 0;
    for (const BenchCase &alone : cases) {
        lines.push_back(line_of(shared_case(alone, rank.count, weak), alone, rank));
        work += work_of(lines.back(), rank, memory, repeats);
    }
    std::optional<Progress> progress;
    if (rank.index == 0)
        progress.emplace(work);
    for (std::size_t i = 0; i < cases.size(); ++i) {
        const BenchCase shared = shared_case(cases[i], rank.count, weak);
        RanksMeasurement measurement(lines[i], shared, cases[i], rank, memory, progress ? &*progress : nullptr);
        lines[i] = measurement.measure(repeats);
    }
    return lines;
}

Table speed_table(const std::vector<RanksLine> &lines, bool weak) {
    Table table{
        "cases",
        std::string("Cases: median times of the slowest rank, in turns with each rank alone, all at once, ") +
            (weak ? "on its own tokens" : "on all tokens") +
            "; single calls, then up to ten in a row, of which 'host' is until the last of them returned; bytes of "
            "the rank with the most",
        {{"case", "case"},
         {"pass", "pass"},
         {"tokens", "tokens"},
         {"ranks", "ranks"},
         {"exchange", "exchange"},
         {"flops_per_second", "rate"},
         {"flops_per_second_per_rank", "a rank"},
         {"seconds", "time"},
         {"seconds_min", "fastest"},
         {"seconds_max", "slowest"},
         {"row_seconds", "in a row"},
         {"row_host_seconds", "host, in a row"},
         {"one_rank_seconds", "one rank's time"},
         {"one_rank_flops_per_second", "one rank's rate"},
         {"speed_up", "speed-up"},
         {"efficiency", "efficiency"},
         {"row_one_rank_seconds", "one rank's, in a row"},
         {"row_efficiency", "efficiency, in a row"},
         {"workspace_bytes", "workspace"},
         {"measured_peak_bytes", "measured peak"},
         {"sent_bytes", "sent"},
         {"received_bytes", "received"}},
        {}};
    for (const RanksLine &line : lines) {
        table.rows.push_back(speed_row(line, "forward", line.forward));
        table.rows.push_back(speed_row(line, "backward", line.backward));
    }
    return table;
}

Table rank_table(const std::vector<RanksLine> &lines) {
    Table table{"ranks",
                "Ranks",
                {{"case", "case"},
                 {"pass", "pass"},
                 {"rank", "rank"},
                 {"rows", "rows"},
                 {"workspace_bytes", "workspace"},
                 {"measured_peak_bytes", "measured peak"},
                 {"sent_bytes", "sent"},
                 {"received_bytes", "received"}},
                {}};
    const auto add = [&](const RanksLine &line, const char *name, const RanksPass &pass) {
        for (std::size_t i = 0; i < pass.costs.size(); ++i) {
            const RankCost &cost = pass.costs[i];
            table.rows.push_back({text_cell(line.name), text_cell(name), count_cell(static_cast<std::int64_t>(i)),
                                  count_cell(cost.rows), bytes_cell(cost.workspace_bytes),
                                  peak_cell(cost.peak_is_known ? std::optional(cost.peak_bytes) : std::nullopt),
                                  bytes_cell(cost.sent_bytes), bytes_cell(cost.received_bytes)});
        }
    };
    for (const RanksLine &line : lines) {
        add(line, "forward", line.forward);
        add(line, "backward", line.backward);
    }
    return table;
}

} // namespace annulus::cli
