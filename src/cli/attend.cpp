// SPDX-License-Identifier: Apache-2.0
// annulus attend: forward on arrays in .npy files.
#include "commands.hpp"
#include "npy.hpp"
#include "options.hpp"
#include "place.hpp"
#include "progress.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace annulus::cli {

namespace {

struct AttendOptions {
    std::string q, k, v, out, lse;
    std::optional<std::int64_t> query_start;
    std::string dtype;
    PatternOptions pattern;
    ExecutionOptions execution;
};

using Shape = std::vector<std::int64_t>;

// A C-ordered array as a tensor of the given shape.
annulus_tensor view(void *data, annulus_dtype dtype, const Shape &shape) {
    annulus_tensor tensor{};
    tensor.data = data;
    tensor.dtype = dtype;
    tensor.rank = static_cast<std::int32_t>(shape.size());
    std::int64_t stride = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
        tensor.shape[i] = shape[i];
        tensor.stride[i] = stride;
        stride *= shape[i];
    }
    return tensor;
}

// The entries start ... start + length - 1 of one dimension.
annulus_tensor slice(annulus_tensor tensor, int dimension, std::int64_t start, std::int64_t length) {
    tensor.data =
        static_cast<std::byte *>(tensor.data) + start * tensor.stride[dimension] * annulus_dtype_bytes(tensor.dtype);
    tensor.shape[dimension] = length;
    return tensor;
}

Shape with_batch(const InputArray &array) {
    Shape shape = array.shape();
    if (shape.size() == 3)
        shape.insert(shape.begin(), 1);
    return shape;
}

