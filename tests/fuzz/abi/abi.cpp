// SPDX-License-Identifier: Apache-2.0
// Fuzzes the C ABI. The input chooses legal and illegal calls on one config, one context and the ends of one
// communicator, as far as one thread can make them. Calls compute on tiny tensors; estimates have any size. The memory
// that a caller claims to have must exist. If a tensor's memory would be too large, the call gets no workspace and must
// fail.
#include "fuzz/abi/calls.hpp"
#include "fuzz/abi/estimates.hpp"
#include "fuzz/abi/handles.hpp"

#include <cstddef>
#include <cstdint>

using namespace annulus::fuzz;

namespace {

constexpr int max_calls = 16; // for one input

// Makes communicators over MPI and NCCL, which must fail: this build has neither MPI nor CUDA.
void make_other_comm(Input &input) {
    annulus_comm *comm = nullptr;
    annulus_nccl_id id{};
    void *anything = &comm;
    annulus_status status = ANNULUS_OK;
    Sized<annulus_comm_options> sized(input, ANNULUS_COMM_OPTIONS_INIT);
    const annulus_comm_options *const options = input.once_in(2) ? sized.get() : nullptr;
    switch (input.below(5)) {
    case 0:
        status = annulus_comm_create_from_mpi(&comm, input.once_in(2) ? &anything : nullptr, options);
        break;
    case 1:
        status = annulus_nccl_id_generate(input.once_in(2) ? &id : nullptr);
        break;
    case 2:
        status = annulus_comm_create_nccl(&comm, &id, input.number32(1, 2), input.number32(0, 1), input.number32(0, 0),
                                          options);
        break;
    case 3:
        status = annulus_comm_create_nccl_devices(&comm, input.number32(1, 1), nullptr, options);
        break;
    case 4:
        status = annulus_comm_create_from_nccl(&comm, input.once_in(2) ? &anything : nullptr, options);
        break;
    }
    EXPECT(!succeeded(status) && !comm, "a communicator of a library that is not there");
}

void expect_names(Input &input) {
    const auto number = static_cast<std::int32_t>(input.any_number());
    EXPECT(*annulus_status_name(static_cast<annulus_status>(number)), "no name");
    EXPECT(*annulus_dtype_name(static_cast<annulus_dtype>(number)), "no name");
    EXPECT(*annulus_engine_name(static_cast<annulus_engine>(number)), "no name");
    const int bits = annulus_dtype_bits(static_cast<annulus_dtype>(number));
    EXPECT((bits > 0) == (number >= ANNULUS_FLOAT64 && number <= ANNULUS_FLOAT16), "%d bits of %d", bits, number);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    Input input(data, size);
    Handles handles(input);
    for (int i = 0; i < max_calls && !input.is_empty(); ++i)
        switch (input.below(16)) {
        case 0:
        case 1:
        case 2:
            handles.change_config();
            break;
        case 3:
        case 4:
            handles.change_context();
            break;
        case 5:
            handles.change_comm();
            break;
        case 6:
        case 7:
        case 8:
            call_pass(input, handles, ANNULUS_PASS_FORWARD);
            break;
        case 9:
            call_pass(input, handles, ANNULUS_PASS_BACKWARD);
            break;
        case 10:
            call_pass(input, handles, ANNULUS_PASS_MASS);
            break;
        case 11:
            call_merge(input, handles);
            break;
        case 12:
            ask_estimate(input, handles);
            break;
        case 13:
            ask_workspace(input, handles);
            break;
        case 14:
            ask_rank(input, handles);
            break;
        case 15:
            if (input.once_in(2))
                ask_curve(input);
            else if (input.once_in(4))
                ask_balance(input, handles);
            else if (input.once_in(8))
                make_other_comm(input);
            else
                expect_names(input);
            break;
        }
    handles.expect_service();
    return 0;
}
