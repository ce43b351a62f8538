// SPDX-License-Identifier: Apache-2.0
#include "ranks/agreement.hpp"

#include "core/dtype_number.hpp"
#include "core/error.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace annulus {

namespace {

// Mixes one number after the other into 64 bits, in one step each: a call may have thousands of sequences and shards.
// Each step is one-to-one in the value before. It tells different values apart, but does not resist forged values.
class Hash {
  public:
    template <class T> void add(const T &value) {
        static_assert(std::is_integral_v<T> || std::is_enum_v<T> || std::is_floating_point_v<T>);
        std::uint64_t word = 0;
        std::memcpy(&word, &value, sizeof value);
        value_ = (value_ ^ word) * 0x9e3779b97f4a7c15;
        value_ ^= value_ >> 32;
    }
    std::uint64_t value() const { return value_; }

  private:
    std::uint64_t value_ = 0xcbf29ce484222325;
};

std::uint64_t hash_of(const Branch &branch) {
    Hash hash;
    hash.add(branch.segment_length);
    hash.add(branch.dilation);
    hash.add(branch.first_head);
    hash.add(branch.head_count);
    hash.add(branch.phase_rule);
    hash.add(branch.fixed_residue);
    hash.add(branch.query_rule);
    hash.add(branch.order);
    hash.add(branch.grid_width);
    hash.add(branch.kind);
    hash.add(branch.left);
    hash.add(branch.right);
    hash.add(branch.first_global);
    hash.add(branch.global_count);
    hash.add(branch.has_global_queries);
    return hash.value();
}

// A card has a hash for each of the first branches. Its last hash is of all further branches.
constexpr std::size_t branch_hash_count = 32;

// A card is what each rank sends to all ranks. It holds plain numbers, with one layout in every build.
struct Card {
    std::int32_t declines; // not 0: the rank declines, and only `message` is valid
    std::int32_t pass, dtype, heads, kv_heads, head_dim, causal, padding_rule, key_rule, exchange, branch_count,
        first_head, total_heads;
    std::int64_t batch, rows;
    std::int32_t shards_are_set;
    std::int32_t shards_are_in_order;
    std::int64_t sequence_count;
    std::uint64_t sequences; // a hash, as the following numbers
    std::uint64_t scale, shards;
    std::uint64_t branches[branch_hash_count];
    char message[256];
};

std::uint64_t hash_of(const std::vector<Sequence> &sequences) {
    Hash hash;
    for (const Sequence &sequence : sequences)
        for (const std::int64_t number : {sequence.first_batch, sequence.rows.start, sequence.rows.length})
            hash.add(number);
    return hash.value();
}

std::uint64_t hash_of(const Shards &shards) {
    Hash hash;
    for (std::size_t i = 0; i < shards.pieces.size(); ++i) {
        hash.add(shards.pieces[i].length);
        hash.add(shards.owners[i]);
    }
    return hash.value();
}

Card card_of(const Intention &intention) {
    const Pattern &pattern = intention.pattern;
    const Problem &problem = intention.problem.rows;
    Card card{};
    card.pass = intention.pass;
    card.dtype = problem.dtype;
    card.heads = problem.heads;
    card.kv_heads = problem.kv_heads;
    card.head_dim = problem.head_dim;
    card.causal = pattern.causal;
    card.padding_rule = pattern.padding_rule;
    card.key_rule = pattern.key_rule;
    card.exchange = intention.exchange;
    card.branch_count = static_cast<std::int32_t>(pattern.branches.size());
    card.first_head = pattern.head_shard.first;
    card.total_heads = pattern.head_shard.total;
    card.batch = problem.batch;
    card.rows = problem.queries.length;
    card.sequence_count = static_cast<std::int64_t>(intention.problem.sequences.size());
    card.sequences = hash_of(intention.problem.sequences);
    card.shards_are_set = intention.shards_are_set;
    card.shards_are_in_order = intention.shards.are_in_order();
    card.shards = hash_of(intention.shards);
    Hash scale;
    scale.add(pattern.scale.has_value());
    scale.add(pattern.scale.value_or(0));
    card.scale = scale.value();
    std::array<Hash, branch_hash_count> branches;
    for (std::size_t i = 0; i < pattern.branches.size(); ++i)
        branches[std::min(i, branch_hash_count - 1)].add(hash_of(pattern.branches[i]));
    for (std::size_t i = 0; i < branch_hash_count; ++i)
        card.branches[i] = branches[i].value();
    return card;
}

const char *pass_name(std::int64_t pass) {
    switch (pass) {
    case ANNULUS_PASS_FORWARD:
        return "annulus_forward()";
    case ANNULUS_PASS_BACKWARD:
        return "annulus_backward()";
    default:
        return "annulus_attention_mass()";
    }
}

// Throws if the card of a rank differs from the card of rank 0.
void compare(const Card &first, const Card &other, int rank) {
    const auto differ = [&](const char *what, std::int64_t theirs, std::int64_t ours) {
        if (theirs != ours)
            throw Error(ANNULUS_ERROR_ARGUMENT, "the ranks disagree: %s is %lld on rank %d and %lld on rank 0", what,
                        static_cast<long long>(theirs), rank, static_cast<long long>(ours));
    };
    if (other.pass != first.pass)
        throw Error(ANNULUS_ERROR_ARGUMENT, "the ranks disagree: rank %d calls %s and rank 0 %s", rank,
                    pass_name(other.pass), pass_name(first.pass));
    if (other.dtype != first.dtype)
        throw Error(ANNULUS_ERROR_ARGUMENT, "the ranks disagree: the dtype is %s on rank %d and %s on rank 0",
                    dtype_name(other.dtype), rank, dtype_name(first.dtype));
    differ("the number of query heads", other.heads, first.heads);
    differ("the number of key/value heads", other.kv_heads, first.kv_heads);
    differ("the head dimension", other.head_dim, first.head_dim);
    differ("the batch", other.batch, first.batch);
    differ("the number of sequences", other.sequence_count, first.sequence_count);
    if (other.sequences != first.sequences)
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "the ranks disagree: sequence_starts or sequence_lengths differ between ranks %d and 0", rank);
    if (other.shards_are_in_order != first.shards_are_in_order ||
        (!first.shards_are_in_order && other.shards != first.shards))
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "the ranks disagree: what annulus_context_set_shards() was told differs between ranks %d and 0",
                    rank);
    differ("the config's number of branches", other.branch_count, first.branch_count);
    differ("the first head of the config's head shard", other.first_head, first.first_head);
    differ("the total of the config's head shard", other.total_heads, first.total_heads);
    differ("causal of the config", other.causal, first.causal);
    differ("the padding rule of the config", other.padding_rule, first.padding_rule);
    differ("the key rule of the config", other.key_rule, first.key_rule);
    differ("the exchange of the config", other.exchange, first.exchange);
    if (other.scale != first.scale)
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "the ranks disagree: the scale of the config differs between ranks %d and 0", rank);
    for (std::size_t i = 0; i < branch_hash_count; ++i)
        if (other.branches[i] != first.branches[i])
            throw Error(ANNULUS_ERROR_ARGUMENT,
                        "the ranks disagree: branch %zu%s of the config differs between ranks %d and 0", i,
                        i + 1 == branch_hash_count ? " or a later one" : "", rank);
}

