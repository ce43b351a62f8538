// SPDX-License-Identifier: Apache-2.0
// Fuzzes messages from other ranks. They are the cards by which ranks agree on a call, rows of K, V and gradients, and
// cards by which ranks on one host share memory. This process is one rank. The input makes up the messages of the other
// ranks, mostly from what this rank itself sends. Rows have no headers: the length of a message follows from the
// agreement, and a transport refuses another length.
#include "fuzz/input.hpp"

#include "call/comm.hpp"
#include "core/error.hpp"
#include "transport/board.hpp"
#include "transport/transport.hpp"

#include <annulus/annulus.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

using namespace annulus;
using namespace annulus::fuzz;

namespace {

constexpr std::int64_t dim = 8, heads = 2, queries_dim = heads * dim;

// Replaces some of the bytes.
void forge(Input &input, std::byte *bytes, std::size_t count) {
    for (int changes = input.below(4); changes > 0; --changes) {
        const int width = input.once_in(2) ? 8 : 4;
        const int words = static_cast<int>(count) / width;
        // The first words of a card are compared and used; hashes and a text follow.
        const int word = input.once_in(4) ? input.below(words) : input.below(std::min(words, 24));
        const std::int64_t number = input.once_in(2) ? input.below(16) : input.any_number();
        std::memcpy(bytes + word * width, &number, static_cast<std::size_t>(width));
    }
    if (input.once_in(8)) {
        const std::vector<std::uint8_t> given = input.bytes().ConsumeBytes<std::uint8_t>(count);
        std::copy(given.begin(), given.end(), reinterpret_cast<std::uint8_t *>(bytes));
    }
}

class ForgedTransport : public Transport {
  public:
    ForgedTransport(Input &input, int size, int rank) : input_(input), size_(size), rank_(rank) {}

    int size() const override { return size_; }
    int rank() const override { return rank_; }
    void check_device(annulus_device, int) const override {}
    void set_timeout(Seconds) override {}
    bool can_gather(Device &, void *) const override { return true; }

    void all_gather(const void *mine, void *all, std::size_t bytes) override {
        for (int rank = 0; rank < size_; ++rank) {
            auto *const card = static_cast<std::byte *>(all) + static_cast<std::size_t>(rank) * bytes;
            std::memcpy(card, mine, bytes);
            if (rank != rank_)
                forge(input_, card, bytes);
        }
    }

    void begin(const Batch &batch, Device &, void *) override {
        for (const Transfer &transfer : batch.sends)
            check(transfer);
        for (const Transfer &transfer : batch.receives) {
            check(transfer);
            auto *const data = static_cast<std::uint8_t *>(transfer.data);
            const std::vector<std::uint8_t> given = input_.bytes().ConsumeBytes<std::uint8_t>(32);
            for (std::size_t i = 0; i < transfer.bytes; ++i)
                data[i] = given.empty() ? 0 : given[i % given.size()];
        }
    }
    void finish(const Batch &, Device &, void *) override {
        if (input_.is_wild() && !failure_)
            failure_.emplace(ANNULUS_ERROR_COMM, "a rank is lost");
        if (failure_)
            throw *failure_;
    }
    void abort() noexcept override { failure_.emplace(ANNULUS_ERROR_COMM, "aborted"); }
    std::optional<Error> failure() const override { return failure_; }
    bool is_whole() const { return !failure_; }

  private:
    void check(const Transfer &transfer) const {
        EXPECT(transfer.peer >= 0 && transfer.peer < size_ && transfer.peer != rank_, "rank %d", transfer.peer);
        EXPECT(transfer.bytes > 0, "an empty message");
        volatile std::uint8_t last = static_cast<const std::uint8_t *>(transfer.data)[transfer.bytes - 1];
        (void)last;
    }

