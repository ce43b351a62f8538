// SPDX-License-Identifier: Apache-2.0
// The passes as custom calls of XLA, by its typed foreign function interface: each for CPUs, as annulus_cpu_*, and for
// CUDA devices, as annulus_cuda_*. annulus/jax/_extension.py registers them, annulus/jax/_calls.py makes the calls.
//
// Arrays are contiguous. The last result of a pass is its workspace, bytes that XLA allocates. A call on a CUDA device
// is ordered on XLA's stream and does not wait for it.
#include "contexts.hpp"

#include <annulus/annulus.h>
#include <xla/ffi/api/ffi.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace ffi = xla::ffi;

namespace {

using annulus::xla::ContextKey;
using annulus::xla::ContextUse;
using Array = ffi::AnyBuffer;
using Written = ffi::Result<ffi::AnyBuffer>;
using Integers = ffi::Span<const std::int64_t>;

// Where XLA executes a call.
struct Place {
    annulus_device device;
    std::int32_t index;
    void *stream; // null on a CPU
};

// The first parameter of a handler: its place on a CPU, or on a CUDA device.
struct OnCpu : Place {};
struct OnCuda : Place {};

// The attributes of a pass's custom call.
struct CallAttributes {
    Integers config; // as in ContextKey
    double scale;
    bool has_query_window;
    std::int64_t query_start;  // 0 without a query window
    Integers sequence_starts;  // empty: none
    Integers sequence_lengths; // empty: none
    bool is_bhnd;              // rows are [B, heads, N, D], not [B, N, heads, D]
    std::int32_t threads;      // on a CPU: the number that the workspace was sized for
};

} // namespace

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(CallAttributes, ffi::StructMember<Integers>("config"),
                                      ffi::StructMember<double>("scale"), ffi::StructMember<bool>("has_query_window"),
                                      ffi::StructMember<std::int64_t>("query_start"),
                                      ffi::StructMember<Integers>("sequence_starts"),
                                      ffi::StructMember<Integers>("sequence_lengths"),
                                      ffi::StructMember<bool>("is_bhnd"), ffi::StructMember<std::int32_t>("threads"));

template <> struct xla::ffi::CtxBinding<OnCpu> { using Ctx = OnCpu; };
template <> struct xla::ffi::CtxDecoding<OnCpu> {
    using Type = OnCpu;
    static std::optional<Type> Decode(const XLA_FFI_Api *, XLA_FFI_ExecutionContext *, DiagnosticEngine &) {
        return OnCpu{{ANNULUS_DEVICE_CPU, 0, nullptr}};
    }
};

template <> struct xla::ffi::CtxBinding<OnCuda> { using Ctx = OnCuda; };
template <> struct xla::ffi::CtxDecoding<OnCuda> {
    using Type = OnCuda;
    static std::optional<Type> Decode(const XLA_FFI_Api *api, XLA_FFI_ExecutionContext *context,
                                      DiagnosticEngine &diagnostic) {
        const auto stream = CtxDecoding<PlatformStream<void *>>::Decode(api, context, diagnostic);
        const auto index = CtxDecoding<DeviceOrdinal>::Decode(api, context, diagnostic);
        if (!stream || !index)
            return std::nullopt;
        return OnCuda{{ANNULUS_DEVICE_CUDA, *index, *stream}};
    }
};

