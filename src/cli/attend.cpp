// SPDX-License-Identifier: Apache-2.0
// annulus attend: forward on arrays in .npy files.
#include "commands.hpp"
#include "host_tensor.hpp"
#include "mpi_ranks.hpp"
#include "npy.hpp"
#include "options.hpp"
#include "place.hpp"
#include "progress.hpp"
#include "ranks.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace annulus::cli {

namespace {

struct AttendOptions {
    std::string q, k, v, out, lse;
    std::optional<std::int64_t> query_start;
    std::string dtype;
    PatternOptions pattern;
    ExecutionOptions execution;
    RankOptions ranks;
};

Shape with_batch(const InputArray &array) {
    Shape shape = array.shape();
    if (shape.size() == 3)
        shape.insert(shape.begin(), 1);
    return shape;
}

annulus_tensor tensor_of(const InputArray &array) {
    return view(array.data(), array.dtype(), with_batch(array));
}

std::string text(const Shape &shape) {
    std::string result;
    for (const std::int64_t size : shape)
        result += (result.empty() ? "[" : ", ") + std::to_string(size);
    return result + "]";
}

// What pieces of the arrays would hide from the library; it checks the rest.
void check_inputs(const InputArray &q, const InputArray &k, const InputArray &v) {
    for (const InputArray *array : {&q, &k, &v}) {
        const std::size_t rank = array->shape().size();
        if (rank != 3 && rank != 4)
            throw bad_input(array->option() + ": the array has " + std::to_string(rank) +
                            " dimensions; it must have 4, [B, N, H, D], or 3, [N, H, D]");
        if (rank != q.shape().size())
            throw bad_input(array->option() + ": the array has " + std::to_string(rank) +
                            " dimensions and that of --q " + std::to_string(q.shape().size()) + "; they must be equal");
        if (array->dtype() != q.dtype())
            throw bad_input(array->option() + ": the dtype is " + annulus_dtype_name(array->dtype()) +
                            " and that of --q " + annulus_dtype_name(q.dtype()) +
                            "; they must be equal, or --dtype given");
    }
    const Shape &of_q = q.shape(), &of_k = k.shape();
    const bool same_batch = of_q.size() == 3 || of_q[0] == of_k[0];
    if (!same_batch || of_q.back() != of_k.back())
        throw bad_input("--k: the shape is " + text(of_k) + " and that of --q " + text(of_q) + "; " +
                        (same_batch ? "the last" : "the first") + " dimensions must be equal");
    if (v.shape() != of_k)
        throw bad_input("--v: the shape is " + text(v.shape()) + " and that of --k " + text(of_k) +
                        "; they must be equal");
}

// The inputs, which each process maps whole.
class Inputs {
  public:
    explicit Inputs(const AttendOptions &options) : q_("--q", options.q), k_("--k", options.k), v_("--v", options.v) {
        if (!options.dtype.empty())
            for (InputArray *array : {&q_, &k_, &v_})
                if (const annulus_dtype dtype = dtype_of(options.dtype); array->dtype() != dtype)
                    array->convert_to(dtype);
        check_inputs(q_, k_, v_);
        q = tensor_of(q_);
        k = tensor_of(k_);
        v = tensor_of(v_);
        for (const auto &[option, tensor] : {std::pair("--q", &q), std::pair("--k", &k)})
            for (const int dimension : {2, 3})
                if (!std::in_range<std::int32_t>(tensor->shape[dimension]))
                    throw bad_input(std::string(option) + ": the array has " +
                                    std::to_string(tensor->shape[dimension]) +
                                    (dimension == 2 ? " heads" : " numbers a head") + "; 2147483647 are the most");
        if (!options.query_start && q.shape[1] != k.shape[1])
            throw bad_input("--q has " + std::to_string(q.shape[1]) + " rows and --k " + std::to_string(k.shape[1]) +
                            "; they must be equal, or --query-start given");
    }

    void check_unchanged() const {
        for (const InputArray *array : {&q_, &k_, &v_})
            array->check_unchanged();
    }

    // As it stands in the file of Q: with a batch or without.
    const Shape &shape_of_q() const { return q_.shape(); }

    annulus_tensor q, k, v; // with a batch

