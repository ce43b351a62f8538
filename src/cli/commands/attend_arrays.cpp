// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/attend_arrays.hpp"

#include "cli/commands/problem_options.hpp"
#include "cli/ranks/mpi_place.hpp"
#include "cli/report/failure.hpp"
#include "cli/report/text.hpp"

#include <utility>

namespace annulus::cli {

namespace {

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

std::string dimensions(std::size_t rank) {
    return counted(static_cast<std::int64_t>(rank), "dimension", "dimensions");
}

// Checks what the library cannot see in pieces of the arrays. The library checks everything else.
void check_inputs(const std::vector<const InputArray *> &arrays) {
    const InputArray &q = *arrays[0], &k = *arrays[1], &v = *arrays.back();
    for (const InputArray *array : arrays) {
        const std::size_t rank = array->shape().size();
        if (rank != 3 && rank != 4)
            throw bad_input(array->option() + ": the array has " + dimensions(rank) +
                            "; it must have 4, [B, N, H, D], or 3, [N, H, D]");
        if (rank != q.shape().size())
            throw bad_input(array->option() + ": the array has " + dimensions(rank) + " and that of --q " +
                            std::to_string(q.shape().size()) + "; they must be equal");
        if (array->dtype() != q.dtype())
            throw bad_input(array->option() + ": the dtype is " + annulus_dtype_name(array->dtype()) +
                            " and that of --q " + annulus_dtype_name(q.dtype()) +
                            "; they must be equal, or --dtype given");
    }
    const Shape &q_shape = q.shape(), &k_shape = k.shape();
    const bool same_batch = q_shape.size() == 3 || q_shape[0] == k_shape[0];
    if (!same_batch || q_shape.back() != k_shape.back())
        throw bad_input("--k: the shape is " + text(k_shape) + " and that of --q " + text(q_shape) + "; " +
                        (same_batch ? "the last" : "the first") + " dimensions must be equal");
    if (v.shape() != k_shape)
        throw bad_input("--v: the shape is " + text(v.shape()) + " and that of --k " + text(k_shape) +
                        "; they must be equal");
}

// The library checks the same, but its message names C arguments.
void check_starts(const std::vector<std::int64_t> &starts, std::int64_t rows) {
    if (starts.size() == 1)
        throw bad_input("--starts has 1 number; it must have 2 or more, the first row of each sequence and the end of "
                        "the last");
    std::int64_t least = 0;
    for (std::size_t i = 0; i < starts.size(); ++i) {
        if (starts[i] < least || starts[i] > rows)
            throw bad_input("--starts: number " + std::to_string(i + 1) + " is " + std::to_string(starts[i]) +
                            "; it must be from " + std::to_string(least) + (i > 0 ? ", the number before it," : "") +
                            " to " + std::to_string(rows) + ", the rows of --k");
        least = starts[i];
    }
}

// If `starts` is empty, each batch entry is a sequence.
void check_lengths(const std::vector<std::int64_t> &lengths, const std::vector<std::int64_t> &starts,
                   std::int64_t rows) {
    for (std::size_t i = 0; i < lengths.size(); ++i)
        if (const std::int64_t most = starts.empty() ? rows : starts[i + 1] - starts[i];
            lengths[i] < 0 || lengths[i] > most)
            throw bad_input("--lengths: number " + std::to_string(i + 1) + " is " + std::to_string(lengths[i]) +
                            "; it must be from 0 to " + std::to_string(most) + ", the rows of the " +
                            (starts.empty() ? "batch entry" : "sequence"));
}

} // namespace

std::vector<NamedFile> AttendFiles::inputs() const {
    std::vector<NamedFile> files = {{"--q", q}, {"--k", k}, {"--v", v}};
    for (const auto &[option, text] : {NamedFile{"--starts", starts}, {"--lengths", lengths}})
        if (is_npy_path(text))
            files.push_back({option, text});
    return files;
}

void refuse_ranks_of_a_part(const AttendFiles &files, const RankOptions &ranks) {
    if (files.query_start && (ranks.count || mpi_place().count > 1))
        throw bad_input("--query-start: several ranks share the rows of --q out as those of --k; without ranks a part "
                        "of the rows can be computed");
}

Inputs::Inputs(const AttendFiles &files) : q_("--q", files.q), k_("--k", files.k) {
    if (!files.v.empty())
        v_.emplace("--v", files.v);
    if (!files.dtype.empty())
        for (InputArray *array : {&q_, &k_, v_ ? &*v_ : &k_})
            if (const annulus_dtype dtype = dtype_of(files.dtype); array->dtype() != dtype)
                array->convert_to(dtype);
    check_inputs(arrays());
    q = tensor_of(q_);
    k = tensor_of(k_);
    v = v_ ? tensor_of(*v_) : k;
    for (const auto &[option, tensor] : {std::pair("--q", &q), std::pair("--k", &k)})
        for (const int dimension : {2, 3})
            if (!std::in_range<std::int32_t>(tensor->shape[dimension]))
                throw bad_input(std::string(option) + ": the array has " + std::to_string(tensor->shape[dimension]) +
                                (dimension == 2 ? " heads" : " numbers a head") + "; 2147483647 are the most");
    if (!files.query_start && q.shape[1] != k.shape[1])
        throw bad_input("--q has " + std::to_string(q.shape[1]) + " rows and --k " + std::to_string(k.shape[1]) +
                        "; they must be equal, or --query-start given");
    if (const std::int64_t start = files.query_start.value_or(0); k.shape[1] - q.shape[1] < start || start < 0)
        throw bad_input("--query-start " + std::to_string(start) + ": the " + std::to_string(q.shape[1]) +
                        " rows of --q must then lie within the " + std::to_string(k.shape[1]) + " rows of --k");
    if (!files.starts.empty())
        starts_ = read_integers("--starts", files.starts);
    if (!files.lengths.empty())
        lengths_ = read_integers("--lengths", files.lengths);
    check_starts(starts_, k.shape[1]);
    const std::size_t wanted = starts_.empty() ? static_cast<std::size_t>(q.shape[0]) : starts_.size() - 1;
    if (!lengths_.empty() && lengths_.size() != wanted)
        throw bad_input("--lengths has " + counted(std::ssize(lengths_), "number", "numbers") + "; it must have " +
                        std::to_string(wanted) +
                        (starts_.empty() ? ", one for each batch entry" : ", one fewer than --starts"));
    check_lengths(lengths_, starts_, k.shape[1]);
}

annulus_problem Inputs::sizes() const {
    annulus_problem problem = ANNULUS_PROBLEM_INIT;
    problem.dtype = q.dtype;
    problem.heads = static_cast<std::int32_t>(q.shape[2]);
    problem.kv_heads = static_cast<std::int32_t>(k.shape[2]);
    problem.head_dim = static_cast<std::int32_t>(q.shape[3]);
    problem.batch = q.shape[0];
    problem.sequence_length = k.shape[1];
    return problem;
}

void Inputs::name_sequences(annulus_call_options &options, std::int64_t first_entry, std::int64_t entries) const {
    if (!starts_.empty()) {
        options.sequence_count = static_cast<std::int64_t>(starts_.size()) - 1;
        options.sequence_starts = starts_.data();
        options.sequence_lengths = lengths_.empty() ? nullptr : lengths_.data();
    } else if (!lengths_.empty()) {
        options.sequence_count = entries;
        options.sequence_lengths = lengths_.data() + first_entry;
    }
}

void Inputs::check_unchanged() const {
    for (const InputArray *array : arrays())
        array->check_unchanged();
}

std::vector<const InputArray *> Inputs::arrays() const {
    return v_ ? std::vector<const InputArray *>{&q_, &k_, &*v_} : std::vector<const InputArray *>{&q_, &k_};
}

void Results::make_files() {
    const Shape shape = inputs_.shape_of_q();
    out_file_.emplace("--out", files_.out, inputs_.q.dtype, shape);
    set_tensors(out_file_->data(), nullptr, inputs_.q.shape[1]);
    are_whole_ = true;
    if (!lse_)
        return;
    const Shape lse_shape = shape_of(*lse_);
    lse_file_.emplace("--lse", files_.lse, inputs_.dtype_of_sums(),
                      shape.size() == 4 ? lse_shape : Shape(lse_shape.begin() + 1, lse_shape.end()));
    lse_->data = lse_file_->data();
}

void Results::hold(const std::vector<Range> &ranges) {
    std::int64_t rows = 0;
    for (const Range &range : ranges)
        rows += range.length;
    set_tensors(nullptr, nullptr, rows);
    out_memory_.resize(bytes_of(out_));
    out_.data = out_memory_.data();
    if (!lse_)
        return;
    lse_memory_.resize(bytes_of(*lse_));
    lse_->data = lse_memory_.data();
}

std::vector<annulus_tensor> Results::lse(const std::vector<Range> &ranges) const {
    return lse_ ? parts(*lse_, 2, ranges) : std::vector<annulus_tensor>();
}

std::vector<annulus_tensor> Results::parts(const annulus_tensor &tensor, int dimension,
                                           const std::vector<Range> &ranges) const {
    std::vector<annulus_tensor> parts;
    std::int64_t next = 0; // row in the rank's own rows
    for (const Range &range : ranges) {
        parts.push_back(slice(tensor, dimension, are_whole_ ? range.start : next, range.length));
        next += range.length;
    }
    return parts;
}

std::vector<Stretch> Results::stretches(const std::vector<Range> &ranges) const {
    std::vector<Stretch> all;
    const auto add = [&](const annulus_tensor &part) {
        const std::vector<Stretch> more = stretches_of(part);
        all.insert(all.end(), more.begin(), more.end());
    };
    for (const annulus_tensor &part : out(ranges))
        for (std::int64_t b = 0; b < part.shape[0]; ++b)
            add(slice(part, 0, b, 1));
    for (const annulus_tensor &part : lse(ranges))
        for (std::int64_t b = 0; b < part.shape[0]; ++b)
            for (std::int64_t h = 0; h < part.shape[1]; ++h)
                add(slice(slice(part, 0, b, 1), 1, h, 1));
    return all;
}

void Results::commit() {
    for (std::optional<OutputArray> *file : {&out_file_, &lse_file_})
        if (*file)
            (*file)->commit();
}

void Results::set_tensors(void *out, void *lse, std::int64_t rows) {
    const annulus_tensor &q = inputs_.q;
    out_ = view(out, q.dtype, {q.shape[0], rows, q.shape[2], q.shape[3]});
    if (!files_.lse.empty())
        lse_ = view(lse, inputs_.dtype_of_sums(), {q.shape[0], q.shape[2], rows});
}

} // namespace annulus::cli
