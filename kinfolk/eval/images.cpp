#include "kinfolk/eval/images.h"

#include <chrono>
#include <numbers>

#include "kinfolk/core/errors.h"
#include "kinfolk/eval/ngram.h"

namespace kinfolk {
namespace {

/// Evaluation mode while it lives.
struct Evaluating {
  Model& model;
  const bool was = model.is_training();
  explicit Evaluating(Model& m) : model(m) { model.eval(); }
  ~Evaluating() { model.train(was); }
};

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

/// Standard error of the mean; NaN of one value.
double error_of(const std::vector<double>& values) {
  const double mean = mean_of(values), n = static_cast<double>(values.size());
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return n > 1 ? std::sqrt(squares / (n - 1) / n) : std::nan("");
}

}  // namespace

ImageGrid grid_of(const Model& model, int64_t rows, int64_t columns) {
  const ImageGrid grid = model.grid();
  if (!grid.any()) return {rows, columns};
  if (grid.rows != rows || grid.columns != columns) {
    refuse("[images] expected ", grid.rows, " x ", grid.columns, " pixels, the rows and columns of the member; found ",
           rows, " x ", columns);
  }
  return grid;
}

ImageScores score_images(Model& model, const Pixels& images, const ImageGrid& grid, int64_t pixels, int64_t lanes,
                         const std::function<void(double)>& progress) {
  if (pixels < 1 || lanes < 1) refuse("[eval.tokens] expected at least 1; found ", std::min(pixels, lanes));
  const at::NoGradGuard no_grad;
  const Evaluating evaluating(model);
  const int64_t each = grid.pixels(), held = static_cast<int64_t>(images.size()) / each;
  const int64_t count = std::min(held, std::max<int64_t>(1, pixels / each));
  const Tensor order = at::tensor(grid.order(), at::kLong);
  const auto began = std::chrono::steady_clock::now();
  std::vector<Tensor> parts;
  for (int64_t from = 0; from < count; from += lanes) {
    const int64_t some = std::min(lanes, count - from);
    const std::span<const uint8_t> mine(images.data() + from * each, static_cast<size_t>(some * each));
    const Batch batch = image_batch(mine, grid, model.size().vocabulary - 1);
    const Tensor log_p = model.score({batch.tokens, {}}).to(at::kFloat).log_softmax(-1);  // [N, pixels, V]
    const Tensor bits = log_p.gather(-1, batch.fact("target").unsqueeze(-1)).squeeze(-1).to(at::kDouble);
    parts.push_back(at::empty_like(bits).index_copy_(1, order, bits / -std::numbers::ln2));  // raster order again
    if (progress) progress(static_cast<double>(from + some) / static_cast<double>(count));
  }
  const Tensor bits = at::cat(parts).view({count, grid.rows, grid.columns});
  const auto values = [](const Tensor& column) {
    const Tensor flat = column.contiguous();
    return std::vector<double>(flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
  };
  ImageScores out;
  out.images = count;
  out.pixels = count * each;
  const auto whole = values(bits.mean({1, 2}));
  out.bits = mean_of(whole);
  out.error = error_of(whole);
  for (int64_t row = 0; row < grid.rows; ++row) {
    const auto mine = values(bits.select(1, row).mean(1));
    out.rows.push_back({row * grid.columns, (row + 1) * grid.columns, mean_of(mine), error_of(mine)});
  }
  out.pixels_per_second =
      static_cast<double>(out.pixels) / std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return out;
}

std::vector<ImageBaseline> image_baselines(const Pixels& train, const Pixels& held_out, int64_t rows, int64_t columns,
                                           int64_t levels) {
  struct Step {
    int64_t down, right;
  };
  /// Where the pixels of a context stand, the nearest last; what lies outside counts as level 0.
  const auto bits = [&](const std::vector<Step>& steps) {
    NgramModel model(static_cast<int>(steps.size()), static_cast<int>(levels));
    std::vector<uint8_t> context(steps.size());
    double sum = 0;
    const auto each = [&](const Pixels& images, const auto& visit) {
      for (size_t begin = 0; begin < images.size(); begin += static_cast<size_t>(rows * columns))
        for (int64_t y = 0; y < rows; ++y)
          for (int64_t x = 0; x < columns; ++x) {
            const auto pixel = [&](int64_t row, int64_t column) {
              const bool inside = row >= 0 && column >= 0 && column < columns;
              return inside ? images[begin + static_cast<size_t>(row * columns + column)] : uint8_t{0};
            };
            for (size_t i = 0; i < steps.size(); ++i) context[i] = pixel(y + steps[i].down, x + steps[i].right);
            visit(pixel(y, x));
          }
    };
    each(train, [&](uint8_t level) { model.add(context, level); });
    each(held_out, [&](uint8_t level) { sum -= std::log2(model.probability(context, level)); });
    return sum / static_cast<double>(held_out.size());
  };
  std::vector<ImageBaseline> out = {{"nothing before", bits({})}};
  for (int order = 1; order <= 3; ++order) {
    NgramModel model(order, static_cast<int>(levels));
    const auto pixels = static_cast<size_t>(rows * columns);
    double sum = 0;
    for (size_t begin = 0; begin < train.size(); begin += pixels) {
      model.train(std::span<const uint8_t>(train).subspan(begin, pixels));
    }
    for (size_t begin = 0; begin < held_out.size(); begin += pixels) {
      sum += model.bits(std::span<const uint8_t>(held_out).subspan(begin, pixels));
    }
    out.push_back({text(order, order == 1 ? " pixel before" : " pixels before"),
                   sum / static_cast<double>(held_out.size() / pixels)});
  }
  out.push_back({"left and above", bits({{-1, 0}, {0, -1}})});
  out.push_back({"left, above and the two beside that", bits({{-1, 1}, {-1, -1}, {-1, 0}, {0, -1}})});
  return out;
}

Pixels draw_images(Model& model, const ImageGrid& grid, const DrawOptions& options) {
  if (options.count < 1) refuse("[generate.images] expected at least 1; found ", options.count);
  const int64_t pixels = grid.pixels(), count = options.count, levels = model.size().vocabulary - 1;
  if (!options.given.empty() && static_cast<int64_t>(options.given.size()) != count * pixels) {
    fail("[generate.images] expected ", count, " images to keep rows of; found ", options.given.size(), " pixels");
  }
  const at::NoGradGuard no_grad;
  const Evaluating evaluating(model);
  std::vector<Sampler> samplers;
  for (int64_t i = 0; i < count; ++i) {
    SamplerOptions mine = options.sampler;
    mine.seed += static_cast<uint64_t>(i);
    samplers.emplace_back(mine);
  }
  const int64_t kept = options.given.empty() ? 0 : options.given_rows * grid.columns;
  const bool streams = model.traits().streams;
  State state;
  if (streams) state = model.start(count);
  const Tensor all = at::full({count, pixels + 1}, levels, at::kLong);  // the start token first
  Pixels out(static_cast<size_t>(count * pixels));
  std::vector<std::vector<int64_t>> recent(static_cast<size_t>(count));
  int64_t place = 0;
  for (const int64_t raster : grid.order()) {
    const Batch batch{streams ? all.narrow(1, place, 1) : all.narrow(1, 0, place + 1), {}};
    const Tensor scores = model.score(batch, streams ? &state : nullptr, options.sampler.seed).select(1, -1);  // [N, V]
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i * pixels + raster);
      auto& before = recent[static_cast<size_t>(i)];
      const int64_t level = raster < kept
                                ? options.given[at]
                                : samplers[static_cast<size_t>(i)].draw(scores[i].narrow(0, 0, levels), before).token;
      out[at] = static_cast<uint8_t>(level);
      before.push_back(level);
      all[i][place + 1] = level;
    }
    ++place;
    if (options.progress && !options.progress(static_cast<double>(place) / static_cast<double>(pixels))) return {};
  }
  return out;
}

}  // namespace kinfolk
