// SPDX-License-Identifier: Apache-2.0
#include "fuzz/abi/calls.hpp"

#include "fuzz/abi/tensors.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace annulus::fuzz {

namespace {

Sizes sizes_of(Input &input) {
    constexpr std::int64_t head_dims[] = {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 16, 24, 40, 72, 256};
    Sizes sizes;
    sizes.dtype = input.choice(ANNULUS_FLOAT64, ANNULUS_FLOAT16);
    if (annulus_dtype_bits(sizes.dtype) == 0)
        sizes.dtype = ANNULUS_FLOAT32;
    sizes.batch = 1 + input.below(2);
    sizes.keys = sizes.queries = input.below(14);
    sizes.kv_heads = 1 + input.below(2);
    sizes.heads = sizes.kv_heads * (1 + input.below(2));
    sizes.head_dim = head_dims[input.below(16)];
    return sizes;
}

// The options of a call, with the arrays that they point to.
class Options {
  public:
    Options(Input &input, Sizes &sizes, annulus_pass pass) {
        annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
        if (input.once_in(4)) {
            options.flags |= ANNULUS_CALL_QUERY_WINDOW;
            sizes.queries = input.below(static_cast<int>(sizes.keys) + 1);
            options.query_start = input.number(0, sizes.keys - sizes.queries);
        }
        if (pass == ANNULUS_PASS_BACKWARD && input.once_in(3))
            options.flags |= static_cast<std::uint64_t>(input.below(8)) * ANNULUS_CALL_ADD_D_Q;
        if (input.is_wild())
            options.flags ^= static_cast<std::uint64_t>(input.any_number());
        if (input.once_in(3))
            add_sequences(input, sizes, options);
        sized_.emplace(input, options);
        is_null_ = options.flags == 0 && options.sequence_count == 0 && input.once_in(2);
    }

    const annulus_call_options *get() { return is_null_ ? nullptr : sized_->get(); }

  private:
    void add_sequences(Input &input, const Sizes &sizes, annulus_call_options &options) {
        const bool is_packed = input.once_in(2);
        const std::int64_t count = is_packed ? input.below(5) : sizes.batch;
        options.sequence_count = input.is_wild() ? input.number(0, count) : count;
        const auto held = static_cast<std::size_t>(std::clamp<std::int64_t>(options.sequence_count, 0, 4096));
        if (options.sequence_count > 4096) // no caller has that many sequences
            options.sequence_count = -1;
        starts_.resize(held + 1);
        lengths_.resize(held);
        for (std::int64_t &start : starts_)
            start = input.number(0, sizes.keys);
        if (!input.is_wild())
            std::ranges::sort(starts_);
        for (std::size_t i = 0; i < held; ++i) {
            std::int64_t most = sizes.keys;
            if (is_packed && (__builtin_sub_overflow(starts_[i + 1], starts_[i], &most) || most < 0))
                most = 0;
            lengths_[i] = input.number(0, most);
        }
        if (is_packed)
            options.sequence_starts = starts_.data();
        if (!is_packed || input.once_in(2))
            options.sequence_lengths = lengths_.data();
    }

    std::vector<std::int64_t> starts_, lengths_;
    std::optional<Sized<annulus_call_options>> sized_;
    bool is_null_ = false;
};

// Returns how far results may differ from those of `reference`. The numbers are from -1 to 1, and the factor on the
// scores is at most 1.
double tolerance(annulus_dtype dtype, double magnitude) {
    const double epsilon = dtype == ANNULUS_FLOAT64   ? 1e-12
                           : dtype == ANNULUS_FLOAT32 ? 1e-3
                           : dtype == ANNULUS_FLOAT16 ? 1.0 / 256
                                                      : 1.0 / 32;
    return epsilon * (1 + magnitude);
}

void expect_near(const char *name, const Tensor &result, const Tensor &expected) {
    if (result.is_null() || expected.is_null())
        return;
    const std::vector<double> a = result.numbers(), b = expected.numbers();
    double largest = 0;
    for (const double number : b)
        largest = std::isfinite(number) ? std::max(largest, std::abs(number)) : largest;
    for (std::size_t i = 0; i < a.size(); ++i)
        EXPECT(a[i] == b[i] || std::abs(a[i] - b[i]) <= tolerance(result.view().dtype, largest),
               "%s[%zu] is %.17g and should be %.17g", name, i, a[i], b[i]);
}

// Tensors of a pass in the order of the function's arguments.
class PassTensors {
  public:
    PassTensors(Input &input, Numbers &numbers, annulus_pass pass, const Sizes &s) : pass_(pass) {
        const auto queries = [&](annulus_dtype dtype, Use use) {
            tensors_.emplace_back(input, numbers, dtype, s.batch, s.queries, s.heads, s.head_dim, use);
        };
        const auto keys = [&](annulus_dtype dtype, Use use) {
            tensors_.emplace_back(input, numbers, dtype, s.batch, s.keys, s.kv_heads, s.head_dim, use);
        };
        const auto statistic = [&](Use use) {
            tensors_.emplace_back(input, numbers, s.sum_dtype(), s.batch, s.queries, s.heads, 0, use);
        };
        const auto gradient_dtype = [&] { return input.once_in(3) ? s.sum_dtype() : s.dtype; };
        queries(s.dtype, Use::input);
        keys(s.dtype, Use::input);
        if (pass == ANNULUS_PASS_MASS) {
            statistic(Use::input);
            tensors_.emplace_back(input, numbers, s.sum_dtype(), s.batch, s.keys, s.heads, 0, Use::output);
            return;
        }
        keys(s.dtype, Use::input);
        if (pass == ANNULUS_PASS_FORWARD) {
            queries(s.dtype, Use::output);
            statistic(Use::output);
            if (input.once_in(3))
                tensors_.back().make_null();
            return;
        }
        queries(s.dtype, Use::input);
        statistic(Use::input);
        queries(s.dtype, Use::input);
        statistic(Use::input);
        if (input.once_in(2))
            tensors_.back().make_null();
        queries(gradient_dtype(), Use::output);
        keys(gradient_dtype(), Use::output);
        keys(gradient_dtype(), Use::output);
    }

