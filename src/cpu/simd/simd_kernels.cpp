// SPDX-License-Identifier: Apache-2.0
// The element-wise vector kernels, and the tables of all kernels of a set. Everything except the tables is local to
// this file. Otherwise the linker could keep another file's copy of a function, with the wrong instructions.
#include "cpu/simd/simd_vector.hpp"

namespace annulus::ANNULUS_SIMD {

namespace {

// Returns ln(2)^k / k!, the Taylor coefficients of 2^x.
template <class T> constexpr T exp2_coefficient(int k) {
    double c = 1;
    for (int i = 1; i <= k; ++i)
        c *= 0.693147180559945309417232121458 / i;
    return static_cast<T>(c);
}

// Returns 2^x, correct to the rounding of T. It is 0 below the normal numbers (so 2^-infinity is exactly 0), infinity
// above the largest number, and NaN for NaN. x = n + f, where n is the nearest integer. Adding 1.5 * 2^fraction_bits
// leaves n in the low bits of the sum, and a shift moves it into the exponent.
template <class T> inline Vector<T> exp2(Vector<T> x) {
    using Traits = Type<T>;
    constexpr T magic = static_cast<T>(typename Traits::Bits{3} << (Traits::fraction_bits - 1));
    constexpr T low = -static_cast<T>(Traits::bias);
    constexpr T high = static_cast<T>(Traits::bias + 1);
    x = x < low ? Vector<T>{} + low : x;
    x = x > high ? Vector<T>{} + high : x;
    const Vector<T> shifted = x + magic;
    const Vector<T> fraction = x - (shifted - magic);
    Vector<T> power = Vector<T>{} + exp2_coefficient<T>(Traits::exp2_degree);
#pragma GCC unroll 16
    for (int k = Traits::exp2_degree - 1; k >= 0; --k)
        power = power * fraction + exp2_coefficient<T>(k);
    const BitsVector<T> exponent = ((BitsVector<T>)shifted + Traits::bias) << Traits::fraction_bits;
    return power * (Vector<T>)exponent;
}

template <class V> inline V maximum(V a, V b) {
    return a > b ? a : b;
}

// A row of scores: `group_columns` queries, as vectors.
template <class T> struct Row {
    static constexpr int count = group_columns / width<T>;
    Vector<T> v[count];
};

template <class T> inline Row<T> load_elements(const T *source) {
    Row<T> row;
#pragma GCC unroll 16
    for (int i = 0; i < Row<T>::count; ++i)
        row.v[i] = load<Vector<T>>(source + i * width<T>);
    return row;
}

template <class T> inline void store_elements(T *target, const Row<T> &row) {
#pragma GCC unroll 16
    for (int i = 0; i < Row<T>::count; ++i)
        store(target + i * width<T>, row.v[i]);
}

template <class T> bool softmax(T *scores, int keys, T *m, T *l, T *correction) {
    constexpr T infinity = __builtin_inff();
    constexpr int count = Row<T>::count;
    const Row<T> old_maximum = load_elements(m);
    Row<T> best = old_maximum;
    int key = 0;
    for (; key + 4 <= keys; key += 4) {
        const T *s = scores + key * group_columns;
#pragma GCC unroll 16
        for (int i = 0; i < count; ++i) {
            const T *column = s + i * width<T>;
            const Vector<T> a = maximum(load<Vector<T>>(column), load<Vector<T>>(column + group_columns));
            const Vector<T> b =
                maximum(load<Vector<T>>(column + 2 * group_columns), load<Vector<T>>(column + 3 * group_columns));
            best.v[i] = maximum(maximum(a, b), best.v[i]);
        }
    }
    for (; key < keys; ++key)
#pragma GCC unroll 16
        for (int i = 0; i < count; ++i)
            best.v[i] = maximum(load<Vector<T>>(scores + key * group_columns + i * width<T>), best.v[i]);

    // If no key was seen yet, the maximum is -infinity, and subtracting it from itself would give NaN.
    Row<T> base, sum;
    BitsVector<T> has_moved = {};
#pragma GCC unroll 16
    for (int i = 0; i < count; ++i) {
        base.v[i] = best.v[i] == -infinity ? Vector<T>{} : best.v[i];
        const Vector<T> factor = exp2<T>(old_maximum.v[i] - base.v[i]);
        has_moved |= (BitsVector<T>)(factor != T{1});
        store(correction + i * width<T>, factor);
        sum.v[i] = load<Vector<T>>(l + i * width<T>) * factor;
    }
    store_elements(m, best);

    for (key = 0; key < keys; ++key) {
        T *s = scores + key * group_columns;
#pragma GCC unroll 16
        for (int i = 0; i < count; ++i) {
            const Vector<T> p = exp2<T>(load<Vector<T>>(s + i * width<T>) - base.v[i]);
            store(s + i * width<T>, p);
            sum.v[i] += p;
        }
    }
    store_elements(l, sum);
    typename Type<T>::Bits any = 0;
    for (int i = 0; i < width<T>; ++i)
        any |= has_moved[i];
    return any != 0;
}

template <class T> void gradient(T *scores, T *d_probability, int keys, const T *lse, const T *delta, T factor) {
    const Row<T> row_lse = load_elements(lse);
    const Row<T> row_delta = load_elements(delta);
    for (int key = 0; key < keys; ++key) {
        T *s = scores + key * group_columns;
        T *d = d_probability ? d_probability + key * group_columns : nullptr;
#pragma GCC unroll 16
        for (int i = 0; i < Row<T>::count; ++i) {
            const Vector<T> p = exp2<T>(load<Vector<T>>(s + i * width<T>) - row_lse.v[i]);
            store(s + i * width<T>, p);
            if (!d)
                continue;
            // Multiply by the factor last: factor * p may underflow to 0 when factor * ds does not.
            const Vector<T> ds = factor * (p * (load<Vector<T>>(d + i * width<T>) - row_delta.v[i]));
            store(d + i * width<T>, p == T{0} ? Vector<T>{} : ds);
        }
    }
}

template <class T>
void mask(T *scores, int keys, const std::int64_t *key_position, const std::int64_t *query_position,
          std::int64_t before, std::int64_t after, T value) {
    for (int key = 0; key < keys; ++key) {
        const std::int64_t first = key_position[key] - after, last = key_position[key] + before;
        for (int c = 0; c < group_columns; ++c) {
            const bool is_hidden = (query_position[c] < first) | (query_position[c] > last);
            scores[key * group_columns + c] = is_hidden ? value : scores[key * group_columns + c];
        }
    }
}

template <class T>
void mask_equal(T *scores, int keys, const std::int64_t *key_class, const std::int64_t *query_class, T value) {
    for (int key = 0; key < keys; ++key)
        for (int c = 0; c < group_columns; ++c)
            scores[key * group_columns + c] =
                key_class[key] == query_class[c] ? value : scores[key * group_columns + c];
}

template <class T>
void mask_equal_near(T *scores, int keys, const std::int64_t *key_class, const std::int64_t *query_class,
                     const std::int64_t *key_position, const std::int64_t *query_position, std::int64_t before,
                     std::int64_t after, T value) {
    for (int key = 0; key < keys; ++key) {
        const std::int64_t first = key_position[key] - after, last = key_position[key] + before;
        for (int c = 0; c < group_columns; ++c) {
            const bool is_hidden =
                (query_class[c] == key_class[key]) & (query_position[c] >= first) & (query_position[c] <= last);
            scores[key * group_columns + c] = is_hidden ? value : scores[key * group_columns + c];
        }
    }
}

template <class T> void add(T *target, const T *source, int n) {
    for (int i = 0; i < n; ++i)
        target[i] += source[i];
}

template <class T> void scale(T *target, T factor, int n) {
    for (int i = 0; i < n; ++i)
        target[i] *= factor;
}

template <class T> T dot(const T *a, const T *b, int n) {
    T partial[8] = {};
    for (int i = 0; i < n; i += 8)
        for (int j = 0; j < 8; ++j)
            partial[j] += a[i + j] * b[i + j];
    return ((partial[0] + partial[4]) + (partial[2] + partial[6])) +
           ((partial[1] + partial[5]) + (partial[3] + partial[7]));
}

// Conversions without branches, so that the compiler vectorises the loops around them. core/dtype.hpp has the plain
// form.
inline std::uint32_t bits_of(float x) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float float_of(std::uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

inline float from_bfloat16(std::uint16_t half) {
    return float_of(static_cast<std::uint32_t>(half) << 16);
}

inline std::uint16_t to_bfloat16(float x) {
    const std::uint32_t bits = bits_of(x);
    const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const std::uint32_t quiet_nan = (bits >> 16) | 0x40;
    return static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
}

// A multiplication by 2^(127 - 15) turns the 5 exponent bits into 8. It is correct for subnormals, too.
inline float from_float16(std::uint16_t half) {
    const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7fff) << 13;
    const std::uint32_t finite = bits_of(float_of(magnitude) * 0x1p112F);
    const std::uint32_t special = magnitude | 0x7f800000;
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
    return float_of(sign | ((half & 0x7c00) == 0x7c00 ? special : finite));
}

inline std::uint16_t to_float16(float x) {
    const std::uint32_t bits = bits_of(x);
    const std::uint32_t magnitude = bits & 0x7fffffff;
    // Subnormal results: adding 0.5 aligns their last place with that of the sum, which rounds to even.
    const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5F) - bits_of(0.5F);
    const std::uint32_t normal = (magnitude - (112U << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    const std::uint32_t overflow = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    const std::uint32_t finite = magnitude < (113U << 23) ? subnormal : normal;
    const std::uint32_t result = magnitude >= 0x477ff000 ? overflow : finite;
    return static_cast<std::uint16_t>((bits >> 16 & 0x8000) | result);
}

template <class T> bool all_finite(const T *row, int n) {
    using Bits = typename Type<T>::Bits;
    Bits special = 0;
    for (int i = 0; i < n; ++i) {
        Bits bits;
        __builtin_memcpy(&bits, row + i, sizeof bits);
        special |= (bits & Type<T>::exponent_mask) == Type<T>::exponent_mask ? Bits{1} : Bits{0};
    }
    return special == 0;
}

template <class Source, float (*convert)(Source)> void read(const void *source, int n, float *target) {
    const auto *s = static_cast<const Source *>(source);
    for (int i = 0; i < n; ++i)
        target[i] = convert(s[i]);
}

template <class Target, Target (*convert)(float)> void write(const float *source, float factor, int n, void *target) {
    auto *t = static_cast<Target *>(target);
    for (int i = 0; i < n; ++i)
        t[i] = convert(factor * source[i]);
}

bool load_float_row(annulus_dtype dtype, const void *source, int n, float *target) {
    if (dtype == ANNULUS_BFLOAT16)
        read<std::uint16_t, from_bfloat16>(source, n, target);
    else if (dtype == ANNULUS_FLOAT16)
        read<std::uint16_t, from_float16>(source, n, target);
    else
        __builtin_memcpy(target, source, static_cast<std::size_t>(n) * sizeof *target);
    return all_finite(target, n);
}

inline float same(float x) {
    return x;
}

void store_float_row(annulus_dtype dtype, const float *source, float factor, int n, void *target) {
    if (dtype == ANNULUS_BFLOAT16)
        write<std::uint16_t, to_bfloat16>(source, factor, n, target);
    else if (dtype == ANNULUS_FLOAT16)
        write<std::uint16_t, to_float16>(source, factor, n, target);
    else
        write<float, same>(source, factor, n, target);
}

// Only float64 accumulates in double.
bool load_double_row(annulus_dtype, const void *source, int n, double *target) {
    __builtin_memcpy(target, source, static_cast<std::size_t>(n) * sizeof *target);
    return all_finite(target, n);
}

void store_double_row(annulus_dtype, const double *source, double factor, int n, void *target) {
    auto *t = static_cast<double *>(target);
    for (int i = 0; i < n; ++i)
        t[i] = factor * source[i];
}

} // namespace

extern const VectorKernels<float> float_kernels;
extern const VectorKernels<double> double_kernels;

const VectorKernels<float> float_kernels = {
    multiply<float>, load_float_row,  store_float_row, add,     scale, dot, mask,
    mask_equal,      mask_equal_near, softmax,         gradient};
const VectorKernels<double> double_kernels = {
    multiply<double>, load_double_row, store_double_row, add,     scale, dot, mask,
    mask_equal,       mask_equal_near, softmax,          gradient};

} // namespace annulus::ANNULUS_SIMD
