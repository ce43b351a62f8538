// SPDX-License-Identifier: Apache-2.0
// annulus map: which keys are attended to, as an array and as a picture.
#include "cli/arrays/host_tensor.hpp"
#include "cli/arrays/npy.hpp"
#include "cli/commands/attend_arrays.hpp"
#include "cli/commands/commands.hpp"
#include "cli/commands/context.hpp"
#include "cli/commands/map_grid.hpp"
#include "cli/commands/problem_options.hpp"
#include "cli/devices/memory.hpp"
#include "cli/devices/mirror.hpp"
#include "cli/report/file_option.hpp"
#include "cli/report/heat_map.hpp"
#include "cli/report/number_option.hpp"
#include "cli/report/progress.hpp"
#include "cli/report/text.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace annulus::cli {

namespace {

struct MapOptions {
    AttendFiles files;
    std::string heads = "each";
    std::string svg;
    GridOptions grid;
    PatternOptions pattern;
    ExecutionOptions execution;
};

// LSE of an earlier forward call.
void check_lse(const InputArray &lse, const Inputs &inputs) {
    const annulus_dtype wanted = inputs.q.dtype == ANNULUS_FLOAT64 ? ANNULUS_FLOAT64 : ANNULUS_FLOAT32;
    if (lse.dtype() != wanted)
        throw bad_input(std::string("--lse: the dtype is ") + annulus_dtype_name(lse.dtype()) + "; it must be " +
                        annulus_dtype_name(wanted));
    Shape shape{inputs.q.shape[0], inputs.q.shape[2], inputs.q.shape[1]};
    if (inputs.shape_of_q().size() == 3)
        shape.erase(shape.begin());
    if (lse.shape() != shape)
        throw bad_input("--lse: the shape must be that of attend's LSE, [B, H, N], of the rows of --q");
}

// The masses of all keys, [B, H, N] in float64, found by some query rows at a time, whose masses add up.
class MassJob {
  public:
    MassJob(annulus_context *context, Memory &memory, const Inputs &inputs, std::int64_t query_start)
        : context_(context), memory_(memory), inputs_(inputs), query_start_(query_start), batch_(inputs.q.shape[0]),
          rows_(inputs.q.shape[1]), heads_(inputs.q.shape[2]), keys_(inputs.k.shape[1]),
          sum_dtype_(inputs.q.dtype == ANNULUS_FLOAT64 ? ANNULUS_FLOAT64 : ANNULUS_FLOAT32) {}

    annulus_dtype sum_dtype() const { return sum_dtype_; }

    std::vector<double> run(const std::optional<InputArray> &lse) {
        Mirror q(memory_, {inputs_.q}, 1), k(memory_, {inputs_.k}, 1);
        std::optional<Mirror> given_lse;
        if (lse)
            given_lse.emplace(memory_, std::vector{view(lse->data(), sum_dtype_, {batch_, heads_, rows_})}, 2);
        q.copy_in();
        k.copy_in();
        if (given_lse)
            given_lse->copy_in();
        const std::int64_t step = rows_of_piece(lse ? 1 : 2);
        allocate(lse ? 0 : step);
        std::vector<double> masses(static_cast<std::size_t>(batch_ * heads_ * keys_));
        Progress progress(static_cast<double>(batch_) * static_cast<double>(rows_));
        for (std::int64_t b = 0; b < batch_; ++b)
            for (std::int64_t n = 0; n < rows_; n += step) {
                const std::int64_t rows = std::min(step, rows_ - n);
                annulus_tensor of_rows{};
                if (given_lse)
                    of_rows = slice(slice(given_lse->tensor(), 0, b, 1), 2, n, rows);
                run_piece(slice(slice(q.tensor(), 0, b, 1), 1, n, rows), slice(k.tensor(), 0, b, 1), of_rows, b, n);
                add_to(masses.data() + b * heads_ * keys_);
                progress.advance(static_cast<double>(rows));
            }
        return masses;
    }

  private:
    std::int64_t rows_of_piece(int passes) const {
        annulus_problem problem = ANNULUS_PROBLEM_INIT;
        problem.dtype = inputs_.q.dtype;
        problem.heads = static_cast<std::int32_t>(heads_);
        problem.kv_heads = static_cast<std::int32_t>(inputs_.k.shape[2]);
        problem.head_dim = static_cast<std::int32_t>(inputs_.q.shape[3]);
        problem.batch = 1;
        problem.sequence_length = keys_;
        problem.query_start = query_start_;
        problem.query_length = rows_;
        annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
        check(annulus_estimate_problem(context_, &problem, ANNULUS_ALL_BRANCHES, &estimate));
        const Memory::Piece piece = memory_.piece();
        const double pieces = passes * estimate.forward_flops / piece.flops;
        if (pieces <= 1)
            return std::max<std::int64_t>(rows_, 1);
        return (static_cast<std::int64_t>(static_cast<double>(rows_) / pieces) / piece.rows + 1) * piece.rows;
    }