  private:
    InputArray q_, k_, v_;
};

// O and LSE: whole, in files, in the process of rank 0; in any other the rows of its own rank, in memory.
class Results {
  public:
    Results(const AttendOptions &options, const Inputs &inputs)
        : options_(options), inputs_(inputs),
          lse_dtype_(inputs.q.dtype == ANNULUS_FLOAT64 ? ANNULUS_FLOAT64 : ANNULUS_FLOAT32) {}

    void make_files() {
        const Shape shape = inputs_.shape_of_q();
        out_file_.emplace("--out", options_.out, inputs_.q.dtype, shape);
        set_tensors(out_file_->data(), nullptr, inputs_.q.shape[1]);
        if (!lse_)
            return;
        const Shape lse_shape = shape_of(*lse_);
        lse_file_.emplace("--lse", options_.lse, lse_dtype_,
                          shape.size() == 4 ? lse_shape : Shape(lse_shape.begin() + 1, lse_shape.end()));
        if (lse_file_->path() == out_file_->path())
            throw bad_input("--lse: '" + options_.lse + "' is the file of --out");
        lse_->data = lse_file_->data();
    }

    void make_memory(const Shard &rows) {
        start_ = rows.start;
        set_tensors(nullptr, nullptr, rows.length);
        out_memory_.resize(bytes_of(out_));
        out_.data = out_memory_.data();
        if (!lse_)
            return;
        lse_memory_.resize(bytes_of(*lse_));
        lse_->data = lse_memory_.data();
    }

    // The rows of a shard.
    annulus_tensor out(const Shard &rows) const { return slice(out_, 1, rows.start - start_, rows.length); }
    std::optional<annulus_tensor> lse(const Shard &rows) const {
        return lse_ ? std::optional(slice(*lse_, 2, rows.start - start_, rows.length)) : std::nullopt;
    }
    // In the same pieces in every process: a batch entry of O, a head of a batch entry of LSE.
    std::vector<Stretch> stretches(const Shard &rows) const {
        std::vector<Stretch> all;
        const auto add = [&](const annulus_tensor &part) {
            const std::vector<Stretch> more = stretches_of(part);
            all.insert(all.end(), more.begin(), more.end());
        };
        for (std::int64_t b = 0; b < out_.shape[0]; ++b) {
            add(slice(out(rows), 0, b, 1));
            for (std::int64_t h = 0; lse_ && h < lse_->shape[1]; ++h)
                add(slice(slice(*lse(rows), 0, b, 1), 1, h, 1));
        }
        return all;
    }

    // Gives the files, if they are here, their names.
    void commit() {
        for (std::optional<OutputArray> *file : {&out_file_, &lse_file_})
            if (*file)
                (*file)->commit();
    }

  private:
    void set_tensors(void *out, void *lse, std::int64_t rows) {
        const annulus_tensor &q = inputs_.q;
        out_ = view(out, q.dtype, {q.shape[0], rows, q.shape[2], q.shape[3]});
        if (!options_.lse.empty())
            lse_ = view(lse, lse_dtype_, {q.shape[0], q.shape[2], rows});
    }

    const AttendOptions &options_;
    const Inputs &inputs_;
    annulus_dtype lse_dtype_;
    std::optional<OutputArray> out_file_, lse_file_;
    std::vector<std::byte> out_memory_, lse_memory_;
    annulus_tensor out_{};
    std::optional<annulus_tensor> lse_;
    std::int64_t start_ = 0; // the position of their first row
};

// A tensor of the host's where the calls of a place reach it.
class Mirror {
  public:
    Mirror(Place &place, const annulus_tensor &host) : place_(place), tensor_(host) {
        if (place.is_host())
            return;
        memory_ = place.allocate(bytes_of(host));
        tensor_ = view(memory_.get(), host.dtype, shape_of(host));
        stretches_ = stretches_of(host);
    }

    const annulus_tensor &tensor() const { return tensor_; }
    void copy_in() {
        for_each([&](std::byte *here, const Stretch &host) { place_.copy_in(here, host.data, host.bytes); });
    }
    void copy_out() {
        for_each([&](std::byte *here, const Stretch &host) { place_.copy_out(host.data, here, host.bytes); });
    }

  private:
    template <class Copy> void for_each(const Copy &copy) {
        std::byte *here = memory_.get();
        for (const Stretch &host : stretches_) {
            copy(here, host);
            here += host.bytes;
        }
    }