    Input &input_;
    const int size_, rank_;
    std::optional<Error> failure_;
};

struct Rows {
    std::vector<float> numbers;
    annulus_tensor tensor;
    Rows(std::int64_t rows, std::int64_t ndim, float value)
        : numbers(static_cast<std::size_t>(rows * (ndim == 4 ? queries_dim : heads)), value) {
        if (ndim == 4)
            tensor = {numbers.data(), ANNULUS_FLOAT32, 4, {1, rows, heads, dim}, {0, queries_dim, dim, 1}};
        else
            tensor = {numbers.data(), ANNULUS_FLOAT32, 3, {1, heads, rows}, {0, rows, 1}};
    }
    bool is(float value) const {
        return std::ranges::all_of(numbers, [value](float number) { return number == value; });
    }
};

// Returns true if the status is success. Otherwise the message must be one line of printable text.
bool succeeded(annulus_status status) {
    const std::string_view message = annulus_last_error();
    if (status == ANNULUS_OK)
        return true;
    EXPECT(status == ANNULUS_ERROR_ARGUMENT || status == ANNULUS_ERROR_DECLINED || status == ANNULUS_ERROR_MEMORY ||
               status == ANNULUS_ERROR_UNSUPPORTED || status == ANNULUS_ERROR_COMM || status == ANNULUS_ERROR_WORKSPACE,
           "status %d: %s", static_cast<int>(status), message.data());
    EXPECT(!message.empty() && std::ranges::all_of(message, [](unsigned char c) { return c >= ' ' && c < 127; }),
           "'%s'", message.data());
    return false;
}

void *allocate(void *, std::size_t bytes, std::size_t alignment, void *) {
    return bytes > std::size_t{1} << 22 ? nullptr : std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
}
void release(void *, void *memory, std::size_t, std::size_t, void *) {
    std::free(memory);
}

annulus_context *make_context(Input &input, annulus_comm &comm) {
    annulus_config *config = nullptr;
    annulus_context *context = nullptr;
    annulus_branch near = ANNULUS_BRANCH_INIT(1 + input.below(16), 1 + input.below(2));
    annulus_branch far = ANNULUS_BRANCH_INIT(input.below(2) * 32, 1 + input.below(4));
    near.query_rule = static_cast<annulus_query_rule>(input.below(3));
    // `far` has a curve only if it has segments. Along the curve of a whole sequence, calls would take longer the more
    // rows the other ranks claim.
    if (far.segment_length > 0)
        far.order = static_cast<annulus_order>(input.below(2));
    const annulus_allocator allocator{sizeof allocator, &allocate, &release, nullptr};
    const bool good =
        annulus_config_create(&config) == ANNULUS_OK &&
        annulus_config_add_branch(config, &near, nullptr) == ANNULUS_OK &&
        annulus_config_add_branch(config, &far, nullptr) == ANNULUS_OK &&
        annulus_config_set_causal(config, input.below(2)) == ANNULUS_OK &&
        annulus_config_set_exchange(config, static_cast<annulus_exchange>(input.below(3))) == ANNULUS_OK &&
        annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0) == ANNULUS_OK &&
        annulus_context_set_threads(context, 1) == ANNULUS_OK &&
        annulus_context_set_allocator(context, &allocator) == ANNULUS_OK &&
        annulus_context_set_config(context, config) == ANNULUS_OK &&
        annulus_context_set_comm(context, &comm) == ANNULUS_OK;
    EXPECT(good, "%s", annulus_last_error());
    annulus_config_destroy(config);
    return context;
}

void call(Input &input, annulus_context *context) {
    const std::int64_t n = input.below(12);
    constexpr float untouched = 7;
    const Rows q(n, 4, 0.5F), k(n, 4, 0.25F), v(n, 4, 1), out(n, 4, untouched), lse(n, 3, untouched);
    if (input.once_in(2)) {
        if (!succeeded(annulus_forward(context, &q.tensor, &k.tensor, &v.tensor, &out.tensor, &lse.tensor, nullptr)))
            EXPECT(out.is(untouched) && lse.is(untouched), "results were written");
        return;
    }
    const Rows d_q(n, 4, untouched), d_k(n, 4, untouched), d_v(n, 4, untouched);
    if (!succeeded(annulus_backward(context, &q.tensor, &k.tensor, &v.tensor, &v.tensor, &lse.tensor, &k.tensor,
                                    nullptr, &d_q.tensor, &d_k.tensor, &d_v.tensor, nullptr)))
        EXPECT(d_q.is(untouched) && d_k.is(untouched) && d_v.is(untouched), "gradients were written");
}

void call_with_others(Input &input) {
    const int size = 2 + input.below(3);
    auto transport = std::make_unique<ForgedTransport>(input, size, input.below(size));
    ForgedTransport &forged = *transport;
    annulus_comm comm{std::move(transport)};
    annulus_context *const context = make_context(input, comm);
    for (int calls = 1 + input.below(3); calls > 0 && forged.is_whole(); --calls)
        call(input, context);
    annulus_context_destroy(context);
}

// Shares memory as rank 1. Rank 0 says where its memory is.
void share_memory(Input &input) {
    const std::size_t common_bytes = static_cast<std::size_t>(input.below(3)) * 64;
    const int offered = memfd_create("offered", MFD_CLOEXEC);
    const std::size_t bytes = static_cast<std::size_t>(input.below(4)) * 8256 + common_bytes;
    EXPECT(offered >= 0 && ftruncate(offered, static_cast<off_t>(bytes)) == 0, "no file");
    int gathers = 0;
    const auto gather = [&](const void *mine, void *all, std::size_t size) {
        auto *const cards = static_cast<std::byte *>(all);
        std::memcpy(cards, mine, size);
        std::memcpy(cards + size, mine, size);
        if (gathers++ > 0)
            return;
        // The card holds a process and a descriptor in it, then a token. It never names another process, which is not
        // ours to open.
        const std::int32_t card[] = {input.once_in(4) ? -1 : getpid(), input.once_in(4) ? -1 : offered};
        std::memcpy(cards, card, sizeof card);
        if (input.once_in(2))
            std::memset(cards + sizeof card, 0, size - sizeof card);
    };
    const std::unique_ptr<Board> board = Board::make(1, 2, common_bytes, gather);
    if (board)
        EXPECT(!board->has_failed(0), "rank 0 has failed");
    close(offered);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    Input input(data, size);
    if (input.below(16) == 15)
        share_memory(input);
    else
        call_with_others(input);
    return 0;
}