    int count() const { return static_cast<int>(tensors_.size()); }
    Tensor &operator[](int i) { return tensors_[static_cast<std::size_t>(i)]; }
    const Tensor &operator[](int i) const { return tensors_[static_cast<std::size_t>(i)]; }
    bool is_output(int i) const { return i >= (pass_ == ANNULUS_PASS_BACKWARD ? 7 : 3); }

    annulus_status call(annulus_context *context, const annulus_call_options *options) const {
        const auto t = [&](int i) { return (*this)[i].get(); };
        if (pass_ == ANNULUS_PASS_MASS)
            return annulus_attention_mass(context, t(0), t(1), t(2), t(3), options);
        if (pass_ == ANNULUS_PASS_FORWARD)
            return annulus_forward(context, t(0), t(1), t(2), t(3), t(4), options);
        return annulus_backward(context, t(0), t(1), t(2), t(3), t(4), t(5), t(6), t(7), t(8), t(9), options);
    }

  private:
    annulus_pass pass_;
    std::deque<Tensor> tensors_;
};

// A context that computes the same as another one, by the engine `reference`.
class Reference {
  public:
    explicit Reference(const annulus_context *like) {
        const bool good = annulus_context_copy_config(&config_, like) == ANNULUS_OK &&
                          annulus_config_set_engine(config_, ANNULUS_ENGINE_REFERENCE) == ANNULUS_OK &&
                          annulus_config_set_workspace_limit(config_, 0) == ANNULUS_OK &&
                          annulus_context_create(&context_, ANNULUS_DEVICE_CPU, 0) == ANNULUS_OK &&
                          annulus_context_set_config(context_, config_) == ANNULUS_OK;
        EXPECT(good, "%s", annulus_last_error());
    }
    ~Reference() {
        annulus_context_destroy(context_);
        annulus_config_destroy(config_);
    }
    Reference(const Reference &) = delete;
    Reference &operator=(const Reference &) = delete;

    annulus_context *context() const { return context_; }
    bool is_moderate() const {
        double scale = 0;
        EXPECT(annulus_config_get_scale(config_, &scale) == ANNULUS_OK, "%s", annulus_last_error());
        return !(std::abs(scale) > 1);
    }

