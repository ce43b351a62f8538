// SPDX-License-Identifier: Apache-2.0
// annulus map: computes how much each key is attended to, as an array and as a picture.
#include "cli/arrays/host_tensor.hpp"
#include "cli/arrays/npy.hpp"
#include "cli/commands/attend_arrays.hpp"
#include "cli/commands/commands.hpp"
#include "cli/commands/context.hpp"
#include "cli/commands/map_picture.hpp"
#include "cli/commands/mass_job.hpp"
#include "cli/commands/problem_options.hpp"
#include "cli/commands/warnings.hpp"
#include "cli/devices/memory.hpp"
#include "cli/ranks/mpi_place.hpp"
#include "cli/ranks/ranks.hpp"
#include "cli/report/text.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace annulus::cli {

namespace {

struct MapOptions {
    AttendFiles files;
    std::string heads = "each";
    bool is_relative = false;
    std::string mass; // path; empty: masses are computed
    PictureOptions picture;
    PatternOptions pattern;
    ExecutionOptions execution;
    RankOptions ranks;
};

// Throws unless the dtype and shape of the LSE of an earlier forward call fit the inputs.
void check_lse(const InputArray &lse, const Inputs &inputs) {
    const annulus_dtype wanted = inputs.dtype_of_sums();
    if (lse.dtype() != wanted)
        throw bad_input(std::string("--lse: the dtype is ") + annulus_dtype_name(lse.dtype()) + "; it must be " +
                        annulus_dtype_name(wanted));
    Shape shape{inputs.q.shape[0], inputs.q.shape[2], inputs.q.shape[1]};
    if (inputs.shape_of_q().size() == 3)
        shape.erase(shape.begin());
    if (lse.shape() != shape)
        throw bad_input("--lse: the shape must be that of attend's LSE, [B, H, N], of the rows of --q");
}

void store(const std::vector<double> &values, annulus_dtype dtype, void *to) {
    if (dtype == ANNULUS_FLOAT64)
        std::ranges::copy(values, static_cast<double *>(to));
    else
        std::ranges::transform(values, static_cast<float *>(to),
                               [](double value) { return static_cast<float>(value); });
}

// A scale with which all scores are equal: the exponential of scores up to 1e13 times it is 1 in float64. The fused
// kernels take no scale of 0.
constexpr double almost_zero = 1e-30;

// Returns the quotients, NaN for 0 / 0.
std::vector<double> ratios(const std::vector<double> &masses, const std::vector<double> &expected) {
    std::vector<double> ratios;
    std::ranges::transform(masses, expected, std::back_inserter(ratios), std::divides());
    return ratios;
}

void warn_of_unused(const MapOptions &options) {
    const PlaceOptions &places = options.picture.places;
    if (options.picture.path.empty())
        for (const auto &[option, is_given] : {std::pair("--grid", places.width.has_value()),
                                               {"--coordinates", !places.coordinates.empty()},
                                               {"--tile-size", places.tile_size.has_value()},
                                               {"--skip", places.skip != 0},
                                               {"--range", options.picture.range.has_value()}})
            if (is_given)
                warn(std::string(option) + " is for --picture, and is not used without");
    if (options.files.out.empty() && options.heads != "each")
        warn("--heads is for --out, and is not used without");
}

// The masses of all keys. With --relative also the expected masses, which the pattern alone explains.
struct MapResults {
    MapResults(const MapOptions &options, const Inputs &inputs) : masses(inputs) {
        if (options.is_relative)
            expected.emplace(inputs);
    }

    void allocate() {
        masses.allocate();
        if (expected)
            expected->allocate();
    }

    std::vector<Stretch> stretches(const std::vector<Range> &ranges) {
        std::vector<Stretch> all = masses.stretches(ranges);
        if (expected)
            std::ranges::copy(expected->stretches(ranges), std::back_inserter(all));
        return all;
    }

    std::vector<double> values() const { return expected ? ratios(masses.values, expected->values) : masses.values; }
    std::vector<double> mean_of_heads() const {
        const std::vector<double> means = masses.mean_of_heads();
        return expected ? ratios(means, expected->mean_of_heads()) : means;
    }

