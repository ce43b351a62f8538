// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include "branch_text.hpp"
#include "text.hpp"

#include <array>
#include <limits>
#include <sched.h>

namespace annulus::cli {

namespace {

constexpr std::string_view longnet_prefix = "longnet:";

struct LongNet {
    std::int64_t segment_length, segment_ratio, dilation_ratio;
    std::int32_t count;
};

LongNet parse_longnet(const std::string &preset) {
    std::array<std::int64_t, 4> numbers{};
    const std::vector<std::string_view> parts = split(std::string_view(preset).substr(longnet_prefix.size()), ',');
    bool legal = parts.size() == numbers.size();
    for (std::size_t i = 0; legal && i < numbers.size(); ++i) {
        const std::optional<std::int64_t> number = parse_integer(parts[i]);
        legal = number && *number >= 1;
        numbers[i] = number.value_or(0);
    }
    if (!legal || numbers[3] > std::numeric_limits<std::int32_t>::max())
        throw bad_input("--preset " + preset + ": must be longnet:W,SEGMENT_RATIO,DILATION_RATIO,COUNT, all >= 1");
    return {numbers[0], numbers[1], numbers[2], static_cast<std::int32_t>(numbers[3])};
}

void add_preset(annulus_config *config, const std::string &preset) {
    const std::string subject = "--preset " + preset;
    if (preset == "gigapath") {
        check(annulus_config_add_gigapath(config), subject);
    } else if (preset.starts_with(longnet_prefix)) {
        const LongNet p = parse_longnet(preset);
        check(annulus_config_add_longnet(config, p.segment_length, p.segment_ratio, p.dilation_ratio, p.count),
              subject);
    } else {
        throw bad_input(subject + ": must be gigapath or longnet:W,SEGMENT_RATIO,DILATION_RATIO,COUNT");
    }
}

// In a legal preset no number overflows: the config took it.
void append_labels(std::vector<std::string> &labels, const std::string &preset) {
    if (preset == "gigapath") {
        for (const char *label : {"1024:1", "5792:2", "32768:4", "185363:8", "1048576:16"})
            labels.emplace_back(label);
        return;
    }
    const LongNet p = parse_longnet(preset);
    std::int64_t segment_length = p.segment_length, dilation = 1;
    for (std::int32_t i = 0; i < p.count; ++i) {
        labels.push_back(std::to_string(segment_length) + ":" + std::to_string(dilation));
        if (i + 1 < p.count) {
            segment_length *= p.segment_ratio;
            dilation *= p.dilation_ratio;
        }
    }
}

void add_head_groups(annulus_config *config, std::int32_t heads, const std::vector<BranchText> &branches) {
    std::vector<std::int64_t> segment_lengths, dilations;
    for (const BranchText &branch : branches) {
        if (branch.heads || branch.phase)
            throw bad_input("--branch " + branch.text + ": --head-groups gives each branch its heads and phase");
        segment_lengths.push_back(branch.segment_length);
        dilations.push_back(branch.dilation);
    }
    check(annulus_config_add_head_groups(config, heads, static_cast<std::int32_t>(branches.size()),
                                         segment_lengths.data(), dilations.data()),
          "--head-groups");
}

std::vector<std::string> engine_names() {
    std::vector<std::string> names;
    while (const char *name = annulus_engine_name(static_cast<annulus_engine>(names.size())))
        names.emplace_back(name);
    return names;
}

constexpr annulus_exchange exchanges[] = {ANNULUS_EXCHANGE_AUTO, ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER};

std::vector<std::string> exchange_names() {
    std::vector<std::string> names;
    for (const annulus_exchange exchange : exchanges)
        names.push_back(exchange_name(exchange));
    return names;
}

DeviceChoice parse_device(const std::string &text) {
    constexpr std::string_view cuda = "cuda:";
    if (text == "cpu")
        return {ANNULUS_DEVICE_CPU, 0};
    if (text == "cuda")
        return {ANNULUS_DEVICE_CUDA, 0};
    if (text.starts_with(cuda)) {
        const std::optional<std::int64_t> index = parse_integer(std::string_view(text).substr(cuda.size()));
        if (index && *index >= 0 && *index <= std::numeric_limits<std::int32_t>::max())
            return {ANNULUS_DEVICE_CUDA, static_cast<std::int32_t>(*index)};
    }
    throw bad_input("--device " + text + ": must be cpu, cuda, or cuda:I with a device's number I, counted from 0");
}

std::uint64_t parse_bytes(const std::string &text) {
    constexpr std::string_view units = "KMGT"; // powers of 1024
    std::string_view digits = text;
    std::size_t shift = 0;
    if (const std::size_t unit = digits.empty() ? units.npos : units.find(digits.back()); unit != units.npos) {
        digits.remove_suffix(1);
        shift = 10 * (unit + 1);
    }
    const std::optional<std::int64_t> number = parse_integer(digits);
    if (!number || *number < 0 || *number > std::numeric_limits<std::int64_t>::max() >> shift)
        throw bad_input("--workspace-limit " + text + ": must be a number of bytes, or one of K, M, G or T after it");
    return static_cast<std::uint64_t>(*number) << shift;
}

constexpr annulus_dtype dtypes[] = {ANNULUS_FLOAT64, ANNULUS_FLOAT32, ANNULUS_BFLOAT16, ANNULUS_FLOAT16};

} // namespace

void PatternOptions::add_to(CLI::App &command) {
    const std::string group = "Pattern";
    command
        .add_option(
            "--branch", branches,
            std::string("A branch: segments of W positions (0: the whole sequence), every R-th kept. Repeatable. ") +
                branch_syntax)
        ->type_name("W:R[,...]")
        ->allow_extra_args(false)
        ->group(group);
    command
        .add_option("--preset", presets,
                    "Branches of a known model, before those of --branch: gigapath, or LongNet's series "
                    "longnet:W,SEGMENT_RATIO,DILATION_RATIO,COUNT")
        ->type_name("NAME")
        ->allow_extra_args(false)
        ->group(group);
    command.add_flag("--head-groups", head_groups, "Share the heads out among the branches of --branch")->group(group);
    command.add_flag("--causal", causal, "Attend only to positions up to the query's own")->group(group);
    command
        .add_option("--padding", padding,
                    "Keys in the slots that short segments leave empty: none (exact), or keys of score 0 as LongNet's "
                    "published code has (zero-keys)")
        ->check(CLI::IsMember({"exact", "zero-keys"}))
        ->type_name("RULE")
        ->group(group);
    add_number<double>(command, "--scale", scale, "Factor on Q.K, 1/sqrt(D) unless given")
        ->type_name("X")
        ->group(group);
}

Config PatternOptions::config(std::int32_t heads) const {
    if (empty())
        throw bad_input("no pattern: give --branch or --preset");
    if (head_groups && (branches.empty() || !presets.empty()))
        throw bad_input("--head-groups shares the heads out among branches of --branch alone");
    std::vector<BranchText> parsed;
    for (const std::string &branch : branches)
        parsed.push_back(parse_branch(branch));

    Config config = make_config();
    for (const std::string &preset : presets)
        add_preset(config.get(), preset);
    const std::int32_t first = annulus_config_branch_count(config.get());
    if (head_groups)
        add_head_groups(config.get(), heads, parsed);
    else
        for (const BranchText &branch : parsed)
            check(annulus_config_add_branch(config.get(), branch.segment_length, branch.dilation, nullptr),
                  "--branch " + branch.text);
    for (std::size_t i = 0; i < parsed.size(); ++i)
        apply_properties(config.get(), first + static_cast<std::int32_t>(i), parsed[i]);

    // A preset may have set these; what the user says comes last.
    if (causal)
        check(annulus_config_set_causal(config.get(), 1));
    if (!padding.empty())
        check(annulus_config_set_padding_rule(config.get(),
                                              padding == "exact" ? ANNULUS_PADDING_EXACT : ANNULUS_PADDING_ZERO_KEYS));
    if (scale)
        check(annulus_config_set_scale(config.get(), *scale), "--scale");
    return config;
}

std::vector<std::string> PatternOptions::labels() const {
    std::vector<std::string> labels;
    for (const std::string &preset : presets)
        append_labels(labels, preset);
    labels.insert(labels.end(), branches.begin(), branches.end());
    return labels;
}

void ExecutionOptions::add_to(CLI::App &command) {
    const std::string group = "Execution";
    command
        .add_option_function<std::string>(
            "--device", [this](const std::string &text) { device = parse_device(text); },
            "Where: cpu (default), cuda, or cuda:I, the I-th CUDA device, counted from 0")
        ->type_name("NAME")
        ->group(group);
    command.add_option("--engine", engine, "Who computes (auto unless given)")
        ->check(CLI::IsMember(engine_names()))
        ->type_name("NAME")
        ->group(group);
    command
        .add_option("--exchange", exchange,
                    "How ranks send rows of K and V: in a ring, or gathered at once, which is faster and holds more of "
                    "them at a time; auto, the default, gathers where they take no more than a rank's own rows")
        ->check(CLI::IsMember(exchange_names()))
        ->type_name("NAME")
        ->group(group);
    add_number<std::int32_t>(command, "--threads", threads,
                             "CPU threads; 0, the default, is all that the process may run on")
        ->type_name("T")
        ->group(group);
    command.add_flag("--deterministic", deterministic, "Equal inputs give equal bits")->group(group);
    command.add_flag("--tf32", allow_tf32, "Products of float32 numbers may be TF32")->group(group);
    command
        .add_option_function<std::string>(
            "--workspace-limit", [this](const std::string &text) { workspace_limit = parse_bytes(text); },
            "The most workspace a call may take, such as 256M; 0, the default, is the engine's own choice")
        ->type_name("BYTES")
        ->group(group);
}

int ExecutionOptions::thread_count() const {
    cpu_set_t set;
    if (threads > 0)
        return threads;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void ProblemOptions::add_to(CLI::App &command, bool required) {
    const std::string group = "Problem";
    const std::string need = required ? "" : ", for a case of your own";
    add_number<std::int64_t>(command, "--tokens", tokens, "N, the sequence length" + need)
        ->required(required)
        ->type_name("N")
        ->group(group);
    add_number<std::int32_t>(command, "--heads", heads, "H, the query heads" + need)
        ->required(required)
        ->type_name("H")
        ->group(group);
    add_number<std::int32_t>(command, "--kv-heads", kv_heads, "G, the key/value heads; 0, the default, is H")
        ->type_name("G")
        ->group(group);
    add_number<std::int32_t>(command, "--head-dim", head_dim, "D, a multiple of 8 up to 256" + need)
        ->required(required)
        ->type_name("D")
        ->group(group);
    add_number<std::int64_t>(command, "--batch", batch, "B, 1 unless given")->type_name("B")->group(group);
    add_dtype_option(command, dtype,
                     std::string("The tensors' dtype, float32 unless given") +
                         (required ? "" : "; on CUDA what is fast there"))
        ->group(group);
}

annulus_problem ProblemOptions::problem() const {
    annulus_problem problem = ANNULUS_PROBLEM_INIT;
    problem.dtype = dtype.empty() ? ANNULUS_FLOAT32 : dtype_of(dtype);
    problem.heads = heads;
    problem.kv_heads = kv_heads ? kv_heads : heads;
    problem.head_dim = head_dim;
    problem.batch = batch;
    problem.sequence_length = problem.query_length = problem.key_length = tokens;
    return problem;
}

Context make_context(const PatternOptions &pattern, const ExecutionOptions &execution, std::int32_t heads) {
    const Config config = pattern.config(heads);
    const std::vector<std::string> engines = engine_names();
    for (std::size_t i = 0; i < engines.size(); ++i)
        if (engines[i] == execution.engine)
            check(annulus_config_set_engine(config.get(), static_cast<annulus_engine>(i)), "--engine");
    for (const annulus_exchange exchange : exchanges)
        if (exchange_name(exchange) == execution.exchange)
            check(annulus_config_set_exchange(config.get(), exchange), "--exchange");
    check(annulus_config_set_deterministic(config.get(), execution.deterministic));
    check(annulus_config_set_allow_tf32(config.get(), execution.allow_tf32));
    check(annulus_config_set_workspace_limit(config.get(), execution.workspace_limit), "--workspace-limit");
    Context context = create_context(execution.device);
    check(annulus_context_set_config(context.get(), config.get()));
    check(annulus_context_set_threads(context.get(), execution.threads), "--threads");
    return context;
}

std::string exchange_name(annulus_exchange exchange) {
    switch (exchange) {
    case ANNULUS_EXCHANGE_AUTO:
        break;
    case ANNULUS_EXCHANGE_RING:
        return "ring";
    case ANNULUS_EXCHANGE_GATHER:
        return "gather";
    }
    return "auto";
}

std::int64_t whole_number(const std::string &option, const std::string &text, std::int64_t lowest,
                          std::int64_t highest) {
    const std::optional<std::int64_t> number = parse_integer(text);
    if (!number || *number < lowest || *number > highest)
        throw bad_input(option + " " + text + ": must be a whole number from " + std::to_string(lowest) + " to " +
                        std::to_string(highest));
    return *number;
}

double real_number(const std::string &option, const std::string &text) {
    const std::optional<double> number = parse_real(text);
    if (!number)
        throw bad_input(option + " " + text + ": must be a decimal number in the range of double");
    return *number;
}

CLI::Option *add_dtype_option(CLI::App &command, std::string &dtype, const std::string &help) {
    std::vector<std::string> names;
    for (const annulus_dtype value : dtypes)
        names.emplace_back(annulus_dtype_name(value));
    return command.add_option("--dtype", dtype, help)->check(CLI::IsMember(names))->type_name("NAME");
}

annulus_dtype dtype_of(const std::string &name) {
    for (const annulus_dtype value : dtypes)
        if (name == annulus_dtype_name(value))
            return value;
    throw bad_input("--dtype: unknown '" + name + "'");
}

} // namespace annulus::cli
