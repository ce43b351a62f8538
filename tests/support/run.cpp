// SPDX-License-Identifier: Apache-2.0
#include "support/run.hpp"

#include "support/sequences.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>

namespace annulus::test {
namespace {

// A workspace of exactly the bytes that the library asks for, at an odd address, between guards. All bytes are NaN
// before a call.
class WatchedWorkspace {
  public:
    WatchedWorkspace(Memory &memory, annulus_context *context, const annulus_problem &sizes, annulus_pass pass,
                     std::uint64_t limit)
        : memory_(memory) {
        check(annulus_workspace_size(context, &sizes, pass, &bytes_));
        if (limit && bytes_ > limit)
            throw std::runtime_error("the library asks for a workspace of " + std::to_string(bytes_) +
                                     " bytes; the limit is " + std::to_string(limit));
        allocation_ = allocate(memory, 2 * guard + bytes_);
        memory.fill(allocation_.get(), 0xFF, 2 * guard + bytes_);
        check(annulus_context_set_workspace(context, address() + guard, bytes_));
    }

    void expect_guards_intact() const {
        for (const std::size_t offset : {std::size_t{0}, static_cast<std::size_t>(guard + bytes_)}) {
            std::array<unsigned char, guard> now;
            memory_.download(now.data(), address() + offset, guard);
            if (std::any_of(now.begin(), now.end(), [](unsigned char byte) { return byte != 0xFF; }))
                throw std::runtime_error("written outside the workspace");
        }
    }

  private:
    static constexpr std::size_t guard = 65;

    unsigned char *address() const { return static_cast<unsigned char *>(allocation_.get()); }