    // Where a piece's masses go and, of so many rows, the results of forward.
    void allocate(std::int64_t forward_rows) {
        const auto make = [&](annulus_dtype dtype, const Shape &shape, Allocation &memory) {
            annulus_tensor tensor = view(nullptr, dtype, shape);
            memory = memory_.allocate(std::max<std::size_t>(bytes_of(tensor), 1));
            tensor.data = memory.get();
            return tensor;
        };
        mass_ = make(sum_dtype_, {1, heads_, keys_}, mass_memory_);
        piece_mass_.resize(bytes_of(mass_));
        if (forward_rows == 0)
            return;
        out_ = make(inputs_.q.dtype, {1, forward_rows, heads_, inputs_.q.shape[3]}, out_memory_);
        lse_ = make(sum_dtype_, {1, heads_, forward_rows}, lse_memory_);
    }

    // Without LSE, whose data is null then, it is found first.
    void run_piece(const annulus_tensor &q, const annulus_tensor &k, annulus_tensor lse, std::int64_t b,
                   std::int64_t n) {
        annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
        options.flags = ANNULUS_CALL_QUERY_WINDOW;
        options.query_start = query_start_ + n;
        inputs_.name_sequences(options, b, 1);
        if (!lse.data) {
            const annulus_tensor out = slice(out_, 1, 0, q.shape[1]);
            lse = slice(lse_, 2, 0, q.shape[1]);
            check(annulus_forward(context_, &q, &k, &k, &out, &lse, &options));
        }
        check(annulus_attention_mass(context_, &q, &k, &lse, &mass_, &options));
        memory_.finish();
        memory_.copy_out(piece_mass_.data(), mass_.data, piece_mass_.size());
    }

    void add_to(double *masses) const {
        const auto add = [&](const auto *piece) {
            for (std::int64_t i = 0; i < heads_ * keys_; ++i)
                masses[i] += static_cast<double>(piece[i]);
        };
        if (sum_dtype_ == ANNULUS_FLOAT64)
            add(reinterpret_cast<const double *>(piece_mass_.data()));
        else
            add(reinterpret_cast<const float *>(piece_mass_.data()));
    }

    annulus_context *context_;
    Memory &memory_;
    const Inputs &inputs_;
    const std::int64_t query_start_, batch_, rows_, heads_, keys_;
    const annulus_dtype sum_dtype_;
    Allocation mass_memory_, out_memory_, lse_memory_;
    annulus_tensor mass_{}, out_{}, lse_{};
    std::vector<std::byte> piece_mass_; // in the host's memory
};

// [B, N] of [B, H, N].
std::vector<double> mean_of_heads(const std::vector<double> &masses, std::int64_t batch, std::int64_t heads) {
    const std::size_t keys = masses.size() / static_cast<std::size_t>(batch * heads);
    std::vector<double> means(static_cast<std::size_t>(batch) * keys);
    for (std::size_t i = 0; i < masses.size(); ++i)
        means[i / keys / static_cast<std::size_t>(heads) * keys + i % keys] += masses[i] / static_cast<double>(heads);
    return means;
}

void store(const std::vector<double> &values, annulus_dtype dtype, void *to) {
    if (dtype == ANNULUS_FLOAT64)
        std::ranges::copy(values, static_cast<double *>(to));
    else
        std::ranges::transform(values, static_cast<float *>(to),
                               [](double value) { return static_cast<float>(value); });
}

std::string text_of(double value) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.4g", value);
    return buffer;
}

std::string draw_masses(const MapOptions &options, const Grid &grid, const std::vector<double> &means,
                        std::int64_t heads, std::int64_t queries) {
    const std::int64_t skip = options.grid.skip;
    const std::vector<double> tiles(means.begin() + skip, means.end());
    std::vector<double> sorted = tiles;
    std::ranges::sort(sorted);
    const auto largest = std::ranges::max_element(tiles);
    const std::int64_t cell = grid.cells[static_cast<std::size_t>(largest - tiles.begin())];
    HeatMap map{grid.columns, grid.spread(means, skip), {}, "attention mass"};
    map.lines.push_back("Attention mass of " + std::to_string(tiles.size()) + " positions on " +
                        std::to_string(grid.columns) + " x " + std::to_string(grid.rows) + ", from " +
                        std::to_string(queries) + " queries, mean of " + std::to_string(heads) + " heads");
    map.lines.push_back(joined(options.pattern.labels(static_cast<std::int32_t>(heads)), " + ") +
                        (options.pattern.causal ? ", causal" : ""));
    map.lines.push_back("least " + text_of(sorted.front()) + ", median " + text_of(sorted[sorted.size() / 2]) +
                        ", mean " +
                        text_of(std::accumulate(tiles.begin(), tiles.end(), 0.0) / static_cast<double>(tiles.size())) +
                        ", most " + text_of(*largest) + " in column " + std::to_string(cell % grid.columns) + ", row " +
                        std::to_string(cell / grid.columns));
    if (skip > 0)
        map.lines.push_back(std::string("not drawn: position 0") + (skip > 1 ? " to " + std::to_string(skip - 1) : "") +
                            ", with " + text_of(std::accumulate(means.begin(), means.begin() + skip, 0.0)) + " in all");
    return draw(map);
}

