// SPDX-License-Identifier: Apache-2.0
#include "capi/options.hpp"

#include "capi/sized_struct.hpp"
#include "core/argument.hpp"
#include "core/dtype_number.hpp"
#include "core/error.hpp"

#include <cstddef>
#include <limits>

namespace annulus {

namespace {

constexpr std::uint64_t add_flags = ANNULUS_CALL_ADD_D_Q | ANNULUS_CALL_ADD_D_K | ANNULUS_CALL_ADD_D_V;

void check_flags(const annulus_call_options &options, annulus_pass pass) {
    const auto flags = static_cast<unsigned long long>(options.flags);
    if (options.flags & ~known_call_flags)
        throw Error(ANNULUS_ERROR_ARGUMENT, "flags of options is %#llx; it may have the bits %#llx", flags,
                    static_cast<unsigned long long>(known_call_flags));
    if (pass != ANNULUS_PASS_BACKWARD && (options.flags & add_flags))
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "flags of options is %#llx; %s writes no gradients, and may have the bits %#llx", flags,
                    pass == ANNULUS_PASS_FORWARD ? "forward" : "attention_mass",
                    static_cast<unsigned long long>(known_call_flags & ~add_flags));
    if (!query_window(options) && options.query_start != 0)
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "query_start of options is %lld; without ANNULUS_CALL_QUERY_WINDOW in flags it must be 0",
                    static_cast<long long>(options.query_start));
}

void check_arrays(const annulus_call_options &options) {
    check_at_least("sequence_count of options", options.sequence_count, 0);
    const auto count = static_cast<long long>(options.sequence_count);
    if (count > 0 && !options.sequence_starts && !options.sequence_lengths)
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "sequence_count of options is %lld, and sequence_starts and sequence_lengths are NULL; at least "
                    "one must be given",
                    count);
    if (count == 0 && (options.sequence_starts || options.sequence_lengths))
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "sequence_count of options is 0, and %s is not NULL; it must be how many sequences there are",
                    options.sequence_starts ? "sequence_starts" : "sequence_lengths");
}

constexpr std::int64_t unknown_rows = std::numeric_limits<std::int64_t>::max();
constexpr char rows_of_k[] = "the rows of k";

// Checks that an element of an array is from 0 to `most`. `max_source` says in the message where `most` comes from.
void check_element(const char *array, std::int64_t index, std::int64_t value, std::int64_t most,
                   const char *max_source) {
    if (value < 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "%s[%lld] is %lld; it must be at least 0", array,
                    static_cast<long long>(index), static_cast<long long>(value));
    if (value > most)
        throw Error(ANNULUS_ERROR_ARGUMENT, "%s[%lld] is %lld; it must be at most %lld, %s", array,
                    static_cast<long long>(index), static_cast<long long>(value), static_cast<long long>(most),
                    max_source);
}

std::vector<Sequence> packed_sequences(const annulus_call_options &options, std::int64_t batch, std::int64_t rows) {
    const std::int64_t *const starts = options.sequence_starts, *const lengths = options.sequence_lengths;
    std::vector<Sequence> sequences;
    check_element("sequence_starts", 0, starts[0], rows, rows_of_k);
    for (std::int64_t i = 0; i < options.sequence_count; ++i) {
        if (starts[i + 1] < starts[i])
            throw Error(ANNULUS_ERROR_ARGUMENT,
                        "sequence_starts[%lld] is %lld; it must be at least sequence_starts[%lld], %lld",
                        static_cast<long long>(i + 1), static_cast<long long>(starts[i + 1]), static_cast<long long>(i),
                        static_cast<long long>(starts[i]));
        check_element("sequence_starts", i + 1, starts[i + 1], rows, rows_of_k);
        const std::int64_t span = starts[i + 1] - starts[i];
        if (lengths)
            check_element("sequence_lengths", i, lengths[i], span, "the rows up to the next start");
        sequences.push_back({0, batch, {starts[i], lengths ? lengths[i] : span}});
    }
    return sequences;
}

std::vector<Sequence> padded_sequences(const annulus_call_options &options, std::int64_t batch, std::int64_t rows) {
    if (options.sequence_count != batch)
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "sequence_count of options is %lld; without sequence_starts it must be the batch, %lld",
                    static_cast<long long>(options.sequence_count), static_cast<long long>(batch));
    std::vector<Sequence> sequences;
    for (std::int64_t b = 0; b < batch; ++b) {
        check_element("sequence_lengths", b, options.sequence_lengths[b], rows, rows_of_k);
        sequences.push_back({b, 1, {0, options.sequence_lengths[b]}});
    }
    return sequences;
}

// Checks that a grid width divides the length of every sequence, if the branch's segments are whole sequences.
void check_grid_widths(const Pattern &pattern, const std::vector<Sequence> &sequences) {
    for (std::size_t branch = 0; branch < pattern.branches.size(); ++branch) {
        const Branch &checked = pattern.branches[branch];
        const std::int64_t width = checked.grid_width;
        if (width == 0 || checked.segment_length != 0)
            continue;
        for (std::size_t i = 0; i < sequences.size(); ++i)
            if (sequences[i].rows.length % width != 0)
                throw Error(ANNULUS_ERROR_ARGUMENT,
                            "grid_width of branch %zu is %lld; it must divide the length of sequence %zu, %lld", branch,
                            static_cast<long long>(width), i, static_cast<long long>(sequences[i].rows.length));
    }
}

} // namespace

annulus_call_options read_options(const annulus_call_options *options, annulus_pass pass) {
    if (!options)
        return ANNULUS_CALL_OPTIONS_INIT;
    const annulus_call_options copy = read_sized("options", options, &annulus_call_options::sequence_lengths);
    check_flags(copy, pass);
    check_arrays(copy);
    return copy;
}

std::optional<std::int64_t> query_window(const annulus_call_options &options) {
    return options.flags & ANNULUS_CALL_QUERY_WINDOW ? std::optional(options.query_start) : std::nullopt;
}

GradientTargets gradient_targets(const annulus_call_options &options, annulus_dtype dtype, annulus_dtype d_q,
                                 annulus_dtype d_k, annulus_dtype d_v) {
    const auto target = [&](annulus_dtype gradient_dtype, annulus_call_flag flag) {
        return GradientTarget{sum_dtype(dtype) != dtype && gradient_dtype == ANNULUS_FLOAT32,
                              (options.flags & flag) != 0};
    };
    return {target(d_q, ANNULUS_CALL_ADD_D_Q), target(d_k, ANNULUS_CALL_ADD_D_K), target(d_v, ANNULUS_CALL_ADD_D_V)};
}

std::vector<Sequence> check_sequences(const annulus_call_options &options, std::int64_t batch,
                                      std::optional<std::int64_t> rows, const Pattern &pattern) {
    if (options.sequence_count == 0)
        return {};
    const std::int64_t most = rows.value_or(unknown_rows);
    std::vector<Sequence> sequences =
        options.sequence_starts ? packed_sequences(options, batch, most) : padded_sequences(options, batch, most);
    check_grid_widths(pattern, sequences);
    return sequences;
}

void refuse_query_window() {
    throw Error(ANNULUS_ERROR_UNSUPPORTED, "flags of options has ANNULUS_CALL_QUERY_WINDOW; with several ranks the "
                                           "query rows of a rank are those of its shard");
}

} // namespace annulus