    Masses masses;
    std::optional<Masses> expected; // were all scores equal
};

// Computes the results of a rank's keys. All ranks have accepted the sizes when it calls `prepare`, before anything is
// computed.
void compute(const MapOptions &options, const Rank &rank, const Inputs &inputs,
             const std::optional<annulus_tensor> &lse, MapResults &results, const std::function<void()> &prepare) {
    const std::unique_ptr<Memory> memory = make_memory(rank.execution.device, rank.execution.thread_count());
    std::optional<Progress> progress;
    const auto compute_masses = [&](const PatternOptions &pattern, const std::optional<annulus_tensor> &given_lse,
                                    Masses &masses, const std::function<void(double flops)> &begin) {
        const Context context = make_context(pattern, rank.execution, static_cast<std::int32_t>(masses.heads));
        memory->order(context.get());
        rank.join(context.get(), rank.shards(masses.keys));
        MassJob job(context.get(), *memory, rank, inputs, options.files.query_start.value_or(0));
        rank.meet();
        begin(job.flops(given_lse.has_value()));
        rank.meet();
        job.run(given_lse, masses, progress ? &*progress : nullptr);
    };
    compute_masses(options.pattern, lse, results.masses, [&](double flops) {
        prepare();
        if (rank.index == 0)
            progress.emplace(flops * (results.expected ? 2 : 1));
    });
    if (results.expected) {
        PatternOptions equal_scores = options.pattern;
        equal_scores.scale = almost_zero;
        compute_masses(equal_scores, std::nullopt, *results.expected, [](double) {});
    }
}

MapNumbers numbers_of(const MapOptions &options, const MapResults &results, std::int64_t queries) {
    const std::int64_t heads = results.masses.heads;
    return {results.mean_of_heads(),
            options.is_relative ? "Attention mass over that of equal scores," : "Attention mass",
            options.is_relative ? "mass / expected" : "attention mass",
            "from " + counted(queries, "query", "queries") + ", mean of " + counted(heads, "head", "heads"),
            joined(options.pattern.labels(static_cast<std::int32_t>(heads)), " + ") +
                (options.pattern.causal ? ", causal" : ""),
            !options.is_relative};
}

// Draws masses from a file.
void draw_file(const MapOptions &options) {
    const AttendFiles &files = options.files;
    for (const auto &[option, is_given] : {std::pair("--q", !files.q.empty()),
                                           {"--k", !files.k.empty()},
                                           {"--lse", !files.lse.empty()},
                                           {"--out", !files.out.empty()},
                                           {"--heads", options.heads != "each"},
                                           {"--relative", options.is_relative},
                                           {"--dtype", !files.dtype.empty()},
                                           {"--query-start", files.query_start.has_value()},
                                           {"--starts", !files.starts.empty()},
                                           {"--lengths", !files.lengths.empty()},
                                           {"--ranks", options.ranks.count || mpi_place().count > 1},
                                           {"--branch or --preset", options.pattern.is_given()}})
        if (is_given)
            throw bad_input(std::string("--mass is drawn as it is, and does not go with ") + option);
    if (options.picture.path.empty())
        throw bad_input("--mass is for --picture, which must be given");
    check_outputs({{"--picture", options.picture.path}},
                  {{"--mass", options.mass}, {"--coordinates", options.picture.places.coordinates}});
    const NpyNumbers array = read_npy_numbers("--mass", options.mass);
    const std::size_t dimensions = array.shape.size();
    if (dimensions < 1 || dimensions > 3 || (dimensions == 3 && array.shape[0] != 1) || array.numbers.empty())
        throw bad_input("--mass '" + options.mass + "': the array must be [N], [H, N] or [1, H, N], and not be empty");
    const auto keys = static_cast<std::size_t>(array.shape.back()), rows = array.numbers.size() / keys;
    std::vector<double> means(keys);
    for (std::size_t i = 0; i < array.numbers.size(); ++i)
        means[i % keys] += array.numbers[i] / static_cast<double>(rows);
    const MapPicture picture(options.picture, std::ssize(means));
    picture.write({std::move(means), "Masses", "as in the file",
                   "mean of " + counted(static_cast<std::int64_t>(rows), "row", "rows") + " of a file", "", false});
}

// Throws if options for computing masses are missing or name the same files.
void check_options(const MapOptions &options) {
    for (const auto &[option, path] : {std::pair("--q", &options.files.q), {"--k", &options.files.k}})
        if (path->empty())
            throw bad_input(std::string(option) + " is required, except with --mass");
    if (options.files.out.empty() && options.picture.path.empty())
        throw bad_input("--out or --picture must be given");
    refuse_ranks_of_a_part(options.files, options.ranks);
    std::vector<NamedFile> read = options.files.inputs();
    read.insert(read.end(), {{"--lse", options.files.lse}, {"--coordinates", options.picture.places.coordinates}});
    check_outputs({{"--out", options.files.out}, {"--picture", options.picture.path}}, read);
}

void map(const MapOptions &options) {
    if (!options.mass.empty())
        return draw_file(options);
    check_options(options);
    const bool is_mean = options.heads == "mean";
    const std::unique_ptr<Ranks> ranks = make_ranks(options.ranks, options.execution);
    ranks->in_each_process([&] {
        const Inputs inputs(options.files);
        std::optional<InputArray> lse_file;
        std::optional<annulus_tensor> lse;
        MapResults results(options, inputs);
        const Masses &masses = results.masses;
        if (!options.files.lse.empty()) {
            check_lse(lse_file.emplace("--lse", options.files.lse), inputs);
            lse = view(lse_file->data(), lse_file->dtype(), {masses.batch, masses.heads, inputs.q.shape[1]});
        }
        std::optional<MapPicture> picture;
        if (!options.picture.path.empty()) {
            if (masses.batch != 1)
                throw bad_input("--picture draws one batch entry; there are " + std::to_string(masses.batch));
            picture.emplace(options.picture, masses.keys);
        }
        std::optional<OutputArray> out;
        const auto make_file = [&] {
            Shape shape = is_mean ? Shape{masses.batch, masses.keys} : Shape{masses.batch, masses.heads, masses.keys};
            if (inputs.shape_of_q().size() == 3)
                shape.erase(shape.begin());
            out.emplace("--out", options.files.out, inputs.dtype_of_sums(), shape);
        };
        ranks->run([&](const Rank &rank) {
            compute(options, rank, inputs, lse, results, [&] {
                if (rank.index == 0 || !ranks->has_rank_0())
                    results.allocate();
                if (rank.index == 0 && !options.files.out.empty())
                    make_file();
                if (rank.index == 0) {
                    warn_of_inputs(inputs, options.pattern);
                    warn_of_unused(options);
                }
            });
            inputs.check_unchanged();
            if (lse_file)
                lse_file->check_unchanged();
        });
        const Shards shards(masses.keys, ranks->count(), options.ranks.sharding);
        ranks->collect([&](int rank) { return results.stretches(shards.ranges(rank)); });
        if (!ranks->has_rank_0())
            return;
        if (out)
            store(is_mean ? results.mean_of_heads() : results.values(), inputs.dtype_of_sums(), out->data());
        if (picture)
            picture->write(numbers_of(options, results, inputs.q.shape[1]));
        if (out)
            out->commit();
    });
}

} // namespace