  private:
    annulus_config *config_ = nullptr;
    annulus_context *context_ = nullptr;
};

// True if the context has a config.
bool has_config(const annulus_context *context) {
    annulus_config *config = nullptr;
    const bool has = annulus_context_copy_config(&config, context) == ANNULUS_OK;
    annulus_config_destroy(config);
    return has;
}

// Computes O and LSE for a backward call, or LSE for a mass, so that they fit together. Returns false if that fails.
bool complete(Handles &handles, PassTensors &tensors, const annulus_call_options *options, annulus_pass pass) {
    if (!has_config(handles.context()))
        return false;
    annulus_call_options forward = ANNULUS_CALL_OPTIONS_INIT;
    if (options) {
        forward = *options;
        forward.flags &= ANNULUS_CALL_QUERY_WINDOW;
    }
    const Reference reference(handles.context());
    if (pass == ANNULUS_PASS_BACKWARD)
        return annulus_forward(reference.context(), tensors[0].get(), tensors[1].get(), tensors[2].get(),
                               &tensors[3].view(), &tensors[4].view(), &forward) == ANNULUS_OK;
    annulus_tensor out = tensors[0].view();
    std::int64_t elements = 1;
    for (int i = 3; i >= 0; --i) {
        out.stride[i] = elements;
        elements *= out.shape[i];
    }
    std::vector<std::byte> memory(static_cast<std::size_t>(elements * annulus_dtype_bits(out.dtype) / 8));
    out.data = memory.data();
    return annulus_forward(reference.context(), tensors[0].get(), tensors[1].get(), tensors[1].get(), &out,
                           &tensors[2].view(), &forward) == ANNULUS_OK;
}

const char *name_of(annulus_pass pass) {
    return pass == ANNULUS_PASS_FORWARD ? "forward" : pass == ANNULUS_PASS_BACKWARD ? "backward" : "mass";
}

annulus_problem problem_of(const Sizes &sizes, const annulus_call_options *options, int ranks) {
    annulus_problem problem = ANNULUS_PROBLEM_INIT;
    problem.dtype = sizes.dtype;
    problem.heads = static_cast<std::int32_t>(sizes.heads);
    problem.kv_heads = static_cast<std::int32_t>(sizes.kv_heads);
    problem.head_dim = static_cast<std::int32_t>(sizes.head_dim);
    problem.batch = sizes.batch;
    problem.sequence_length = sizes.keys;
    problem.options = options;
    if (ranks == 0)
        problem.query_length = sizes.queries;
    return problem;
}

} // namespace

void call_pass(Input &input, Handles &handles, annulus_pass pass) {
    Numbers numbers(static_cast<std::uint64_t>(input.below(256)));
    Sizes sizes = sizes_of(input);
    Options options(input, sizes, pass);
    PassTensors tensors(input, numbers, pass, sizes);

    annulus_context *const context = input.is_wild() ? nullptr : handles.context();
    bool is_exact = true;
    if (input.once_in(8)) {
        tensors[input.below(3)].scramble(numbers);
        is_exact = false;
    }
    bool is_spoilt = false;
    while (input.is_wild()) {
        Tensor &spoilt = tensors[input.below(tensors.count())];
        spoilt.spoil(input, tensors[input.below(tensors.count())]);
        is_spoilt = true;
    }
    bool has_memory = true;
    for (int i = 0; i < tensors.count(); ++i)
        has_memory = has_memory && tensors[i].has_memory();
    if (!has_memory) // the call must be refused here at the latest
        handles.refuse_memory();
    const bool is_sized = !options.get() || options.get()->size == sizeof(annulus_call_options);
    const bool is_plain = context && !is_spoilt && is_sized;
    if (pass != ANNULUS_PASS_FORWARD && is_plain && is_exact)
        is_exact = complete(handles, tensors, options.get(), pass);

    // The announced workspace must be enough.
    const annulus_problem problem = problem_of(sizes, is_sized ? options.get() : nullptr, handles.ranks());
    std::uint64_t announced = 0;
    const bool asks = is_plain && has_memory && handles.ranks() <= 1 && input.once_in(2);
    const bool has_announced = asks && succeeded(annulus_workspace_size(context, &problem, pass, &announced));
    std::vector<std::byte> workspace;
    if (has_announced) {
        EXPECT(announced < std::uint64_t{1} << 30, "%llu bytes", static_cast<unsigned long long>(announced));
        const auto offset = static_cast<std::size_t>(input.below(9));
        workspace.resize(offset + static_cast<std::size_t>(announced));
        if (announced > 0)
            handles.lend_workspace(workspace.data() + offset, static_cast<std::size_t>(announced));
    }

    for (int i = 0; i < tensors.count(); ++i)
        tensors[i].keep();
    const annulus_status status = tensors.call(context, options.get());
    const bool good = succeeded(status);
    if (has_announced)
        handles.lend_workspace(nullptr, 0);
    EXPECT(!(has_announced && status == ANNULUS_ERROR_WORKSPACE), "%llu bytes were announced: %s",
           static_cast<unsigned long long>(announced), annulus_last_error());
    // A spoilt tensor may lie elsewhere, and a result may lie in its former memory.
    const auto holds_result_of_other = [&](int i) {
        for (int j = 0; j < tensors.count(); ++j)
            if (j != i && tensors.is_output(j) && !tensors[j].is_null() && tensors[i].holds(tensors[j]))
                return true;
        return false;
    };
    for (int i = 0; i < tensors.count(); ++i) {
        if (good && is_spoilt && holds_result_of_other(i))
            continue;
        if (good && tensors.is_output(i))
            tensors[i].expect_gaps_untouched();
        else
            tensors[i].expect_untouched();
    }
    if (!good)
        return;
    // Rows of no sequence are not read. Only accepted options have the size of their type.
    const bool may_read_nothing = options.get() && options.get()->sequence_count > 0;
    EXPECT(has_memory || may_read_nothing, "a tensor without memory was accepted");
    if (is_spoilt)
        return;
    EXPECT(!asks || has_announced, "the call succeeds, and its workspace was not told: %s", annulus_last_error());
    const Reference reference(context);
    if (!is_exact || !reference.is_moderate())
        return;
    PassTensors expected = tensors;
    for (int i = 0; i < tensors.count(); ++i)
        if (tensors.is_output(i))
            expected[i].restore();
    EXPECT(expected.call(reference.context(), options.get()) == ANNULUS_OK, "reference: %s", annulus_last_error());
    for (int i = 0; i < tensors.count(); ++i)
        if (tensors.is_output(i))
            expect_near(name_of(pass), tensors[i], expected[i]);
}

