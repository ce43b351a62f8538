// SPDX-License-Identifier: Apache-2.0
// annulus attend: computes forward on arrays in .npy files.
#include "cli/arrays/host_tensor.hpp"
#include "cli/arrays/npy.hpp"
#include "cli/commands/attend_arrays.hpp"
#include "cli/commands/commands.hpp"
#include "cli/commands/context.hpp"
#include "cli/commands/problem_options.hpp"
#include "cli/commands/warnings.hpp"
#include "cli/devices/memory.hpp"
#include "cli/devices/mirror.hpp"
#include "cli/ranks/ranks.hpp"
#include "cli/report/progress.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace annulus::cli {

namespace {

struct AttendOptions {
    AttendFiles files;
    PatternOptions pattern;
    ExecutionOptions execution;
    RankOptions ranks;
};

// The tensors of all rows, or of the rows of a rank.
struct AttendTensors {
    annulus_tensor q, k, v, out;
    std::optional<annulus_tensor> lse;
};

// Computes a rank's part in pieces. With several ranks a piece is some batch entries. With one rank it may also be some
// query rows of one batch entry.
class Job {
  public:
    // Throws if the sizes are impossible, before any output exists. Forward checks everything else.
    Job(const Context &context, Memory &memory, const Rank &rank, const Inputs &inputs, std::int64_t query_start)
        : context_(context.get()), memory_(memory), rank_(rank), inputs_(inputs), query_start_(query_start),
          ranges_(rank.shards(inputs.q.shape[1]).ranges(rank.index)),
          rows_(rank.shards(inputs.q.shape[1]).rows(rank.index)), batch_(inputs.q.shape[0]) {
        // Pieces are long enough that cutting costs nothing, and short enough that the progress bar moves.
        const Memory::Piece piece = memory.piece(inputs.q.shape[2], largest_dilation(context_));
        const double entry_flops = estimate_flops({0, batch_, 0, rows_}) / static_cast<double>(batch_);
        if (rank.comm || entry_flops <= piece.flops) {
            const auto entries = static_cast<std::int64_t>(
                std::clamp(piece.flops / std::max(entry_flops, 1.0), 1.0, static_cast<double>(batch_)));
            batch_step_ = std::ranges::min(rank.gather(entries));
            row_step_ = rows_;
        } else {
            const double rows = piece.flops / entry_flops * static_cast<double>(rows_);
            batch_step_ = 1;
            row_step_ = (static_cast<std::int64_t>(rows) / piece.rows + 1) * piece.rows;
        }
    }

    const std::vector<Range> &ranges() const { return ranges_; }

    void run(const AttendTensors &tensors) const {
        const std::vector<Piece> pieces = make_pieces();
        std::optional<Progress> progress;
        if (rank_.index == 0) {
            double total = 0;
            for (const Piece &piece : pieces)
                total += estimate_flops(piece);
            progress.emplace(total);
        }
        for (const Piece &piece : pieces) {
            if (progress)
                progress->begin(estimate_flops(piece));
            run_piece(tensors, piece);
            memory_.finish();
        }
    }

  private:
    // Some batch entries, from b on, and query rows, from n on.
    struct Piece {
        std::int64_t b, entries, n, rows;
    };

    std::vector<Piece> make_pieces() const {
        std::vector<Piece> pieces;
        for (std::int64_t b = 0; b < batch_; b += batch_step_)
            for (std::int64_t n = 0; n == 0 || n < rows_; n += std::max<std::int64_t>(row_step_, 1))
                pieces.push_back({b, std::min(batch_step_, batch_ - b), n, std::min(row_step_, rows_ - n)});
        return pieces;
    }

    double estimate_flops(const Piece &piece) const {
        annulus_problem problem = inputs_.sizes();
        problem.batch = piece.entries;
        return forward_flops(context_, problem, query_start_ + piece.n, piece.rows, rank_.comm != nullptr);
    }

    void run_piece(const AttendTensors &tensors, const Piece &piece) const {
        const auto [b, entries, n, rows] = piece;
        const auto query_piece = [&, b = b, entries = entries, n = n, rows = rows](const annulus_tensor &t) {
            return slice(slice(t, 0, b, entries), 1, n, rows);
        };
        const annulus_tensor q = query_piece(tensors.q), out = query_piece(tensors.out);
        const annulus_tensor k = slice(tensors.k, 0, b, entries), v = slice(tensors.v, 0, b, entries);
        annulus_tensor lse{};
        if (tensors.lse)
            lse = slice(slice(*tensors.lse, 0, b, entries), 2, n, rows);
        annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
        if (!rank_.comm) {
            options.flags = ANNULUS_CALL_QUERY_WINDOW;
            options.query_start = query_start_ + n;
        }
        inputs_.name_sequences(options, b, entries);
        check(annulus_forward(context_, &q, &k, &v, &out, tensors.lse ? &lse : nullptr, &options));
    }