namespace {

annulus_dtype dtype_of(const Array &array) {
    switch (array.element_type()) {
    case ffi::DataType::F64:
        return ANNULUS_FLOAT64;
    case ffi::DataType::F32:
        return ANNULUS_FLOAT32;
    case ffi::DataType::BF16:
        return ANNULUS_BFLOAT16;
    case ffi::DataType::F16:
        return ANNULUS_FLOAT16;
    default:
        return ANNULUS_DTYPE_NONE; // which the C API refuses
    }
}

// Returns the tensor of an array. Its axes N and heads are exchanged if it has rows and is_bhnd.
annulus_tensor tensor_of(const Array &array, bool is_bhnd) {
    const auto dimensions = array.dimensions();
    annulus_tensor tensor{};
    tensor.data = array.untyped_data();
    tensor.dtype = dtype_of(array);
    tensor.ndim = static_cast<std::int32_t>(dimensions.size());
    std::int64_t stride = 1;
    for (std::size_t i = dimensions.size() < 4 ? dimensions.size() : 4; i-- > 0;) { // the C API refuses more than 4
        tensor.shape[i] = dimensions[i];
        tensor.stride[i] = stride;
        stride *= dimensions[i];
    }
    if (is_bhnd && tensor.ndim == 4) {
        std::swap(tensor.shape[1], tensor.shape[2]);
        std::swap(tensor.stride[1], tensor.stride[2]);
    }
    return tensor;
}

ffi::ErrorCode code_of(annulus_status status) {
    switch (status) {
    case ANNULUS_ERROR_ARGUMENT:
        return ffi::ErrorCode::kInvalidArgument;
    case ANNULUS_ERROR_UNSUPPORTED:
        return ffi::ErrorCode::kUnimplemented;
    case ANNULUS_ERROR_MEMORY:
    case ANNULUS_ERROR_WORKSPACE:
        return ffi::ErrorCode::kResourceExhausted;
    default:
        return ffi::ErrorCode::kInternal;
    }
}

// Returns XLA's error for a status of the calling thread's last call.
ffi::Error error_of(annulus_status status) {
    return status == ANNULUS_OK ? ffi::Error::Success() : ffi::Error(code_of(status), annulus_last_error());
}

annulus_call_options options_of(const CallAttributes &attributes) {
    annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
    if (attributes.has_query_window)
        options.flags |= ANNULUS_CALL_QUERY_WINDOW;
    options.query_start = attributes.query_start;
    if (attributes.sequence_lengths.size() > 0) {
        options.sequence_lengths = attributes.sequence_lengths.begin();
        options.sequence_count = static_cast<std::int64_t>(attributes.sequence_lengths.size());
    }
    if (attributes.sequence_starts.size() > 0) {
        options.sequence_starts = attributes.sequence_starts.begin();
        options.sequence_count = static_cast<std::int64_t>(attributes.sequence_starts.size()) - 1;
    }
    return options;
}

// Runs call(context, options) on a context with the attributes' config, XLA's stream and the workspace.
template <class Call>
ffi::Error run(const Place &place, const CallAttributes &attributes, Written workspace, const Call &call) {
    const ContextUse use(ContextKey{place.device, place.index,
                                    std::vector<std::int64_t>(attributes.config.begin(), attributes.config.end()),
                                    attributes.scale});
    annulus_status status = use.status();
    if (status == ANNULUS_OK)
        status = annulus_context_set_stream(use.get(), place.stream);
    if (status == ANNULUS_OK)
        status = annulus_context_set_threads(use.get(), attributes.threads);
    if (const std::size_t bytes = workspace->element_count(); status == ANNULUS_OK && bytes > 0)
        status = annulus_context_set_workspace(use.get(), workspace->untyped_data(), bytes);
    if (status != ANNULUS_OK)
        return error_of(status);
    const annulus_call_options options = options_of(attributes);
    return error_of(call(use.get(), &options));
}

template <class OnDevice>
ffi::Error forward(OnDevice place, CallAttributes attributes, Array q, Array k, Array v, Written out, Written lse,
                   Written workspace) {
    const auto rows = [&](const Array &array) { return tensor_of(array, attributes.is_bhnd); };
    const annulus_tensor q_rows = rows(q), k_rows = rows(k), v_rows = rows(v), out_rows = rows(*out);
    const annulus_tensor lse_statistic = tensor_of(*lse, false);
    return run(place, attributes, workspace, [&](annulus_context *context, const annulus_call_options *options) {
        return annulus_forward(context, &q_rows, &k_rows, &v_rows, &out_rows, &lse_statistic, options);
    });
}

template <class OnDevice>
ffi::Error backward(OnDevice place, CallAttributes attributes, Array q, Array k, Array v, Array out, Array lse,
                    Array d_out, Array d_lse, Written d_q, Written d_k, Written d_v, Written workspace) {
    const auto rows = [&](const Array &array) { return tensor_of(array, attributes.is_bhnd); };
    const annulus_tensor q_rows = rows(q), k_rows = rows(k), v_rows = rows(v), out_rows = rows(out);
    const annulus_tensor d_out_rows = rows(d_out), d_q_rows = rows(*d_q), d_k_rows = rows(*d_k), d_v_rows = rows(*d_v);
    const annulus_tensor lse_statistic = tensor_of(lse, false), d_lse_statistic = tensor_of(d_lse, false);
    return run(place, attributes, workspace, [&](annulus_context *context, const annulus_call_options *options) {
        return annulus_backward(context, &q_rows, &k_rows, &v_rows, &out_rows, &lse_statistic, &d_out_rows,
                                &d_lse_statistic, &d_q_rows, &d_k_rows, &d_v_rows, options);
    });
}

template <class OnDevice>
ffi::Error mass(OnDevice place, CallAttributes attributes, Array q, Array k, Array lse, Written mass,
                Written workspace) {
    const annulus_tensor q_rows = tensor_of(q, attributes.is_bhnd), k_rows = tensor_of(k, attributes.is_bhnd);
    const annulus_tensor lse_statistic = tensor_of(lse, false), mass_statistic = tensor_of(*mass, false);
    return run(place, attributes, workspace, [&](annulus_context *context, const annulus_call_options *options) {
        return annulus_attention_mass(context, &q_rows, &k_rows, &lse_statistic, &mass_statistic, options);
    });
}

// parts: all outs, and then all lses.
template <class OnDevice> ffi::Error merge(OnDevice place, ffi::RemainingArgs parts, Written out, Written lse) {
    std::vector<annulus_tensor> tensors;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const ffi::ErrorOr<Array> part = parts.get<Array>(i);
        if (part.has_error())
            return part.error();
        tensors.push_back(tensor_of(*part, false));
    }
    const std::size_t count = tensors.size() / 2;
    const annulus_tensor out_rows = tensor_of(*out, false), lse_statistic = tensor_of(*lse, false);
    const ContextUse use(ContextKey{place.device, place.index, {}, 0});
    annulus_status status = use.status();
    if (status == ANNULUS_OK)
        status = annulus_context_set_stream(use.get(), place.stream);
    if (status == ANNULUS_OK)
        status = annulus_merge(use.get(), static_cast<std::int32_t>(count), tensors.data(), tensors.data() + count,
                               &out_rows, &lse_statistic, nullptr);
    return error_of(status);
}

template <class OnDevice> auto merge_binding() {
    return ffi::Ffi::Bind().Ctx<OnDevice>().RemainingArgs().template Ret<Array>().template Ret<Array>();
}

} // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(annulus_cpu_forward, forward<OnCpu>);
XLA_FFI_DEFINE_HANDLER_SYMBOL(annulus_cpu_backward, backward<OnCpu>);
XLA_FFI_DEFINE_HANDLER_SYMBOL(annulus_cpu_mass, mass<OnCpu>);
XLA_FFI_DEFINE_HANDLER_SYMBOL(annulus_cpu_merge, merge<OnCpu>, merge_binding<OnCpu>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(annulus_cuda_forward, forward<OnCuda>);
XLA_FFI_DEFINE_HANDLER_SYMBOL(annulus_cuda_backward, backward<OnCuda>);
XLA_FFI_DEFINE_HANDLER_SYMBOL(annulus_cuda_mass, mass<OnCuda>);
XLA_FFI_DEFINE_HANDLER_SYMBOL(annulus_cuda_merge, merge<OnCuda>, merge_binding<OnCuda>());