void call_merge(Input &input, Handles &handles) {
    Numbers numbers(static_cast<std::uint64_t>(input.below(256)));
    const Sizes s = sizes_of(input);
    const std::int32_t count = input.number32(1, 3);
    const int held = std::clamp(count, 1, 64);
    std::deque<Tensor> outs, lses;
    for (int i = 0; i < held; ++i) {
        outs.emplace_back(input, numbers, s.dtype, s.batch, s.queries, s.heads, s.head_dim, Use::input);
        lses.emplace_back(input, numbers, s.sum_dtype(), s.batch, s.queries, s.heads, 0, Use::input);
    }
    Tensor out(input, numbers, s.dtype, s.batch, s.queries, s.heads, s.head_dim, Use::output);
    Tensor lse(input, numbers, s.sum_dtype(), s.batch, s.queries, s.heads, 0, Use::output);
    if (input.once_in(3))
        lse.make_null();
    bool is_spoilt = false;
    while (input.is_wild()) {
        const int chosen = input.below(held);
        Tensor *const all[] = {&outs[chosen], &lses[chosen], &out, &lse};
        all[input.below(4)]->spoil(input, *all[input.below(4)]);
        is_spoilt = true;
    }
    const auto has_memory = [](const Tensor &tensor) { return tensor.has_memory(); };
    const auto is_part = [](const Tensor &tensor) { return tensor.has_memory() && !tensor.is_null(); };
    if (!has_memory(out) || !has_memory(lse) || !std::ranges::all_of(outs, is_part) ||
        !std::ranges::all_of(lses, is_part))
        return; // annulus_merge() allocates no memory that could be refused
    // A result may lie in the memory of a part. Then only the part's gaps remain unchanged.
    const bool in_place = !is_spoilt && input.once_in(4);
    if (in_place)
        out.alias(outs[0]);
    std::vector<std::vector<double>> parts, weights;
    std::vector<annulus_tensor> out_views, lse_views;
    for (int i = 0; i < held; ++i) {
        out_views.push_back(outs[i].view());
        lse_views.push_back(lses[i].view());
        if (!is_spoilt) {
            parts.push_back(outs[i].numbers());
            weights.push_back(lses[i].numbers());
        }
    }
    const bool good = succeeded(annulus_merge(handles.context(), count, input.is_wild() ? nullptr : out_views.data(),
                                              lse_views.data(), out.get(), lse.get(), nullptr));
    for (const std::deque<Tensor> *const inputs : {&outs, &lses})
        for (const Tensor &part : *inputs)
            if (!(good && (part.holds(out) || part.holds(lse))))
                part.expect_untouched();
    for (const Tensor *const written : {in_place ? &outs[0] : &out, &lse})
        good ? written->expect_gaps_untouched() : written->expect_untouched();
    if (!good || is_spoilt)
        return;
    // The order of the rows is [B, N, H] for O and [B, H, N] for LSE.
    const std::vector<double> result = out.numbers();
    for (std::size_t i = 0; i < result.size(); ++i) {
        const auto row = static_cast<std::int64_t>(i) / s.head_dim;
        const std::int64_t h = row % s.heads, n = row / s.heads % s.queries, b = row / s.heads / s.queries;
        const auto at = static_cast<std::size_t>((b * s.heads + h) * s.queries + n);
        double sum = 0, weighted = 0;
        for (std::size_t part = 0; part < parts.size(); ++part) {
            sum += std::exp(weights[part][at]);
            weighted += std::exp(weights[part][at]) * parts[part][i];
        }
        EXPECT(std::abs(result[i] - weighted / sum) <= tolerance(s.dtype, 1), "merge[%zu] is %g and should be %g", i,
               result[i], weighted / sum);
    }
}

} // namespace annulus::fuzz