    Place &place_;
    Memory memory_;
    annulus_tensor tensor_;
    std::vector<Stretch> stretches_; // of the host's tensor; none where this is that
};

// The arrays of one call.
struct Call {
    annulus_tensor q, k, v, out;
    std::optional<annulus_tensor> lse;
};

// How a rank's part is done in pieces: parts of the batch or, of a rank that is alone, of the query rows of one batch
// entry.
class Job {
  public:
    // Refuses sizes that cannot be, before any output exists. Forward checks the rest.
    Job(const Context &context, Place &place, const Rank &rank, const Inputs &inputs, std::int64_t query_start)
        : context_(context.get()), place_(place), rank_(rank), query_start_(query_start),
          rows_(shard_of(inputs.q.shape[1], rank.index, rank.count)), batch_(inputs.q.shape[0]) {
        const Place::Piece piece = place.piece(); // long enough to cost nothing, short enough for a bar to move
        const double entry_flops = check_and_estimate(inputs.q, inputs.k) / static_cast<double>(batch_);
        if (rank.comm || entry_flops <= piece.flops) {
            const auto entries = static_cast<std::int64_t>(
                std::clamp(piece.flops / std::max(entry_flops, 1.0), 1.0, static_cast<double>(batch_)));
            batch_step_ = std::ranges::min(rank.gather(entries));
            row_step_ = rows_.length;
        } else {
            const double rows = piece.flops / entry_flops * static_cast<double>(rows_.length);
            batch_step_ = 1;
            row_step_ = (static_cast<std::int64_t>(rows) / piece.rows + 1) * piece.rows;
        }
    }

    const Shard &rows() const { return rows_; }

    void run(const Call &call) const {
        std::optional<Progress> progress;
        if (rank_.index == 0)
            progress.emplace(static_cast<double>(batch_) * static_cast<double>(rows_.length));
        for (std::int64_t b = 0; b < batch_; b += batch_step_)
            for (std::int64_t n = 0; n == 0 || n < rows_.length; n += std::max<std::int64_t>(row_step_, 1)) {
                const std::int64_t entries = std::min(batch_step_, batch_ - b);
                const std::int64_t rows = std::min(row_step_, rows_.length - n);
                run_piece(call, b, entries, n, rows);
                place_.finish();
                if (progress)
                    progress->advance(static_cast<double>(entries) * static_cast<double>(rows));
            }
    }

  private:
    double check_and_estimate(const annulus_tensor &q, const annulus_tensor &k) const {
        if (k.shape[1] - q.shape[1] < query_start_ || query_start_ < 0)
            throw bad_input("--query-start " + std::to_string(query_start_) + ": the " + std::to_string(q.shape[1]) +
                            " rows of --q must then lie within the " + std::to_string(k.shape[1]) + " rows of --k");
        annulus_problem problem = ANNULUS_PROBLEM_INIT;
        problem.dtype = q.dtype;
        problem.heads = static_cast<std::int32_t>(q.shape[2]);
        problem.kv_heads = static_cast<std::int32_t>(k.shape[2]);
        problem.head_dim = static_cast<std::int32_t>(q.shape[3]);
        problem.batch = q.shape[0];
        problem.sequence_length = k.shape[1];
        problem.query_start = query_start_ + rows_.start;
        problem.query_length = rows_.length;
        problem.key_start = rank_.comm ? rows_.start : 0;
        problem.key_length = rank_.comm ? rows_.length : k.shape[1];
        annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
        check(annulus_estimate_problem(context_, &problem, ANNULUS_ALL_BRANCHES, &estimate));
        return estimate.forward_flops;
    }

    void run_piece(const Call &call, std::int64_t b, std::int64_t entries, std::int64_t n, std::int64_t rows) const {
        const auto query_piece = [&](const annulus_tensor &t) { return slice(slice(t, 0, b, entries), 1, n, rows); };
        const annulus_tensor q = query_piece(call.q), out = query_piece(call.out);
        const annulus_tensor k = slice(call.k, 0, b, entries), v = slice(call.v, 0, b, entries);
        annulus_tensor lse{};
        if (call.lse)
            lse = slice(slice(*call.lse, 0, b, entries), 2, n, rows);
        annulus_window window = ANNULUS_WINDOW_INIT;
        window.query_start = query_start_ + n;
        check(annulus_forward(context_, &q, &k, &v, &out, call.lse ? &lse : nullptr, rank_.comm ? nullptr : &window));
    }