    annulus_context *context_;
    Memory &memory_;
    const Rank &rank_;
    const Inputs &inputs_;
    std::int64_t query_start_;
    std::vector<Range> ranges_; // of the rows of Q
    std::int64_t rows_;         // in all ranges together
    std::int64_t batch_;
    std::int64_t batch_step_, row_step_;
};

// Computes a rank's rows of the results from its rows of the inputs.
void compute(const Job &job, Memory &memory, const Rank &rank, const Inputs &inputs, const Results &results) {
    const auto rows_of = [&](const annulus_tensor &t) {
        std::vector<annulus_tensor> parts;
        for (const Range &range : job.ranges())
            parts.push_back(slice(t, 1, range.start, range.length));
        return rank.comm ? parts : std::vector{t};
    };
    Mirror q(memory, rows_of(inputs.q), 1), k(memory, rows_of(inputs.k), 1), v(memory, rows_of(inputs.v), 1);
    Mirror out(memory, results.out(job.ranges()), 1);
    std::optional<Mirror> lse;
    if (const std::vector<annulus_tensor> host = results.lse(job.ranges()); !host.empty())
        lse.emplace(memory, host, 2);
    for (Mirror *input : {&q, &k, &v})
        input->copy_in();
    rank.meet(); // from here on only library calls, which report their failure to the other ranks
    job.run({q.tensor(), k.tensor(), v.tensor(), out.tensor(), lse ? std::optional(lse->tensor()) : std::nullopt});
    out.copy_out();
    if (lse)
        lse->copy_out();
}

void attend(const AttendOptions &options) {
    refuse_ranks_of_a_part(options.files, options.ranks);
    check_outputs({{"--out", options.files.out}, {"--lse", options.files.lse}}, options.files.inputs());
    const std::unique_ptr<Ranks> ranks = make_ranks(options.ranks, options.execution);
    ranks->in_each_process([&] {
        const Inputs inputs(options.files);
        Results results(options.files, inputs);
        const std::int64_t tokens = inputs.q.shape[1];
        ranks->run([&](const Rank &rank) {
            const std::unique_ptr<Memory> memory = make_memory(rank.execution.device, rank.execution.thread_count());
            const Context context =
                make_context(options.pattern, rank.execution, static_cast<std::int32_t>(inputs.q.shape[2]));
            memory->order(context.get());
            rank.join(context.get(), rank.shards(tokens));
            const Job job(context, *memory, rank, inputs, options.files.query_start.value_or(0));
            rank.meet(); // all ranks have accepted the sizes
            if (rank.index == 0) {
                results.make_files();
                warn_of_inputs(inputs, options.pattern);
            } else if (!ranks->has_rank_0()) {
                results.hold(job.ranges());
            }
            rank.meet();
            compute(job, *memory, rank, inputs, results);
            inputs.check_unchanged();
        });
        const Shards shards(tokens, ranks->count(), options.ranks.sharding);
        ranks->collect([&](int rank) { return results.stretches(shards.ranges(rank)); });
        results.commit();
    });
}

} // namespace

void add_attend_command(CLI::App &program) {
    auto options = std::make_shared<AttendOptions>();
    Command command(program, "attend",
                    "Compute O, and LSE, of Q, K and V in .npy files: [B, N, H, D], or [N, H, D] for one batch entry; "
                    "float64, float32, float16, or bfloat16 as ml_dtypes writes it.");
    const auto add_file = [&](const char *name, std::string &path, const char *help, bool required) {
        command.file(name, path, help).required(required).group("Files");
    };
    add_file("--q", options->files.q, "Queries, read", true);
    add_file("--k", options->files.k, "Keys [B, N, G, D], G dividing H, read", true);
    add_file("--v", options->files.v, "Values [B, N, G, D], read", true);
    add_file("--out", options->files.out, "O, written once it is complete, in the dtype of the computation", true);
    add_file("--lse", options->files.lse, "LSE [B, H, N], written; float32, or float64 when O is", false);
    add_dtype_option(command, options->files.dtype, "Convert the inputs to this dtype first");
    command
        .number<std::int64_t>("--query-start", options->files.query_start, 0,
                              "Position of the first row of Q among those of K")
        .value("S");
    const auto add_sequences = [&](const char *name, std::string &text, const char *help) {
        command.text(name, text, help).value("FILE|LIST");
    };
    add_sequences("--starts", options->files.starts,
                  "The rows are packed sequences: the first row of each, and the end of the last (cu_seqlens); a .npy "
                  "file of int64 or int32, or numbers with commas between them");
    add_sequences("--lengths", options->files.lengths,
                  "With --starts how many rows of each sequence count; without, how many rows of each batch entry do");
    options->pattern.add_to(command);
    options->execution.add_to(command);
    options->ranks.add_to(command, false);
    command.example("annulus attend --q q.npy --k k.npy --v v.npy --out o.npy --branch 2048:1 --branch 8192:4");
    command.runs([options] { attend(*options); });
}

} // namespace annulus::cli