    Memory &memory_;
    std::uint64_t bytes_ = 0;
    Allocation allocation_;
};

void expect_served_by(annulus_engine engine, annulus_context *context) {
    annulus_engine served = ANNULUS_ENGINE_AUTO;
    check(annulus_context_last_engine(context, &served));
    if (engine != ANNULUS_ENGINE_AUTO && served != engine)
        throw std::runtime_error("another engine served the call than was asked for");
}

std::vector<Tensor> make_rows(const Problem &p, std::int64_t length, const std::vector<std::int32_t> &heads) {
    return Tensor::rows(p.layout, p.dtype, p.batch, length, heads, p.dim);
}

// Makes Q, K and V, or tensors of their shapes for gradients.
std::vector<Tensor> make_qkv(const Problem &p) {
    if (!p.window)
        return make_rows(p, p.length, {p.heads, p.kv(), p.kv()});
    std::vector<Tensor> tensors = make_rows(p, p.query_length(), {p.heads});
    for (Tensor &tensor : make_rows(p, p.length, {p.kv(), p.kv()}))
        tensors.push_back(std::move(tensor));
    return tensors;
}

// Makes the gradients. They are not packed together if their dtypes differ.
std::vector<Tensor> make_gradients(const Problem &p) {
    if (p.gradients == Problem{}.gradients)
        return make_qkv(p);
    std::vector<Tensor> tensors;
    for (const std::size_t i : {0, 1, 2}) {
        Problem own = p;
        own.dtype = p.gradient_dtype(i);
        tensors.push_back(make_rows(own, i == 0 ? p.query_length() : p.length, {i == 0 ? p.heads : p.kv()})[0]);
    }
    return tensors;
}

void expect_intact(const char *name, const Tensor &tensor) {
    if (!tensor.memory().intact())
        throw std::runtime_error(std::string("written outside the elements of ") + name);
}

void expect_unchanged(const char *name, const std::vector<double> &now, const std::vector<double> &values) {
    for (std::size_t i = 0; i < values.size(); ++i)
        if (!(now[i] == values[i]) && !(now[i] != now[i] && values[i] != values[i]))
            throw std::runtime_error(std::string("the call changed its input ") + name);
}

// Throws unless every byte of an input is unchanged. The input may share bytes with other tensors, which are checked
// separately.
void expect_untouched(const char *name, const Tensor &tensor, const std::vector<double> &values) {
    if (tensor.memory().as_remembered())
        return;
    expect_intact(name, tensor);
    expect_unchanged(name, tensor.values(), values);
}

} // namespace

Inputs random_inputs(const Problem &problem, std::uint64_t seed, bool with_d_lse) {
    std::mt19937_64 generator(seed);
    const auto normal = [&](std::size_t count, double deviation, annulus_dtype dtype) {
        std::normal_distribution<double> distribution(0, deviation);
        std::vector<double> values(count);
        for (double &value : values)
            value = round_to(dtype, distribution(generator));
        return values;
    };
    Inputs inputs;
    inputs.q = normal(problem.q_size(), problem.spread, problem.dtype);
    inputs.k = normal(problem.kv_size(), 1, problem.dtype);
    inputs.v = normal(problem.kv_size(), 1, problem.dtype);
    inputs.d_out = normal(problem.q_size(), 1, problem.dtype);
    if (with_d_lse)
        inputs.d_lse = normal(problem.lse_size(), 1, statistics_dtype(problem.dtype));
    return inputs;
}

Call::Call(const Problem &problem, const Inputs &inputs, Memory &memory, bool aligned)
    : problem_(problem), qkv_(make_qkv(problem)), gradients_(make_gradients(problem)), copies_(memory, aligned) {
    options = test::options_of(problem_);
    constexpr std::array adds = {ANNULUS_CALL_ADD_D_Q, ANNULUS_CALL_ADD_D_K, ANNULUS_CALL_ADD_D_V};
    for (std::size_t i = 0; i < adds.size(); ++i)
        if (problem.gradients[i].adds)
            options.flags |= static_cast<std::uint64_t>(adds[i]);
    for (int i = 0; i < 2; ++i) {
        outs_.push_back(make_rows(problem, problem.query_length(), {problem.heads})[0]);
        statistics_.push_back(Tensor::statistics(problem.layout, statistics_dtype(problem.dtype), problem.batch,
                                                 problem.heads, problem.query_length()));
    }
    statistics_.push_back(Tensor::statistics(problem.layout, statistics_dtype(problem.dtype), problem.batch,
                                             problem.heads, problem.length));
    assign(inputs);
    const auto view = [&](const Tensor &tensor) { return copies_.view(tensor); };
    arguments = {view(qkv_[0]),        view(qkv_[1]),       view(qkv_[2]),        view(outs_[0]),
                 view(statistics_[0]), view(outs_[1]),      view(statistics_[1]), view(gradients_[0]),
                 view(gradients_[1]),  view(gradients_[2]), view(statistics_[2])};
}

void Call::assign(const Inputs &inputs) {
    inputs_ = inputs;
    qkv_[0].assign(inputs.q);
    qkv_[1].assign(inputs.k);
    qkv_[2].assign(inputs.v);
    outs_[1].assign(inputs.d_out);
    if (!inputs.d_lse.empty())
        statistics_[1].assign(inputs.d_lse);
    std::size_t i = 0;
    for (const std::vector<double> *before : {&inputs.d_q, &inputs.d_k, &inputs.d_v})
        if (Tensor &gradient = gradients_[i++]; !before->empty())
            gradient.assign(*before);
    for (const Tensor *tensor : {&qkv_[0], &qkv_[1], &qkv_[2], &outs_[1], &statistics_[1]})
        tensor->memory().remember();
}

void Call::reset(const Inputs &inputs) {
    for (const std::vector<Tensor> *tensors : {&qkv_, &gradients_, &outs_, &statistics_})
        for (const Tensor &tensor : *tensors)
            tensor.memory().poison();
    assign(inputs);
    copies_.upload();
}

// Removes the flags for gradients unless the pass is backward.
annulus_call_options Call::options_of(annulus_pass pass) const {
    annulus_call_options pass_options = options;
    if (pass != ANNULUS_PASS_BACKWARD)
        pass_options.flags &= ANNULUS_CALL_QUERY_WINDOW;
    return pass_options;
}

annulus_status Call::forward(annulus_context *context) const {
    const Arguments &a = arguments;
    const annulus_call_options pass_options = options_of(ANNULUS_PASS_FORWARD);
    return annulus_forward(context, &a.q, &a.k, &a.v, &a.out, &a.lse, &pass_options);
}

annulus_status Call::backward(annulus_context *context) const {
    const Arguments &a = arguments;
    return annulus_backward(context, &a.q, &a.k, &a.v, &a.out, &a.lse, &a.d_out,
                            inputs_.d_lse.empty() ? nullptr : &a.d_lse, &a.d_q, &a.d_k, &a.d_v, &options);
}

annulus_status Call::mass(annulus_context *context) const {
    const Arguments &a = arguments;
    const annulus_call_options pass_options = options_of(ANNULUS_PASS_MASS);
    return annulus_attention_mass(context, &a.q, &a.k, &a.lse, &a.mass, &pass_options);
}

Results Call::results(annulus_pass last) {
    copies_.download();
    expect_untouched("q", qkv_[0], inputs_.q);
    expect_untouched("k", qkv_[1], inputs_.k);
    expect_untouched("v", qkv_[2], inputs_.v);
    expect_untouched("d_out", outs_[1], inputs_.d_out);
    expect_untouched("d_lse", statistics_[1], inputs_.d_lse);
    expect_intact("out", outs_[0]);
    expect_intact("lse", statistics_[0]);
    Results results = {outs_[0].values(), statistics_[0].values(), {}, {}, {}};
    expect_intact("mass", statistics_[2]);
    if (last == ANNULUS_PASS_MASS)
        results.mass = statistics_[2].values();
    if (last != ANNULUS_PASS_BACKWARD)
        return results;
    expect_intact("d_q", gradients_[0]);
    expect_intact("d_k", gradients_[1]);
    expect_intact("d_v", gradients_[2]);
    results.d_q = gradients_[0].values();
    results.d_k = gradients_[1].values();
    results.d_v = gradients_[2].values();
    return results;
}

const char *RunOptions::refusal_of(const Problem &problem) const {
    if (!refusal)
        return nullptr;
    for (const SequenceRows &sequence : sequences_of(problem))
        if (const char *const reason = refusal(sequence.cut(problem)))
            return reason;
    return nullptr;
}

Problem taken(Problem problem, const RunOptions &options) {
    Problem narrower = problem;
    narrower.dim = std::min(problem.dim, 128);
    if (options.refusal_of(problem) && !options.refusal_of(narrower))
        return narrower;
    if (options.refusal_of(problem)) // an engine may take only dilations below 2^30
        for (BranchSpec &branch : problem.branches)
            branch.dilation = std::min<std::int64_t>(branch.dilation, 1000003);
    if (options.refusal_of(problem))
        for (BranchSpec &branch : problem.branches) {
            branch.order = ANNULUS_ORDER_LINEAR;
            branch.width = 0;
        }
    if (options.refusal_of(problem))
        problem.layout = Layout::packed;
    if (options.refusal_of(problem))
        problem.scale.reset();
    if (options.refusal_of(problem))
        problem.keys_once = false;
    if (options.refusal_of(problem))
        problem.dim = narrower.dim;
    return problem;
}

Config make_config(const Problem &problem, const RunOptions &options) {
    Config config = make_config(problem, options.engine);
    check(annulus_config_set_workspace_limit(config.get(), options.workspace_limit));
    check(annulus_config_set_allow_tf32(config.get(), options.allow_tf32));
    check(annulus_config_set_exchange(config.get(), options.exchange));
    return config;
}

bool fits_into_limit(annulus_context *context, const Problem &problem, const RunOptions &options) {
    const annulus_call_options call_options = options_of(problem);
    const annulus_problem sizes = sizes_of(problem, &call_options);
    check(annulus_context_set_config(context, make_config(problem, options).get()));
    for (const annulus_pass pass : {ANNULUS_PASS_FORWARD, options.mass ? ANNULUS_PASS_MASS : ANNULUS_PASS_BACKWARD}) {
        std::uint64_t bytes = 0;
        const annulus_status status = annulus_workspace_size(context, &sizes, pass, &bytes);
        if (status == ANNULUS_ERROR_WORKSPACE)
            return false;
        check(status);
    }
    return true;
}

// Doubles the limit until the library accepts it.
void raise_limit(annulus_context *context, const Problem &problem, RunOptions &options) {
    constexpr std::uint64_t ample = std::uint64_t{64} << 20;
    while (!fits_into_limit(context, problem, options)) {
        if (options.workspace_limit == 0 || options.workspace_limit >= ample)
            throw std::runtime_error("refused a workspace limit of " + std::to_string(options.workspace_limit) +
                                     " bytes: " + annulus_last_error());
        options.workspace_limit *= 2;
    }
}

Results run_on(annulus_context *context, const annulus_problem &sizes, const Problem &problem, const Inputs &inputs,
               const RunOptions &options) {
    Memory &memory = *options.memory;
    Call call(problem, inputs, memory, options.aligned);
    const auto results_of = [&](annulus_pass pass, annulus_status (Call::*compute)(annulus_context *) const) {
        std::optional<WatchedWorkspace> workspace;
        const annulus_call_options pass_options = call.options_of(pass);
        annulus_problem with_options = sizes;
        with_options.options = &pass_options;
        if (options.own_workspace)
            workspace.emplace(memory, context, with_options, pass, options.workspace_limit);
        check((call.*compute)(context));
        if (workspace)
            workspace->expect_guards_intact();
        return call.results(pass);
    };
    Results results = results_of(ANNULUS_PASS_FORWARD, &Call::forward);
    expect_served_by(options.engine, context);
    if (options.mass || options.backward) {
        const Results forward = std::move(results);
        results = options.mass ? results_of(ANNULUS_PASS_MASS, &Call::mass)
                               : results_of(ANNULUS_PASS_BACKWARD, &Call::backward);
        expect_unchanged("out", results.out, forward.out);
        expect_unchanged("lse", results.lse, forward.lse);
        expect_served_by(options.engine, context);
    }
    return results;
}

Results run(const Problem &problem, const Inputs &inputs, const RunOptions &given) {
    RunOptions options = given;
    const Config config = make_config(problem, options);
    const Context context = make_context(config.get(), options.threads, *options.memory);
    if (options.raise_limit)
        raise_limit(context.get(), problem, options);
    const annulus_call_options call_options = options_of(problem);
    return run_on(context.get(), sizes_of(problem, &call_options), problem, inputs, options);
}

Results run_exact(const Problem &problem, const Inputs &inputs, bool backward, annulus_engine engine) {
    Problem exact = problem;
    exact.dtype = ANNULUS_FLOAT64;
    exact.layout = Layout::rows;
    exact.gradients = {};
    return run(exact, inputs, {.engine = engine, .threads = 2, .backward = backward});
}

} // namespace annulus::test