    annulus_context *context_;
    Place &place_;
    const Rank &rank_;
    std::int64_t query_start_;
    Shard rows_; // of Q
    std::int64_t batch_;
    std::int64_t batch_step_, row_step_;
};

// What a rank does: from its rows of the inputs to its rows of the results.
void compute(const Job &job, Place &place, const Rank &rank, const Inputs &inputs, const Results &results) {
    const auto rows_of = [&](const annulus_tensor &t) {
        return rank.comm ? slice(t, 1, job.rows().start, job.rows().length) : t;
    };
    Mirror q(place, rows_of(inputs.q)), k(place, rows_of(inputs.k)), v(place, rows_of(inputs.v));
    Mirror out(place, results.out(job.rows()));
    std::optional<Mirror> lse;
    if (const std::optional<annulus_tensor> host = results.lse(job.rows()))
        lse.emplace(place, *host);
    for (Mirror *input : {&q, &k, &v})
        input->copy_in();
    rank.meet(); // from here on nothing but calls of the library, which tell the other ranks of their failures
    job.run({q.tensor(), k.tensor(), v.tensor(), out.tensor(), lse ? std::optional(lse->tensor()) : std::nullopt});
    out.copy_out();
    if (lse)
        lse->copy_out();
}

void attend(const AttendOptions &options) {
    if (options.query_start && (options.ranks.count || mpi_place().count > 1))
        throw bad_input("--query-start: several ranks share the rows of --q out as those of --k; without ranks a part "
                        "of the rows can be computed");
    const std::unique_ptr<Ranks> ranks = make_ranks(options.ranks, options.execution);
    ranks->in_each_process([&] {
        const Inputs inputs(options);
        Results results(options, inputs);
        const std::int64_t tokens = inputs.q.shape[1];
        ranks->run([&](const Rank &rank) {
            const std::unique_ptr<Place> place = make_place(rank.execution.device, rank.execution.thread_count());
            const Context context =
                make_context(options.pattern, rank.execution, static_cast<std::int32_t>(inputs.q.shape[2]));
            place->order(context.get());
            rank.join(context.get(), tokens);
            const Job job(context, *place, rank, inputs, options.query_start.value_or(0));
            rank.meet(); // no rank refuses
            if (rank.index == 0)
                results.make_files();
            else if (!ranks->lead())
                results.make_memory(job.rows());
            rank.meet();
            compute(job, *place, rank, inputs, results);
            inputs.check_unchanged();
        });
        ranks->collect([&](int rank) { return results.stretches(shard_of(tokens, rank, ranks->count())); });
        results.commit();
    });
}

} // namespace

void add_attend_command(CLI::App &program) {
    auto options = std::make_shared<AttendOptions>();
    CLI::App *command = program.add_subcommand(
        "attend", "Compute O, and LSE, of Q, K and V in .npy files: [B, N, H, D], or [N, H, D] for one batch entry; "
                  "float64, float32, float16, or bfloat16 as ml_dtypes writes it.");
    const auto add_file = [&](const char *name, std::string &path, const char *help, bool required) {
        command->add_option(name, path, help)
            ->required(required)
            ->check([](const std::string &given) {
                return given == "-"
                           ? "'-' for standard input or output is not supported; give a file, one named - as ./-"
                           : "";
            })
            ->type_name("FILE")
            ->group("Files");
    };
    add_file("--q", options->q, "Queries, read", true);
    add_file("--k", options->k, "Keys [B, N, G, D], G dividing H, read", true);
    add_file("--v", options->v, "Values [B, N, G, D], read", true);
    add_file("--out", options->out, "O, written once it is complete, in the dtype of the computation", true);
    add_file("--lse", options->lse, "LSE [B, H, N], written; float32, or float64 when O is", false);
    add_dtype_option(*command, options->dtype, "Convert the inputs to this dtype first");
    add_number<std::int64_t>(*command, "--query-start", options->query_start,
                             "Position of the first row of Q among those of K")
        ->type_name("S");
    options->pattern.add_to(*command);
    options->execution.add_to(*command);
    options->ranks.add_to(*command);
    command->callback([options] { attend(*options); });
}

} // namespace annulus::cli