void add_map_command(CLI::App &program) {
    auto options = std::make_shared<MapOptions>();
    Command command(
        program, "map",
        "Say how much each key is attended to: the attention mass, the sum over the queries of the probabilities "
        "that they give it, of Q and K in .npy files as attend takes them; as an array, as a picture, or both.");
    const auto add_file = [&](const char *name, std::string &path, const char *help) {
        command.file(name, path, help).group("Files");
    };
    add_file("--q", options->files.q, "Queries, read");
    add_file("--k", options->files.k, "Keys [B, N, G, D], G dividing H, read");
    add_file("--lse", options->files.lse, "LSE that attend wrote for them, read; without, it is computed first");
    add_file("--mass", options->mass,
             "Masses [N], [H, N] or [1, H, N], read and drawn as they are, in place of --q and --k");
    add_file("--out", options->files.out, "Masses [B, H, N], written; float32, or float64 when the inputs are");
    command
        .text("--heads", options->heads,
              "Write the masses of each head, or their mean over the heads, [B, N] (default: each)")
        .one_of({"each", "mean"})
        .value("each|mean")
        .group("Files");
    options->picture.add_to(command);
    command
        .flag("--relative", options->is_relative,
              "Divide the masses by what the pattern alone explains: the masses if all scores were equal")
        .group("Files");
    add_dtype_option(command, options->files.dtype, "Convert Q and K to this dtype first");
    command
        .number<std::int64_t>("--query-start", options->files.query_start, 0,
                              "Position of the first row of Q among those of K")
        .value("S");
    const auto add_sequences = [&](const char *name, std::string &text, const char *help) {
        command.text(name, text, help).value("FILE|LIST");
    };
    add_sequences("--starts", options->files.starts, "The rows are packed sequences, as attend takes them");
    add_sequences("--lengths", options->files.lengths, "How many rows of each sequence count, as attend takes them");
    options->pattern.add_to(command);
    options->execution.add_to(command);
    options->ranks.add_to(command, false);
    command.example("annulus map --q q.npy --k k.npy --out mass.npy --branch 2048:1 --branch 8192:4");
    command.runs([options] { map(*options); });
}

} // namespace annulus::cli