annulus_tensor view(const InputArray &array) {
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

// A tensor of the host's where the calls of a place reach it.
class Mirror {
  public:
    Mirror(Place &place, const annulus_tensor &host)
        : place_(place), host_(host.data), bytes_(static_cast<std::size_t>(annulus_dtype_bytes(host.dtype))),
          tensor_(host) {
        for (std::int32_t i = 0; i < host.rank; ++i)
            bytes_ *= static_cast<std::size_t>(host.shape[i]);
        memory_ = place.mirror(host_, bytes_);
        tensor_.data = memory_.get();
    }

    const annulus_tensor &tensor() const { return tensor_; }
    void copy_in() { place_.copy_in(tensor_.data, host_, bytes_); }
    void copy_out() { place_.copy_out(host_, tensor_.data, bytes_); }

  private:
    Place &place_;
    void *host_;
    std::size_t bytes_;
    Memory memory_;
    annulus_tensor tensor_;
};

// The arrays of one call.
struct Call {
    annulus_tensor q, k, v, out;
    std::optional<annulus_tensor> lse;
};

// How a call is done in pieces: a part of the batch, or of the query rows of one batch entry.
class Job {
  public:
    // Refuses sizes that cannot be, before any output exists. Forward checks the rest.
    Job(const Context &context, Place &place, const annulus_tensor &q, const annulus_tensor &k,
        std::int64_t query_start)
        : context_(context.get()), place_(place), query_start_(query_start), batch_(q.shape[0]), rows_(q.shape[1]) {
        const Place::Piece piece = place.piece(); // long enough to cost nothing, short enough for a bar to move
        const double entry_flops = check_and_estimate(q, k) / static_cast<double>(batch_);
        if (entry_flops <= piece.flops) {
            batch_step_ = static_cast<std::int64_t>(
                std::clamp(piece.flops / std::max(entry_flops, 1.0), 1.0, static_cast<double>(batch_)));
            row_step_ = rows_;
        } else {
            const double rows = piece.flops / entry_flops * static_cast<double>(rows_);
            batch_step_ = 1;
            row_step_ = (static_cast<std::int64_t>(rows) / piece.rows + 1) * piece.rows;
        }
    }

    void run(const Call &call) const {
        Progress progress(static_cast<double>(batch_) * static_cast<double>(rows_));
        for (std::int64_t b = 0; b < batch_; b += batch_step_)
            for (std::int64_t n = 0; n < rows_; n += row_step_) {
                const std::int64_t entries = std::min(batch_step_, batch_ - b);
                const std::int64_t rows = std::min(row_step_, rows_ - n);
                run_piece(call, b, entries, n, rows);
                place_.finish();
                progress.advance(static_cast<double>(entries) * static_cast<double>(rows));
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
        problem.sequence_length = problem.key_length = k.shape[1];
        problem.query_start = query_start_;
        problem.query_length = q.shape[1];
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
        check(annulus_forward(context_, &q, &k, &v, &out, call.lse ? &lse : nullptr, &window));
    }

    annulus_context *context_;
    Place &place_;
    std::int64_t query_start_;
    std::int64_t batch_, rows_;
    std::int64_t batch_step_, row_step_;
};

void attend(const AttendOptions &options) {
    InputArray q("--q", options.q), k("--k", options.k), v("--v", options.v);
    if (!options.dtype.empty())
        for (InputArray *array : {&q, &k, &v})
            if (const annulus_dtype dtype = dtype_of(options.dtype); array->dtype() != dtype)
                array->convert_to(dtype);
    check_inputs(q, k, v);
    const annulus_tensor q_tensor = view(q), k_tensor = view(k), v_tensor = view(v);
    if (!options.query_start && q_tensor.shape[1] != k_tensor.shape[1])
        throw bad_input("--q has " + std::to_string(q_tensor.shape[1]) + " rows and --k " +
                        std::to_string(k_tensor.shape[1]) + "; they must be equal, or --query-start given");
    const std::unique_ptr<Place> place = make_place(options.execution.device, options.execution.thread_count());
    const Context context =
        make_context(options.pattern, options.execution, static_cast<std::int32_t>(q_tensor.shape[2]));
    place->order(context.get());
    const Job job(context, *place, q_tensor, k_tensor, options.query_start.value_or(0));

    OutputArray out("--out", options.out, q.dtype(), q.shape());
    std::optional<OutputArray> lse;
    std::optional<Mirror> lse_mirror;
    if (!options.lse.empty()) {
        const annulus_dtype dtype = q.dtype() == ANNULUS_FLOAT64 ? ANNULUS_FLOAT64 : ANNULUS_FLOAT32;
        const Shape shape = {q_tensor.shape[0], q_tensor.shape[2], q_tensor.shape[1]};
        const bool batched = q.shape().size() == 4;
        lse.emplace("--lse", options.lse, dtype, batched ? shape : Shape(shape.begin() + 1, shape.end()));
        if (lse->path() == out.path())
            throw bad_input("--lse: '" + options.lse + "' is the file of --out");
        lse_mirror.emplace(*place, view(lse->data(), dtype, shape));
    }
    Mirror q_mirror(*place, q_tensor), k_mirror(*place, k_tensor), v_mirror(*place, v_tensor);
    Mirror out_mirror(*place, view(out.data(), q.dtype(), with_batch(q)));
    for (Mirror *input : {&q_mirror, &k_mirror, &v_mirror})
        input->copy_in();
    job.run({q_mirror.tensor(), k_mirror.tensor(), v_mirror.tensor(), out_mirror.tensor(),
             lse_mirror ? std::optional(lse_mirror->tensor()) : std::nullopt});
    out_mirror.copy_out();
    if (lse_mirror)
        lse_mirror->copy_out();
    out.commit();
    if (lse)
        lse->commit();
}

} // namespace

void add_attend_command(CLI::App &program) {
    auto options = std::make_shared<AttendOptions>();
    CLI::App *command = program.add_subcommand(
        "attend", "Compute O, and LSE, of Q, K and V in .npy files: [B, N, H, D], or [N, H, D] for one batch entry; "
                  "float64, float32, float16, or bfloat16 as ml_dtypes writes it.");
    const auto add_file = [&](const char *name, std::string &path, const char *help, bool required) {
        command->add_option(name, path, help)->required(required)->type_name("FILE")->group("Files");
    };
    add_file("--q", options->q, "Queries, read", true);
    add_file("--k", options->k, "Keys [B, N, G, D], G dividing H, read", true);
    add_file("--v", options->v, "Values [B, N, G, D], read", true);
    add_file("--out", options->out, "O, written once it is complete, in the dtype of the computation", true);
    add_file("--lse", options->lse, "LSE [B, H, N], written; float32, or float64 when O is", false);
    add_dtype_option(*command, options->dtype, "Convert the inputs to this dtype first");
    command->add_option("--query-start", options->query_start, "Position of the first row of Q among those of K")
        ->type_name("S");
    options->pattern.add_to(*command);
    options->execution.add_to(*command);
    command->callback([options] { attend(*options); });
}

} // namespace annulus::cli