// Returns the message of another rank as one printable line, whatever its bytes are.
std::array<char, sizeof(Card::message) + 1> printable(const char (&message)[sizeof(Card::message)]) {
    std::array<char, sizeof message + 1> text{};
    std::transform(message, std::find(message, message + sizeof message, '\0'), text.begin(),
                   [](char c) { return c >= ' ' && c <= '~' ? c : '?'; });
    return text;
}

// Returns the cards of all ranks. Throws if a rank declines.
std::vector<Card> exchange_cards(Transport &transport, const Card &own) {
    static_assert(std::is_trivially_copyable_v<Card>);
    std::vector<Card> cards(static_cast<std::size_t>(transport.size()));
    transport.all_gather(&own, cards.data(), sizeof own);
    for (std::size_t rank = 0; rank < cards.size(); ++rank)
        if (cards[rank].declines)
            throw Error(ANNULUS_ERROR_DECLINED, "rank %zu cannot do its part: %s", rank,
                        printable(cards[rank].message).data());
    return cards;
}

} // namespace

Agreement agree(Transport &transport, const Intention &intention) {
    // Memory is allocated before the other ranks hear of this rank: a failure can then still be reported to them.
    Agreement agreement{make_shards(std::vector<std::int64_t>(static_cast<std::size_t>(transport.size()))), true};
    Shards own = intention.shards;
    const std::vector<Card> cards = exchange_cards(transport, card_of(intention));
    for (std::size_t rank = 1; rank < cards.size(); ++rank)
        compare(cards.front(), cards[rank], static_cast<int>(rank));
    if (!own.are_in_order()) { // compare() has checked that the shards are the same on all ranks
        agreement.shards = std::move(own);
        return agreement;
    }
    std::int64_t start = 0;
    for (std::size_t rank = 0; rank < cards.size(); ++rank) {
        if (cards[rank].rows < 0)
            throw Error(ANNULUS_ERROR_ARGUMENT, "rank %zu tells of %lld rows; no rank has fewer than 0", rank,
                        static_cast<long long>(cards[rank].rows));
        agreement.shards.pieces[rank] = {start, cards[rank].rows};
        if (__builtin_add_overflow(start, cards[rank].rows, &start))
            throw Error(ANNULUS_ERROR_ARGUMENT, "shape[1] of q is too large: the rows of all ranks do not fit 64 bits");
    }
    if (start == 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "shape[1] of q is 0 on all ranks; at least one must hold a row");
    const std::uint64_t found = hash_of(agreement.shards);
    for (std::size_t rank = 0; rank < cards.size(); ++rank) {
        if (cards[rank].shards == found)
            continue;
        if (cards[rank].shards_are_set)
            throw Error(
                ANNULUS_ERROR_ARGUMENT,
                "the ranks disagree on the shards: those that rank %zu set by annulus_context_set_shards() are not "
                "the rows of the ranks' tensors",
                rank);
        agreement.is_ready = false;
    }
    return agreement;
}

void confirm(Transport &transport) {
    exchange_cards(transport, {});
}

void decline(Transport &transport, const char *message) noexcept {
    Card card{};
    card.declines = 1;
    std::strncpy(card.message, message, sizeof card.message - 1);
    try {
        exchange_cards(transport, card);
    } catch (...) { // the rank reports the failure for which it declined
    }
}

} // namespace annulus