void map(const MapOptions &options) {
    if (options.files.out.empty() && options.svg.empty())
        throw bad_input("--out or --svg must be given");
    const Inputs inputs(options.files);
    std::optional<InputArray> lse;
    if (!options.files.lse.empty())
        check_lse(lse.emplace("--lse", options.files.lse), inputs);
    const std::int64_t batch = inputs.q.shape[0], heads = inputs.q.shape[2], keys = inputs.k.shape[1];
    std::optional<Grid> grid;
    if (!options.svg.empty()) {
        if (batch != 1)
            throw bad_input("--svg draws one batch entry; there are " + std::to_string(batch));
        grid = make_grid(options.grid, keys);
    }
    const std::unique_ptr<Memory> memory = make_memory(options.execution.device, options.execution.thread_count());
    const Context context = make_context(options.pattern, options.execution, static_cast<std::int32_t>(heads));
    memory->order(context.get());
    MassJob job(context.get(), *memory, inputs, options.files.query_start.value_or(0));
    const bool is_mean = options.heads == "mean";
    std::optional<OutputArray> out;
    if (!options.files.out.empty()) {
        Shape shape = is_mean ? Shape{batch, keys} : Shape{batch, heads, keys};
        if (inputs.shape_of_q().size() == 3)
            shape.erase(shape.begin());
        out.emplace("--out", options.files.out, job.sum_dtype(), shape);
    }

    const std::vector<double> masses = job.run(lse);
    const std::vector<double> means = mean_of_heads(masses, batch, heads);
    inputs.check_unchanged();
    if (lse)
        lse->check_unchanged();
    if (out)
        store(is_mean ? means : masses, job.sum_dtype(), out->data());
    if (grid)
        write_file("--svg", options.svg, draw_masses(options, *grid, means, heads, inputs.q.shape[1]));
    if (out)
        out->commit();
}

} // namespace

void add_map_command(CLI::App &program) {
    auto options = std::make_shared<MapOptions>();
    CLI::App *command = program.add_subcommand(
        "map",
        "Say how much each key is attended to: the attention mass, the sum over the queries of the probabilities "
        "that they give it, of Q and K in .npy files as attend takes them; as an array, as a picture, or both.");
    const auto add_file = [&](const char *name, std::string &path, const char *help, bool required) {
        add_file_option(*command, name, path, help)->required(required)->group("Files");
    };
    add_file("--q", options->files.q, "Queries, read", true);
    add_file("--k", options->files.k, "Keys [B, N, G, D], G dividing H, read", true);
    add_file("--lse", options->files.lse, "LSE that attend wrote for them, read; without, it is computed first", false);
    add_file("--out", options->files.out, "Masses [B, H, N], written; float32, or float64 when the inputs are", false);
    command
        ->add_option("--heads", options->heads,
                     "Write the masses of each head, or their mean over the heads, [B, N] (default: each)")
        ->check(CLI::IsMember({"each", "mean"}))
        ->type_name("each|mean")
        ->group("Files");
    add_file("--svg", options->svg, "Picture of the mean over the heads, of one batch entry, written", false);
    add_number<std::int64_t>(*command, "--grid", options->grid.width,
                             "The positions lie row by row on a grid with W columns")
        ->type_name("W")
        ->group("Picture");
    add_file_option(
        *command, "--coordinates", options->grid.coordinates,
        "Where each position lies: whole numbers x and y of each, on a grid of any step; a .npy file [tiles, "
        "2] of int64 or int32, else lines of x,y")
        ->group("Picture");
    add_number<std::int64_t>(*command, "--skip", options->grid.skip,
                             "Positions before the first one that is drawn, 1 for a class token (default: 0)")
        ->type_name("K")
        ->group("Picture");
    add_dtype_option(*command, options->files.dtype, "Convert Q and K to this dtype first");
    add_number<std::int64_t>(*command, "--query-start", options->files.query_start,
                             "Position of the first row of Q among those of K")
        ->type_name("S");
    const auto add_sequences = [&](const char *name, std::string &text, const char *help) {
        command->add_option(name, text, help)->type_name("FILE|LIST");
    };
    add_sequences("--starts", options->files.starts, "The rows are packed sequences, as attend takes them");
    add_sequences("--lengths", options->files.lengths, "How many rows of each sequence count, as attend takes them");
    options->pattern.add_to(*command);
    options->execution.add_to(*command);
    command->footer("annulus map --q q.npy --k k.npy --out mass.npy --branch 2048:1 --branch 8192:4");
    command->callback([options] { map(*options); });
}

} // namespace annulus::cli
