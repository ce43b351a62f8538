// SPDX-License-Identifier: Apache-2.0
#include "support/run.hpp"

#include <random>
#include <stdexcept>

namespace annulus::test {
namespace {

// The workspace that the library asks for, to the byte, at an odd address, between guards; all NaN.
class WatchedWorkspace {
  public:
    WatchedWorkspace(annulus_context *context, const Problem &problem, annulus_pass pass) {
        const annulus_problem sizes = sizes_of(problem);
        std::uint64_t bytes = 0;
        check(annulus_workspace_size(context, &sizes, pass, &bytes));
        bytes_.assign(2 * guard + bytes, 0xFF);
        check(annulus_context_set_workspace(context, bytes_.data() + guard, bytes));
    }

    void expect_guards_intact() const {
        for (std::size_t i = 0; i < guard; ++i)
            if (bytes_[i] != 0xFF || bytes_[bytes_.size() - 1 - i] != 0xFF)
                throw std::runtime_error("written outside the workspace");
    }

  private:
    static constexpr std::size_t guard = 65;
    std::vector<unsigned char> bytes_;
};

// The tensors of one problem, q | k v and their gradients each packed together where the layout says so.
struct Tensors {
    std::vector<Tensor> q_and_kv;
    std::vector<Tensor> gradients;
    std::vector<Tensor> outs; // out, d_out
    Tensor lse, d_lse;

    explicit Tensors(const Problem &p)
        : q_and_kv(make_qkv(p)), gradients(make_qkv(p)),
          outs(Tensor::rows(p.layout, p.dtype, p.batch, p.query_length(), {p.heads}, p.dim)), lse(make_statistics(p)),
          d_lse(make_statistics(p)) {
        outs.push_back(Tensor::rows(p.layout, p.dtype, p.batch, p.query_length(), {p.heads}, p.dim)[0]);
    }

    Tensor &out() { return outs[0]; }
    Tensor &d_out() { return outs[1]; }

  private:
    static std::vector<Tensor> make_qkv(const Problem &p) {
        if (!p.window)
            return Tensor::rows(p.layout, p.dtype, p.batch, p.length, {p.heads, p.kv(), p.kv()}, p.dim);
        std::vector<Tensor> tensors = Tensor::rows(p.layout, p.dtype, p.batch, p.query_length(), {p.heads}, p.dim);
        for (Tensor &tensor : Tensor::rows(p.layout, p.dtype, p.batch, p.length, {p.kv(), p.kv()}, p.dim))
            tensors.push_back(std::move(tensor));
        return tensors;
    }
    static Tensor make_statistics(const Problem &p) {
        return Tensor::statistics(p.layout, statistics_dtype(p.dtype), p.batch, p.heads, p.query_length());
    }
};

void expect_intact(const char *name, const Tensor &tensor) {
    if (!tensor.memory().intact())
        throw std::runtime_error(std::string("written outside the elements of ") + name);
}

void expect_unchanged(const char *name, const Tensor &tensor, const std::vector<double> &values) {
    const std::vector<double> now = tensor.values();
    for (std::size_t i = 0; i < values.size(); ++i)
        if (!(now[i] == values[i]) && !(now[i] != now[i] && values[i] != values[i]))
            throw std::runtime_error(std::string("the call changed its input ") + name);
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

Results run(const Problem &problem, const Inputs &inputs, const RunOptions &options) {
    const Config config = make_config(problem, options.engine);
    const Context context = make_context(config.get(), options.threads);
    annulus_window window = ANNULUS_WINDOW_INIT;
    window.query_start = problem.query_start();
    const annulus_window *window_or_null = problem.window ? &window : nullptr;

    Tensors t(problem);
    Tensor &q = t.q_and_kv[0], &k = t.q_and_kv[1], &v = t.q_and_kv[2];
    q.assign(inputs.q);
    k.assign(inputs.k);
    v.assign(inputs.v);

    Results results;
    const WatchedWorkspace forward_workspace(context.get(), problem, ANNULUS_PASS_FORWARD);
    check(annulus_forward(context.get(), &q.view(), &k.view(), &v.view(), &t.out().view(), &t.lse.view(),
                          window_or_null));
    forward_workspace.expect_guards_intact();
    expect_intact("out", t.out());
    expect_intact("lse", t.lse);
    results.out = t.out().values();
    results.lse = t.lse.values();

    if (options.backward) {
        Tensor &d_q = t.gradients[0], &d_k = t.gradients[1], &d_v = t.gradients[2];
        t.d_out().assign(inputs.d_out);
        if (!inputs.d_lse.empty())
            t.d_lse.assign(inputs.d_lse);
        const WatchedWorkspace backward_workspace(context.get(), problem, ANNULUS_PASS_BACKWARD);
        check(annulus_backward(context.get(), &q.view(), &k.view(), &v.view(), &t.out().view(), &t.lse.view(),
                               &t.d_out().view(), inputs.d_lse.empty() ? nullptr : &t.d_lse.view(), &d_q.view(),
                               &d_k.view(), &d_v.view(), window_or_null));
        backward_workspace.expect_guards_intact();
        expect_intact("d_q", d_q);
        expect_intact("d_k", d_k);
        expect_intact("d_v", d_v);
        expect_unchanged("out", t.out(), results.out);
        expect_unchanged("lse", t.lse, results.lse);
        expect_unchanged("d_out", t.d_out(), inputs.d_out);
        results.d_q = d_q.values();
        results.d_k = d_k.values();
        results.d_v = d_v.values();
    }
    expect_unchanged("q", q, inputs.q);
    expect_unchanged("k", k, inputs.k);
    expect_unchanged("v", v, inputs.v);
    expect_intact("q, k, v", q);

    annulus_engine served = ANNULUS_ENGINE_AUTO;
    check(annulus_context_last_engine(context.get(), &served));
    if (options.engine != ANNULUS_ENGINE_AUTO && served != options.engine)
        throw std::runtime_error("another engine served the call than was asked for");
    return results;
}

Results run_exact(const Problem &problem, const Inputs &inputs, bool backward) {
    Problem exact = problem;
    exact.dtype = ANNULUS_FLOAT64;
    exact.layout = Layout::rows;
    return run(exact, inputs, {.engine = ANNULUS_ENGINE_REFERENCE, .threads = 2, .backward = backward});
}

} // namespace annulus::test
