// SPDX-License-Identifier: Apache-2.0
#include "support/bounds.hpp"

#include "support/mask.hpp"
#include "support/number.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace annulus::test {

namespace {

// Constants of annulus/attention.h for the type of accumulation and the dtype of the tensors.
template <class Real> struct Numbers {
    explicit Numbers(annulus_dtype dtype) {
        const bool wide = dtype == ANNULUS_FLOAT64;
        score = std::ldexp(Real{1}, wide ? -49 : -20);
        sum = std::ldexp(Real{1}, wide ? -45 : -18);
        least = wide ? std::numeric_limits<double>::min() : std::numeric_limits<float>::min();
        range = wide ? Real{1e300} : Real{1e36};
        greatest_score = std::ldexp(Real{1}, wide ? 50 : 26);
        greatest_lse = std::ldexp(Real{1}, wide ? 49 : 20);
        negligible = wide ? 760 : 110;
        // Probabilities and their gradients may be rounded to the dtype before they are multiplied.
        weight = std::max(sum, dtype == ANNULUS_FLOAT64 || dtype == ANNULUS_FLOAT32 ? 0 : Real{rounding_unit(dtype)});
        if (dtype == ANNULUS_FLOAT16) {
            least = std::ldexp(Real{1}, -24);
            weight_range = 60000;
        } else {
            weight_range = range;
        }
    }
    Real score;          // error of a score, relative to its products
    Real sum;            // error of a sum, relative to its terms
    Real weight;         // relative error of a probability
    Real least;          // smaller intermediate results may become 0
    Real range;          // sums up to this are finite
    Real weight_range;   // the same for gradients of scores
    Real greatest_score; // nothing is promised for scores from here on
    Real greatest_lse;   // the same for LSE in backward
    Real negligible;     // exp(-negligible) counts as 0
};

template <class Real> struct Sum {
    Real value = 0, terms = 0; // sum of the terms, and of their magnitudes
    void add(Real term) {
        value += term;
        terms += std::fabs(term);
    }
};

template <class Real> Sum<Real> dot(const Real *a, const Real *b, std::int32_t dim) {
    Sum<Real> sum;
    for (std::int32_t d = 0; d < dim; ++d)
        sum.add(a[d] * b[d]);
    return sum;
}

template <class Real> bool is_infinite_among(const Real *values, std::int32_t dim) {
    return std::any_of(values, values + dim, [](Real value) { return std::isinf(value); });
}
template <class Real> bool is_finite_all(const Real *values, std::int32_t dim) {
    return std::all_of(values, values + dim, [](Real value) { return std::isfinite(value); });
}

// The number that a row is multiplied with for a gradient, and the error of this number.
template <class Real> struct Factor {
    // `other` is a number that an engine may use instead of `factor`.
    Factor(Real factor, Real factor_error, Real other)
        : value(factor), error(factor_error), most(std::max(std::fabs(factor), std::fabs(other)) + factor_error),
          is_finite(std::isfinite(factor)), has_finite_error(std::isfinite(most)) {}
    Real value, error, most;
    bool is_finite, has_finite_error;
};

// Adds up the terms of a gradient.
template <class Real> struct Gradient {
    Sum<Real> sum;
    Real error = 0;
    bool is_number = true, is_free = false, is_open = false;
};

// Real is long double for float64 and double for other dtypes. Its rounding is far below that of the dtype, and its
// range holds products of four numbers.
template <class Real> class Formula {
  public:
    Formula(const Problem &problem, const Inputs &inputs, bool leaves_out_keys)
        : p_(problem), d_lse_(inputs.d_lse), leaves_out_keys_(leaves_out_keys), numbers_(problem.dtype),
          q_(inputs.q.begin(), inputs.q.end()), k_(inputs.k.begin(), inputs.k.end()),
          v_(inputs.v.begin(), inputs.v.end()), d_out_(inputs.d_out.begin(), inputs.d_out.end()),
          scale_(problem.scale_or_default()), d_q_(problem.q_size()), d_k_(problem.kv_size()), d_v_(problem.kv_size()) {
        bounds_.out.resize(p_.q_size());
        bounds_.lse.resize(p_.lse_size());
    }

    Bounds compute() {
        const Mask mask(p_);
        for (std::int64_t j = 0; j < p_.query_length(); ++j)
            for (std::int32_t h = 0; h < p_.heads; ++h) {
                const Mask::Keys keys = mask.keys(p_.query_start() + j, h);
                for (std::int64_t b = 0; b < p_.batch; ++b)
                    add_row(b, j, h, keys);
            }
        bounds_.d_q = finished(d_q_, 0);
        bounds_.d_k = finished(d_k_, 1);
        bounds_.d_v = finished(d_v_, 2);
        return std::move(bounds_);
    }

  private:
    static constexpr Real infinity = std::numeric_limits<Real>::infinity();
    static constexpr Real nan = std::numeric_limits<Real>::quiet_NaN();

    struct Score {
        std::size_t key; // offset of its row of K and V
        Real value, error;
        Real exponent = 0, weight = 0; // logarithm of the probability, and the probability
    };

    void add_row(std::int64_t b, std::int64_t j, std::int32_t h, const Mask::Keys &keys) {
        const std::size_t row = static_cast<std::size_t>((b * p_.query_length() + j) * p_.heads + h) * p_.dim;
        const std::size_t statistic = static_cast<std::size_t>((b * p_.heads + h) * p_.query_length() + j);
        Bound &lse = bounds_.lse[statistic];
        if (keys.positions.empty() && keys.padding == 0) {
            lse.exact = -infinity;
            lse.is_number = false;
            return;
        }
        const Real *const q = &q_[row];
        scores_.clear();
        is_number_ = is_finite_all(q, p_.dim);
        sees_infinity_ = is_infinite_among(q, p_.dim);
        is_open_ = false;
        for (const std::int64_t m : keys.positions) {
            const auto key = static_cast<std::size_t>((b * p_.length + m) * p_.kv() + p_.kv_head(h)) * p_.dim;
            const Sum<Real> product = dot(q, &k_[key], p_.dim);
            const Real size = std::fabs(scale_) * product.terms;
            scores_.push_back({key, scale_ * product.value,
                               numbers_.score * size + std::fabs(scale_) * p_.dim * numbers_.least * numbers_.score});
            is_number_ &= product.terms < numbers_.range && size < numbers_.greatest_score;
            sees_infinity_ |= is_infinite_among(&k_[key], p_.dim);
            is_open_ |= leaves_out_keys_ && product.terms > std::numeric_limits<float>::max();
        }
        add_statistics(keys.padding, lse);
        add_out(row, lse);
        add_gradients(row, statistic, lse);
    }

    // Computes LSE, and the largest error of the scores that are not negligible.
    void add_statistics(std::int64_t padding, Bound &lse) {
        Real greatest = padding ? 0 : -infinity, top = greatest;
        bool has_nan = false;
        for (const Score &score : scores_) {
            has_nan |= std::isnan(score.value);
            greatest = std::max(greatest, score.value);
            top = std::max(top, score.value - score.error);
        }
        Real sum = padding ? static_cast<Real>(padding) * std::exp(-greatest) : 0;
        least_ = top - numbers_.negligible;
        error_ = 0;
        for (const Score &score : scores_) {
            sum += std::exp(score.value - greatest);
            if (score.value + score.error >= least_)
                error_ = std::max(error_, score.error);
        }
        const Real log_sum = has_nan ? nan : std::log(sum);
        for (Score &score : scores_) { // not score - LSE: beside large scores LSE has no digits left for log_sum
            score.exponent = score.value - greatest - log_sum;
            score.weight = std::exp(score.exponent);
        }
        lse.exact = greatest + log_sum;
        lse.error = error_ + numbers_.sum * (1 + std::fabs(lse.exact) / 8);
        lse.is_number = is_number_;
        lse.is_open = is_open_;
    }

    // True if an engine may leave out the products with this weight, even a product with NaN.
    bool is_nothing(Real weight) const { return weight < 4 * numbers_.least; }

    void add_out(std::size_t row, const Bound &lse) {
        const bool is_lost = std::isnan(lse.exact); // then all probabilities and the whole row are NaN
        for (std::int32_t d = 0; d < p_.dim; ++d) {
            if (is_lost) {
                bounds_.out[row + d] = {nan, infinity, false, sees_infinity_, is_open_};
                continue;
            }
            Sum<Real> out;
            Real value = 0, negligible = 0; // largest magnitudes of V, for both kinds of scores
            bool is_number = is_number_, is_free = sees_infinity_;
            for (const Score &score : scores_) {
                const Real v = v_[score.key + d];
                out.add(score.weight * v);
                Real &size = score.value + score.error >= least_ ? value : negligible;
                size = std::max(size, std::fabs(v));
                is_number &= std::isfinite(v);
                is_free |= !std::isfinite(v) && is_nothing(score.weight);
            }
            const auto count = static_cast<Real>(scores_.size());
            is_number &= (value + negligible) * count < numbers_.range;
            Bound &bound = bounds_.out[row + d];
            bound.exact = out.value;
            bound.error = (std::min(std::expm1(2 * error_), Real{2}) + 2 * numbers_.weight + numbers_.sum) * value +
                          count * (std::exp(10 - numbers_.negligible) * negligible + numbers_.least * value) +
                          rounding(p_.dtype, out.value);
            bound.is_number = is_number && std::fabs(bound.exact) + bound.error < most(p_.dtype);
            bound.is_free = is_free;
            bound.is_open = is_open_;
        }
    }

    void add_gradients(std::size_t row, std::size_t statistic, const Bound &lse) {
        const Real *const q = &q_[row], *const d_out = &d_out_[row];
        const Real d_lse = d_lse_.empty() ? 0 : d_lse_[statistic];
        Sum<Real> delta;
        Real delta_error = 0;
        bool is_row_number = is_number_ && error_ < 1 && is_finite_all(d_out, p_.dim) && std::isfinite(d_lse);
        for (std::int32_t d = 0; d < p_.dim; ++d) {
            const Bound &out = bounds_.out[row + d];
            delta.add(static_cast<Real>(out.exact) * d_out[d]);
            delta_error += static_cast<Real>(out.error) * std::fabs(d_out[d]);
            is_row_number &= out.is_number;
        }
        delta_error += numbers_.sum * delta.terms;
        // If LSE is larger, gradients are exact or NaN and do not depend on LSE's error.
        const Real logarithm = std::min(static_cast<Real>(std::fabs(lse.exact)), numbers_.greatest_lse);
        is_row_number &= std::fabs(lse.exact) + lse.error < numbers_.greatest_lse && delta.terms < numbers_.range;
        bool is_free_row = sees_infinity_ || is_infinite_among(d_out, p_.dim) || std::isinf(d_lse);
        for (const Score &score : scores_) // an infinity in V reaches all keys through delta
            is_free_row |= is_infinite_among(&v_[score.key], p_.dim);
        for (std::int32_t d = 0; d < p_.dim; ++d)
            is_free_row |= bounds_.out[row + d].is_free;
        for (const Score &score : scores_) {
            const Real *const k = &k_[score.key], *const v = &v_[score.key];
            const Real exponent_error = score.error + error_ + numbers_.sum * (2 + logarithm / 4);
            const Real weight = score.weight;
            const Real weight_error =
                std::exp(score.exponent + exponent_error) - weight + numbers_.weight * weight + numbers_.least;
            const bool is_free = is_free_row || is_nothing(weight);
            const Sum<Real> d_weight = dot(d_out, v, p_.dim);
            const Real change = d_weight.value - delta.value + d_lse;
            const Real change_error = numbers_.sum * (d_weight.terms + delta.terms + std::fabs(d_lse)) + delta_error;
            const Real d_score = weight * change;
            const Real d_score_error = weight_error * (std::fabs(change) + change_error) + weight * change_error +
                                       numbers_.weight * std::fabs(d_score) + numbers_.least;
            const bool is_term_number =
                is_row_number && exponent_error < 1 && d_weight.terms < numbers_.range &&
                (std::fabs(d_score) + d_score_error) * std::max(Real{1}, std::fabs(scale_)) < numbers_.weight_range;
            // Engines may multiply by the scale before or after the product with the rows.
            const Factor score_factor(scale_ * d_score, std::fabs(scale_) * d_score_error + numbers_.least, d_score);
            const Factor value_factor(weight, weight_error, Real{0});
            for (std::int32_t d = 0; d < p_.dim; ++d) {
                add(d_q_[row + d], score_factor, k[d], is_term_number, is_free);
                add(d_k_[score.key + d], score_factor, q[d], is_term_number, is_free);
                add(d_v_[score.key + d], value_factor, d_out[d], is_row_number && exponent_error < 1, is_free);
            }
        }
    }

    // Adds a term. Nothing is added to a sum that is NaN or to an error that is infinite. On x87, sums with NaN and
    // infinity take fifty times as long.
    void add(Gradient<Real> &to, const Factor<Real> &factor, Real row_value, bool is_number, bool is_free) const {
        to.is_free |= is_free;
        to.is_open |= is_open_;
        if (!factor.is_finite || !std::isfinite(row_value)) {
            to.sum.value = nan;
            to.is_number = false;
        }
        if (std::isnan(to.sum.value))
            return;
        const Real term = factor.value * row_value, size = std::fabs(row_value);
        to.sum.add(term);
        if (!factor.has_finite_error)
            to.error = infinity;
        if (std::isinf(to.error)) {
            to.is_number = false;
            return;
        }
        to.is_number &= is_number && factor.most * size < numbers_.range;
        to.error += factor.error * size + (numbers_.weight + numbers_.sum) * std::fabs(term) + numbers_.least;
    }

    std::vector<Bound> finished(const std::vector<Gradient<Real>> &gradients, std::size_t which) const {
        const annulus_dtype dtype = p_.gradient_dtype(which);
        std::vector<Bound> bounds;
        for (const Gradient<Real> &gradient : gradients) {
            Bound bound;
            bound.exact = gradient.sum.value;
            bound.error = gradient.error + (numbers_.sum + numbers_.weight) * gradient.sum.terms +
                          rounding(dtype, gradient.sum.value);
            bound.is_number = gradient.is_number && gradient.sum.terms + bound.error < most(dtype);
            bound.is_free = gradient.is_free;
            bound.is_open = gradient.is_open;
            if (gradient.sum.terms == 0 && gradient.error == 0) // no query or key reaches this row
                bound.error = 0;
            bounds.push_back(bound);
        }
        return bounds;
    }

    // Returns the largest magnitude for which a result must be finite.
    Real most(annulus_dtype dtype) const { return dtype == ANNULUS_FLOAT16 ? Real{60000} : numbers_.range; }

    static Real rounding(annulus_dtype dtype, Real value) {
        const Real least = dtype == ANNULUS_FLOAT16   ? std::ldexp(Real{1}, -24)
                           : dtype == ANNULUS_FLOAT64 ? Real{std::numeric_limits<double>::min()}
                                                      : Real{std::numeric_limits<float>::min()};
        return rounding_unit(dtype) * std::fabs(value) + least;
    }

    const Problem &p_;
    const std::vector<double> &d_lse_;
    const bool leaves_out_keys_;
    const Numbers<Real> numbers_;
    const std::vector<Real> q_, k_, v_, d_out_;
    const Real scale_;
    Bounds bounds_;
    std::vector<Gradient<Real>> d_q_, d_k_, d_v_;
    // State of the current row.
    std::vector<Score> scores_;
    Real error_ = 0, least_ = 0;
    bool is_number_ = true, sees_infinity_ = false, is_open_ = false;
};

} // namespace

bool Bound::holds(double got) const {
    if (is_open)
        return true;
    if (!std::isfinite(exact))
        return is_free || (std::isinf(exact) && error == 0 ? got == exact : !std::isfinite(got));
    if (!std::isfinite(got))
        return !is_number;
    return !(std::fabs(got - exact) > error);
}

Bounds bounds_of(const Problem &problem, const Inputs &inputs, bool leaves_out_keys) {
    return problem.dtype == ANNULUS_FLOAT64 ? Formula<long double>(problem, inputs, leaves_out_keys).compute()
                                            : Formula<double>(problem, inputs, leaves_out_keys).compute();
}

} // namespace annulus::test
