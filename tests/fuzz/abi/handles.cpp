// SPDX-License-Identifier: Apache-2.0
#include "fuzz/abi/handles.hpp"

#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>

namespace annulus::fuzz {

bool succeeded(annulus_status status) {
    if (status == ANNULUS_OK)
        return true;
    const std::string_view message = annulus_last_error();
    EXPECT(annulus_knows(ANNULUS_FEATURE_STATUS, status), "status %d", static_cast<int>(status));
    EXPECT(status != ANNULUS_ERROR_INTERNAL, "%s", message.data());
    EXPECT(!message.empty() && message.size() < 512, "status %d: '%s'", static_cast<int>(status), message.data());
    EXPECT(std::ranges::all_of(message, [](unsigned char c) { return c >= ' ' && c < 127; }), "%s", message.data());
    EXPECT((annulus_last_error_bytes() > 0) == (status == ANNULUS_ERROR_WORKSPACE), "%s", message.data());
    return false;
}

void *Memory::allocate(void *user, std::size_t bytes, std::size_t alignment, void *) {
    Memory &memory = *static_cast<Memory *>(user);
    if (memory.allocations_left == 0 || bytes > std::size_t{1} << 26)
        return nullptr;
    --memory.allocations_left;
    ++memory.held;
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void Memory::release(void *user, void *memory, std::size_t, std::size_t, void *) {
    --static_cast<Memory *>(user)->held;
    std::free(memory);
}

namespace {

constexpr std::int32_t max_branches = 32; // the most in a config that computes here

annulus_branch plain_branch(std::int64_t segment_length, std::int64_t dilation) {
    return ANNULUS_BRANCH_INIT(segment_length, dilation);
}

annulus_branch branch_of(Input &input) {
    annulus_branch branch = plain_branch(input.number(0, 24), input.number(1, 6));
    if (input.once_in(2)) {
        branch.phase_rule = input.choice(ANNULUS_PHASE_BLOCK, ANNULUS_PHASE_FIXED);
        branch.query_rule = input.choice(ANNULUS_QUERY_DILATED, ANNULUS_QUERY_EVERY);
        branch.order = input.choice(ANNULUS_ORDER_LINEAR, ANNULUS_ORDER_HILBERT);
        if (branch.phase_rule == ANNULUS_PHASE_FIXED || input.is_wild())
            branch.residue = input.number(0, 8);
        if (branch.order == ANNULUS_ORDER_HILBERT || input.is_wild())
            branch.grid_width = input.number(0, 4);
        branch.first_head = input.number32(0, 2);
        branch.head_count = input.number32(0, 2);
    }
    if (input.once_in(4)) {
        branch = ANNULUS_BRANCH_WINDOW_INIT(input.number(-1, 9), input.number(-1, 9), input.number(1, 6));
        branch.query_rule = input.choice(ANNULUS_QUERY_DILATED, ANNULUS_QUERY_EVERY);
    } else if (input.once_in(4)) {
        branch = ANNULUS_BRANCH_GLOBAL_INIT(input.number(0, 24), input.number(1, 6));
        branch.global_queries = input.number32(0, 1);
    }
    if (input.is_wild())
        branch.kind = static_cast<annulus_branch_kind>(input.number32(-1, 3));
    return branch;
}

std::int32_t branch_count(const annulus_config *config) {
    std::int32_t count = -1;
    EXPECT(annulus_config_branch_count(config, &count) == ANNULUS_OK && count >= 0, "%s", annulus_last_error());
    return count;
}

// Everything that a config tells of itself.
struct ConfigState {
    std::int32_t branches = 0;
    annulus_branch last{};
    annulus_padding_rule padding{};
    annulus_key_rule keys{};
    annulus_engine engine{};
    annulus_exchange exchange{};
    int causal = 0, tf32 = 0;
    double scale = 0;
    std::uint64_t limit = 0;

    explicit ConfigState(const annulus_config *config) : branches(branch_count(config)) {
        last.size = sizeof last;
        const bool good = (branches == 0 || annulus_config_get_branch(config, branches - 1, &last) == ANNULUS_OK) &&
                          annulus_config_get_padding_rule(config, &padding) == ANNULUS_OK &&
                          annulus_config_get_key_rule(config, &keys) == ANNULUS_OK &&
                          annulus_config_get_engine(config, &engine) == ANNULUS_OK &&
                          annulus_config_get_exchange(config, &exchange) == ANNULUS_OK &&
                          annulus_config_get_causal(config, &causal) == ANNULUS_OK &&
                          annulus_config_get_allow_tf32(config, &tf32) == ANNULUS_OK &&
                          annulus_config_get_scale(config, &scale) == ANNULUS_OK &&
                          annulus_config_get_workspace_limit(config, &limit) == ANNULUS_OK;
        EXPECT(good, "%s", annulus_last_error());
        if (std::isnan(scale))
            scale = -1e-300; // a value that no config has
    }
    bool operator==(const ConfigState &other) const {
        // Without the padding between `order` and `left`.
        constexpr std::size_t bytes = offsetof(annulus_branch, order) + sizeof last.order;
        const auto are_equal_from = [&](std::size_t begin, std::size_t end) {
            return std::memcmp(reinterpret_cast<const char *>(&last) + begin,
                               reinterpret_cast<const char *>(&other.last) + begin, end - begin) == 0;
        };
        return branches == other.branches && are_equal_from(0, bytes) &&
               are_equal_from(offsetof(annulus_branch, left), sizeof last) && padding == other.padding &&
               keys == other.keys && engine == other.engine && exchange == other.exchange && causal == other.causal &&
               tf32 == other.tf32 && scale == other.scale && limit == other.limit;
    }
};

annulus_config *new_config() {
    annulus_config *config = nullptr;
    EXPECT(annulus_config_create(&config) == ANNULUS_OK, "%s", annulus_last_error());
    return config;
}

annulus_context *new_context() {
    annulus_context *context = nullptr;
    EXPECT(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0) == ANNULUS_OK, "%s", annulus_last_error());
    EXPECT(annulus_context_set_threads(context, 1) == ANNULUS_OK, "%s", annulus_last_error());
    return context;
}

} // namespace

Handles::Handles(Input &input) : input_(input), config_(new_config()), context_(new_context()) {
    const annulus_branch near = plain_branch(8, 1), far = plain_branch(0, 2);
    EXPECT(annulus_config_add_branch(config_, &near, nullptr) == ANNULUS_OK, "%s", annulus_last_error());
    EXPECT(annulus_config_add_branch(config_, &far, nullptr) == ANNULUS_OK, "%s", annulus_last_error());
    EXPECT(annulus_context_set_config(context_, config_) == ANNULUS_OK, "%s", annulus_last_error());
}

Handles::~Handles() {
    annulus_context_destroy(context_);
    annulus_config_destroy(config_);
    for (annulus_comm *comm : comms_)
        annulus_comm_destroy(comm);
    EXPECT(memory_.held == 0, "%d allocations were not given back", memory_.held);
}

void Handles::change_config() {
    const ConfigState before(config_);
    annulus_config *const config = input_.is_wild() ? nullptr : config_;
    annulus_status status = ANNULUS_OK;
    switch (input_.below(16)) {
    case 0: {
        Sized<annulus_branch> branch(input_, branch_of(input_));
        std::int32_t index = -7;
        status = annulus_config_add_branch(config, branch.get(), input_.once_in(4) ? nullptr : &index);
        EXPECT(status == ANNULUS_OK || index == -7, "index was written");
        break;
    }
    case 1: {
        Sized<annulus_branch> branch(input_, branch_of(input_));
        status = annulus_config_set_branch(config, input_.number32(0, before.branches), branch.get());
        break;
    }
    case 2: {
        Sized<annulus_branch> branch(input_, plain_branch(1, 1));
        status = annulus_config_get_branch(config, input_.number32(0, before.branches), branch.get());
        EXPECT(status == ANNULUS_OK || branch.is_untouched(), "branch was written");
        break;
    }
    case 3:
        status =
            annulus_config_set_padding_rule(config, input_.choice(ANNULUS_PADDING_EXACT, ANNULUS_PADDING_ZERO_KEYS));
        break;
    case 4:
        status = annulus_config_set_key_rule(config, input_.choice(ANNULUS_KEY_EACH_BRANCH, ANNULUS_KEY_ONCE));
        break;
    case 5:
        status = annulus_config_set_causal(config, input_.number32(0, 1));
        break;
    case 6:
        status = annulus_config_set_scale(config, input_.real());
        break;
    case 7:
        status = annulus_config_unset_scale(config);
        break;
    case 8:
        status = annulus_config_set_engine(config, input_.choice(ANNULUS_ENGINE_AUTO, ANNULUS_ENGINE_CPU));
        break;
    case 9:
        status = annulus_config_set_allow_tf32(config, input_.number32(0, 1));
        break;
    case 10:
        status = annulus_config_set_workspace_limit(config, static_cast<std::uint64_t>(input_.number(0, 1 << 16)));
        break;
    case 11:
        status = annulus_config_set_exchange(config, input_.choice(ANNULUS_EXCHANGE_AUTO, ANNULUS_EXCHANGE_GATHER));
        break;
    case 12:
        status = annulus_config_add_longnet(config, input_.number(1, 16), input_.number(1, 4), input_.number(1, 3),
                                            input_.number32(1, 3));
        break;
    case 13: {
        const std::int32_t heads = input_.number32(1, 8), count = input_.number32(1, 3);
        const auto held = static_cast<std::size_t>(std::clamp(count, 0, 65536));
        std::vector<std::int64_t> segment_lengths(held, input_.number(0, 16)), dilations(held, input_.number(1, 4));
        status =
            annulus_config_add_head_groups(config, heads, count, input_.is_wild() ? nullptr : segment_lengths.data(),
                                           input_.is_wild() ? nullptr : dilations.data());
        break;
    }
    case 14: {
        if (input_.once_in(2)) {
            status = annulus_config_add_preset(config, input_.is_wild()    ? nullptr
                                                       : input_.once_in(4) ? ""
                                                                           : "gigapath");
            break;
        }
        annulus_config *made = nullptr;
        status = annulus_config_copy(&made, config);
        if (succeeded(status))
            std::swap(made, config_);
        annulus_config_destroy(made);
        if (status == ANNULUS_OK)
            return;
        break;
    }
    case 15:
        annulus_config_destroy(std::exchange(config_, new_config()));
        return;
    }
    if (!succeeded(status))
        EXPECT(ConfigState(config_) == before, "the failed call changed the config");
    if (branch_count(config_) > max_branches)
        annulus_config_destroy(std::exchange(config_, new_config()));
}

void Handles::change_context() {
    annulus_context *const context = input_.is_wild() ? nullptr : context_;
    switch (input_.below(10)) {
    case 0:
    case 1:
        succeeded(annulus_context_set_config(context, input_.is_wild() ? nullptr : config_));
        break;
    case 2: {
        annulus_config *copy = nullptr;
        if (succeeded(annulus_context_copy_config(&copy, context)))
            annulus_config_destroy(std::exchange(config_, copy));
        break;
    }
    case 3: {
        memory_.allocations_left = input_.below(3) * 100;
        Sized<annulus_allocator> allocator(input_,
                                           {sizeof(annulus_allocator), input_.is_wild() ? nullptr : &Memory::allocate,
                                            input_.is_wild() ? nullptr : &Memory::release, &memory_});
        succeeded(annulus_context_set_allocator(context, input_.once_in(3) ? nullptr : allocator.get()));
        break;
    }
    case 4: {
        const auto bytes = static_cast<std::size_t>(input_.once_in(2) ? 0 : input_.below(1 << 16));
        lend_workspace(nullptr, 0);
        workspace_ = std::vector<std::byte>(bytes);
        succeeded(annulus_context_set_workspace(context, bytes ? workspace_.data() : nullptr, bytes));
        // A wrong size is the caller's error, unless no buffer can have it.
        EXPECT(!succeeded(annulus_context_set_workspace(context, nullptr, 1 + bytes)), "bytes of no memory");
        EXPECT(!succeeded(annulus_context_set_workspace(context, &memory_, SIZE_MAX)), "more than all memory");
        break;
    }
    case 5:
        if (const std::int32_t threads = input_.number32(1, 2);
            succeeded(annulus_context_set_threads(context, threads)))
            EXPECT(threads >= 0 && threads <= 1024, "%d threads", threads);
        break;
    case 6: {
        annulus_engine engine{};
        EXPECT(succeeded(annulus_context_last_engine(context, &engine)) == (context != nullptr), "last engine");
        Sized<annulus_traffic> traffic(input_, ANNULUS_TRAFFIC_INIT);
        if (!succeeded(annulus_context_last_traffic(context, traffic.get())))
            EXPECT(traffic.is_untouched(), "traffic was written");
        break;
    }
    case 7:
        succeeded(annulus_context_set_stream(context, input_.is_wild() ? &memory_ : nullptr));
        break;
    case 8: {
        annulus_context *made = nullptr;
        const annulus_device device = input_.choice(ANNULUS_DEVICE_CPU, ANNULUS_DEVICE_CPU);
        if (succeeded(annulus_context_create(&made, device, input_.number32(0, 0)))) {
            annulus_context_destroy(std::exchange(context_, made));
            context_ranks_ = 0;
            succeeded(annulus_context_set_threads(context_, 1));
            succeeded(annulus_context_set_config(context_, config_));
        } else {
            EXPECT(!made, "a context of a call that failed");
        }
        break;
    }
    case 9: {
        std::int32_t count = -7;
        if (!succeeded(annulus_device_count(input_.choice(ANNULUS_DEVICE_CPU, ANNULUS_DEVICE_CUDA), &count)))
            EXPECT(count == -7, "count was written");
        break;
    }
    }
}

void Handles::make_comm(std::int32_t ranks) {
    drop_comm();
    std::vector<annulus_comm *> made(static_cast<std::size_t>(std::clamp(ranks, 1, 4096)));
    Sized<annulus_comm_options> options(input_, {sizeof(annulus_comm_options), input_.is_wild() ? input_.real() : 0,
                                                 static_cast<std::uint64_t>(input_.number(0, 0))});
    const bool good =
        succeeded(annulus_comm_create_local(made.data(), ranks, input_.once_in(2) ? options.get() : nullptr));
    EXPECT(good == (made[0] != nullptr), "%d ranks", ranks);
    if (!good)
        return;
    comms_ = std::move(made);
    for (annulus_comm *comm : comms_) // all ranks but one do nothing, so that no rank waits long
        EXPECT(annulus_comm_set_timeout(comm, 1e-5) == ANNULUS_OK, "%s", annulus_last_error());
}

void Handles::drop_comm() {
    EXPECT(annulus_context_set_comm(context_, nullptr) == ANNULUS_OK, "%s", annulus_last_error());
    context_ranks_ = 0;
    for (annulus_comm *comm : comms_)
        annulus_comm_destroy(comm);
    comms_.clear();
}

void Handles::change_comm() {
    annulus_comm *const comm =
        comms_.empty() || input_.is_wild() ? nullptr : comms_[input_.below(static_cast<int>(comms_.size()))];
    switch (input_.below(8)) {
    case 0:
        // Many ends take long to make, so they are rare.
        make_comm(input_.once_in(200) ? input_.number32(6, 4096) : std::min(input_.number32(1, 5), 5));
        break;
    case 1:
    case 2:
        if (succeeded(annulus_context_set_comm(context_, comm)))
            context_ranks_ = comm ? static_cast<int>(comms_.size()) : 0;
        break;
    case 3: {
        std::int32_t size = -7, rank = -7;
        const bool has_size = succeeded(annulus_comm_size(comm, &size));
        const bool has_rank = succeeded(annulus_comm_rank(comm, &rank));
        EXPECT(has_size == (comm != nullptr) && has_rank == has_size, "size and rank");
        EXPECT(!comm || comms_[rank] == comm, "rank %d of %d", rank, size);
        EXPECT(comm || (size == -7 && rank == -7), "size or rank was written");
        break;
    }
    case 4: {
        auto status = static_cast<annulus_status>(-7);
        annulus_status *const written = input_.once_in(8) ? nullptr : &status;
        if (succeeded(annulus_comm_status(comm, written)))
            succeeded(status);
        else
            EXPECT(status == static_cast<annulus_status>(-7), "status was written");
        break;
    }
    case 5:
        succeeded(annulus_comm_abort(comm));
        break;
    case 6: {
        const double seconds = input_.real();
        if (succeeded(annulus_comm_set_timeout(comm, seconds))) {
            EXPECT(std::isfinite(seconds) && seconds > 0, "%g seconds", seconds);
            EXPECT(annulus_comm_set_timeout(comm, 1e-5) == ANNULUS_OK, "%s", annulus_last_error());
        }
        break;
    }
    case 7: {
        const std::int32_t count = input_.number32(context_ranks_, context_ranks_);
        const auto held = static_cast<std::size_t>(std::clamp(count, 0, 65536));
        std::vector<std::int64_t> lengths(held);
        std::vector<std::int32_t> owners(held);
        for (std::size_t i = 0; i < std::min<std::size_t>(held, 64); ++i) {
            lengths[i] = input_.number(0, 12);
            owners[i] = input_.number32(0, std::max(context_ranks_ - 1, 0));
        }
        const std::int32_t ranks = input_.once_in(2) ? 0 : input_.number32(context_ranks_, context_ranks_);
        Sized<annulus_shards> shards(input_,
                                     {sizeof(annulus_shards), ranks, count, input_.is_wild() ? nullptr : lengths.data(),
                                      input_.once_in(2) ? nullptr : owners.data()});
        succeeded(annulus_context_set_shards(context_, input_.once_in(4) ? nullptr : shards.get()));
        break;
    }
    }
}

void Handles::lend_workspace(void *workspace, std::size_t bytes) {
    EXPECT(annulus_context_set_workspace(context_, workspace, bytes) == ANNULUS_OK, "%s", annulus_last_error());
}

void Handles::refuse_memory() {
    memory_.allocations_left = 0;
    const annulus_allocator allocator{sizeof allocator, &Memory::allocate, &Memory::release, &memory_};
    EXPECT(annulus_context_set_allocator(context_, &allocator) == ANNULUS_OK, "%s", annulus_last_error());
    lend_workspace(nullptr, 0);
}

// Computes two rows. The second query attends to both keys, with probabilities 3/4 and 1/4.
void Handles::expect_service() {
    drop_comm();
    lend_workspace(nullptr, 0);
    annulus_config *const config = new_config();
    const annulus_branch branch = plain_branch(0, 1);
    EXPECT(annulus_context_set_allocator(context_, nullptr) == ANNULUS_OK &&
               annulus_config_add_branch(config, &branch, nullptr) == ANNULUS_OK &&
               annulus_config_set_causal(config, 1) == ANNULUS_OK &&
               annulus_config_set_scale(config, std::log(3.0)) == ANNULUS_OK &&
               annulus_context_set_config(context_, config) == ANNULUS_OK,
           "%s", annulus_last_error());
    annulus_config_destroy(config);
    float q[2][8] = {{1}, {1}}, k[2][8] = {{1}, {0}}, v[2][8] = {{8, 4}, {0, 4}}, out[2][8], lse[2];
    const auto rows = [](void *data) { return annulus_tensor{data, ANNULUS_FLOAT32, 4, {1, 2, 1, 8}, {16, 8, 8, 1}}; };
    const annulus_tensor tensors[] = {rows(q), rows(k), rows(v), rows(out)};
    const annulus_tensor statistic{lse, ANNULUS_FLOAT32, 3, {1, 1, 2}, {2, 2, 1}};
    EXPECT(annulus_forward(context_, &tensors[0], &tensors[1], &tensors[2], &tensors[3], &statistic, nullptr) ==
               ANNULUS_OK,
           "%s", annulus_last_error());
    const auto is_near = [](float value, double expected) { return std::abs(value - expected) < 1e-5; };
    EXPECT(is_near(out[0][0], 8) && is_near(out[1][0], 6) && is_near(out[0][1], 4) && is_near(out[1][1], 4) &&
               is_near(lse[0], std::log(3.0)) && is_near(lse[1], std::log(4.0)),
           "%g %g %g %g", out[0][0], out[1][0], lse[0], lse[1]);
}

} // namespace annulus::fuzz
