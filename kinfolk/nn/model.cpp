#include "kinfolk/nn/model.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

constexpr auto kSeen = "seen";          // int64 [B], valid tokens so far
constexpr auto kDocument = "document";  // int64 [B], borders of "segment" so far
constexpr auto kSegment = "segment";    // int64 [B], the last valid token's segment

/// [head] keys that are the model's own.
struct LastNorm {
  std::string norm = "before", norm_kind = "layer";
  template <class Visit>
  void fields(Visit&& visit) {
    visit("norm", norm, "normalise what the head reads", one_of({"before", "none"}));
    visit("norm_kind", norm_kind, "which normalisation", one_of({"layer", "rms"}));
  }
};

Spec slot(const Value& tree, const std::string& key, const char* standard) {
  const Value* value = tree.find(key);
  if (!value) return standard;
  if (value->as<std::string>() || value->find("kind")) return *value;
  if (!value->as<Value::Table>()) {
    refuse(value->place.text(), "[", key, "] expected a component: its name, or a table with a kind; found ",
           value->kind());
  }
  Value table = *value;
  table.set("kind", Value(standard));
  return table;
}

/// The whole numbers in words that are `form` with numbers for its N and M ("every N"); none for other words.
std::vector<int64_t> numbers_in(const std::string& words, const std::string& form) {
  std::vector<int64_t> out;
  size_t at = 0;
  for (const char c : form) {
    if (c != 'N' && c != 'M') {
      if (at >= words.size() || words[at++] != c) return {};
      continue;
    }
    const size_t end = std::min(words.find_first_not_of("0123456789", at), words.size());
    if (end == at || end - at > 6) return {};
    out.push_back(std::stoll(words.substr(at, end - at)));
    at = end;
  }
  return at == words.size() ? out : std::vector<int64_t>{};
}

/// The layers of a group that stands among others: `repeat = "every N"`, the last of every N, of a shorter depth its
/// last; `repeat = "layer N of M"`, the one that ends N parts of a depth of M parts. Empty: another kind.
std::vector<bool> woven_layers(const Value& group, int64_t depth) {
  const Value* repeat = group.find("repeat");
  const auto* words = repeat ? repeat->as<std::string>() : nullptr;
  if (!words) return {};
  std::vector<bool> takes(static_cast<size_t>(depth), false);
  if (const auto every = numbers_in(*words, "every N"); !every.empty() && every[0] >= 2) {
    for (int64_t i = std::min(every[0], depth) - 1; i < depth; i += every[0]) takes[static_cast<size_t>(i)] = true;
    return takes;
  }
  if (const auto part = numbers_in(*words, "layer N of M"); !part.empty() && part[0] >= 1 && part[0] <= part[1]) {
    takes[static_cast<size_t>((depth * part[0] + part[1] - 1) / part[1] - 1)] = true;
    return takes;
  }
  return {};
}

/// How many layers a [[layers]] group stands for; -1: what the others leave of the depth.
int64_t repeats(const Value& group, const std::string& path) {
  const Value* repeat = group.find("repeat");
  if (!repeat) return 1;
  if (const auto* count = repeat->as<int64_t>(); count && *count >= 1) return *count;
  if (const auto* words = repeat->as<std::string>(); words && (*words == "all" || *words == "all but last")) return -1;
  refuse(repeat->place.text(), "[", path,
         ".repeat] expected a number of layers, all, all but last, every N, or layer N of M; ", "found ",
         write_toml_value(*repeat));
}

/// The [[layers]] group of each layer, in order.
std::vector<size_t> arrange(const Value& layers, int64_t depth) {
  const auto& groups = *layers.as<Value::Array>();
  int64_t counted = 0;
  std::optional<size_t> open, woven;
  std::vector<bool> takes;  // the layers of the group that stands among the others
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::string path = "layers." + std::to_string(g);
    if (auto own = woven_layers(groups[g], depth); !own.empty()) {
      if (woven) {
        refuse(groups[g].place.text(), "[", path, ".repeat] expected one group with every or layer; found two");
      }
      woven = g, takes = std::move(own);
      counted += std::count(takes.begin(), takes.end(), true);
      continue;
    }
    const int64_t count = repeats(groups[g], path);
    if (count > 0) {
      counted += count;
      continue;
    }
    if (open) refuse(groups[g].place.text(), "[", path, ".repeat] expected one group that fills the depth; found two");
    open = g;
  }
  const auto rest = depth - counted;
  if (open) {
    const Value& repeat = *groups[*open].find("repeat");
    const std::string path = "layers." + std::to_string(*open) + ".repeat";
    const bool but_last = *repeat.as<std::string>() == "all but last";
    if (but_last && (counted != 1 || *open + 2 != groups.size())) {
      refuse(repeat.place.text(), "[", path, "] expected one layer after all but last; found ", counted);
    }
    if (rest < 1) {
      refuse(repeat.place.text(), "[", path, "] expected a size.depth above ", counted,
             ", the layers of the other groups; ", "found ", depth);
    }
  }
  std::vector<size_t> out;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (woven == g) continue;
    const int64_t count = repeats(groups[g], "layers." + std::to_string(g));
    out.insert(out.end(), static_cast<size_t>(count > 0 ? count : rest), g);
  }
  if (woven) {
    if (counted + (open ? rest : 0) != depth) {
      refuse(groups[*woven].place.text(), "[layers.", *woven, ".repeat] expected a size.depth of ", counted,
             " layers, or a group that fills it; found ", depth);
    }
    for (size_t i = 0; i < takes.size(); ++i) {
      if (takes[i]) out.insert(out.begin() + static_cast<int64_t>(i), *woven);
    }
  }
  return out;
}

/// Names that number fields of a recipe may use: its own [let], then the sizes.
Value names_of(const Recipe& recipe, Size size) {
  const Value* own = recipe.tree.find("let");
  Value let = own ? *own : Value(Value::Table{});
  const Value sizes = write_options(size);
  for (const auto& [key, value] : *sizes.as<Value::Table>())
    if (!let.find(key)) let.set(key, value);
  return let;
}

}  // namespace

Model::Model(const Recipe& recipe, const Context& outer) : recipe_(recipe), size_(outer.size) {
  Context context = outer;
  context.let = names_of(recipe, size_);
  context.shared = &shared_;
  if (size_.width % size_.heads != 0) {
    refuse("[size.width] expected a multiple of size.heads (", size_.heads, "); found ", size_.width);
  }
  const Value* table = recipe.tree.find("layers");
  if (!table || !table->as<Value::Array>() || table->as<Value::Array>()->empty()) {
    refuse(recipe.tree.place.text(), "[layers] expected at least one [[layers]]; found none");
  }
  input_ = register_module(
      "input", registry<Input>().create(slot(recipe.tree, "input", "tokens"), context.at("input"), "input"));
  context.tied = input_->tied();

  const auto groups = arrange(*table, size_.depth);
  const auto list = register_module("layers", std::make_shared<List>());
  for (size_t i = 0; i < groups.size(); ++i) {
    context.layer = static_cast<int64_t>(i);
    const Value& group = (*table->as<Value::Array>())[groups[i]];
    layers_.push_back(std::make_shared<Layer>(group, context, "layers." + std::to_string(groups[i])));
    list->add(i, layers_.back());
  }
  context.layer = 0;
  depth_ = register_module("depth",
                           registry<Depth>().create(slot(recipe.tree, "depth", "once"), context.at("depth"), "depth"));
  depth_->start(layers_, 1, context.like.device(at::kMeta));  // a depth refuses layers that it cannot run

  const Spec head = slot(recipe.tree, "head", "lm");
  LastNorm last;
  FieldReader reader(head.value, "head", &context.let);
  last.fields(reader);
  if (last.norm == "before") {
    last_norm_ = register_module("norm", std::make_shared<Norm>(context.at("head"), last.norm_kind, size_.width));
  }
  head_ = register_module("head", registry<Head>().create(head, context.at("head"), "head", {"norm", "norm_kind"}));
  if (const Value* losses = recipe.tree.find("losses"))
    for (const auto& [name, weight] : *losses->as<Value::Table>()) {
      if (const auto* whole = weight.as<int64_t>()) {
        loss_weights_[name] = static_cast<double>(*whole);
      } else if (const auto* number = weight.as<double>()) {
        loss_weights_[name] = *number;
      } else {
        refuse(weight.place.text(), "[losses.", name, "] expected a number; found ", weight.kind());
      }
    }
}

std::shared_ptr<Model> Model::make(const Recipe& recipe, const Size& size, uint64_t seed, at::TensorOptions like) {
  Context context;
  context.size = size;
  context.like = like.requires_grad(std::nullopt);
  context.generator = at::detail::createCPUGenerator(seed);
  try {
    return std::make_shared<Model>(recipe, context);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {  // what a recipe and a size ask for cannot be
    throw UsageError(error.what());
  }
}

Traits Model::traits() const {
  Traits out = both(depth_->traits(), input_->traits());
  for (const auto& layer : layers_) out = both(out, layer->traits());
  return out;
}

State Model::start(int64_t batch, at::TensorOptions like) const {
  const Tensor sample = weights().front().second;
  if (!like.has_dtype()) like = like.dtype(sample.dtype());
  if (!like.has_device()) like = like.device(sample.device());
  State state = depth_->start(layers_, batch, like);
  for (const char* name : {kSeen, kDocument, kSegment}) state.tensors[name] = at::zeros({batch}, like.dtype(at::kLong));
  return state;
}

void Model::prepare(Pass& pass) const {
  const Tensor& tokens = pass.batch.tokens;
  if (tokens.dim() != 2 || tokens.scalar_type() != at::kLong) {
    fail("[batch] expected tokens int64 [B, L]; found ", tokens.scalar_type(), " ", tokens.sizes());
  }
  const auto fact = [&](const char* name, at::ScalarType type) {
    const Tensor t = pass.batch.fact(name);
    if (t.defined() && (t.sizes() != tokens.sizes() || t.scalar_type() != type)) {
      fail("[batch.", name, "] expected ", type, " ", tokens.sizes(), "; found ", t.scalar_type(), " ", t.sizes());
    }
    return t;
  };
  const int64_t batch = tokens.size(0), length = tokens.size(1);
  if (pass.state) {
    const auto seen = pass.state->tensors.find(kSeen);
    if (seen == pass.state->tensors.end() || seen->second.size(0) != batch) {
      fail("[state] expected a state of ", batch, " lanes made by this model's start; found ",
           seen == pass.state->tensors.end() ? "another" : text("one of ", seen->second.size(0)));
    }
  }
  pass.valid = fact("valid", at::kBool);
  if (const Tensor lengths = pass.batch.fact("lengths"); lengths.defined()) {
    const Tensor within = at::arange(length, tokens.options()).unsqueeze(0) < lengths.unsqueeze(1);  // [B, L]
    pass.valid = pass.valid.defined() ? pass.valid & within : within;
  }
  if (pass.valid.defined() && pass.valid.all().item<bool>()) pass.valid = Tensor();
  const Tensor valid = pass.valid.defined() ? pass.valid : at::ones(tokens.sizes(), tokens.options().dtype(at::kBool));
  const Tensor zero = at::zeros({batch}, tokens.options());
  const Tensor seen = pass.state ? pass.state->tensors.at(kSeen) : zero;
  const Tensor count = valid.cumsum(1);  // [B, L]
  pass.position = (seen.unsqueeze(1) + count - 1).masked_fill(valid.logical_not(), -1);

  pass.document = pass.first = Tensor();
  const Tensor before = pass.state ? pass.state->tensors.at(kDocument) : zero;
  const Tensor segment = fact("segment", at::kLong);
  if (length == 0) return;
  if (segment.defined()) {
    // A token starts a document when its segment differs from that of the valid token before it, in this call or the
    // last one.
    const Tensor last = at::arange(length, tokens.options()).where(valid, -1);
    const Tensor newest = std::get<0>(at::cummax(last, 1));                       // [B, L], the last valid token so far
    Tensor held = segment.gather(1, newest.clamp_min(0));                         // its segment
    const Tensor carried = pass.state ? pass.state->tensors.at(kSegment) : zero;  // [B]
    held = held.where(newest >= 0, carried.unsqueeze(1));
    const Tensor previous = at::cat({carried.unsqueeze(1), held.slice(1, 0, length - 1)}, 1);
    const Tensor known = seen.unsqueeze(1) + count - valid.to(at::kLong) > 0;
    pass.first = valid & known & (segment != previous);
    pass.document = before.unsqueeze(1) + pass.first.cumsum(1);
    if (!pass.first.any().item<bool>()) pass.first = Tensor();
  } else if (pass.state) {
    pass.document = before.unsqueeze(1).expand_as(tokens);
  }
  if (pass.document.defined() && pass.document.max().item<int64_t>() == 0) pass.document = Tensor();
}

namespace {

/// What a part keeps holds no memory that it does not show: a view would keep a call's tensors alive. (What keeps
/// columns, at positions "at", does so by itself, and caches with room for the next ones: Newest.)
void compact(State& state) {
  if (!state.tensors.count("at")) {
    for (auto& [name, tensor] : state.tensors) {
      if (tensor.requires_grad() || !tensor.has_storage() || tensor.storage().nbytes() <= tensor.nbytes()) continue;
      tensor = tensor.clone(at::MemoryFormat::Contiguous);
    }
  }
  for (auto& [name, part] : state.parts) compact(part);
}

}  // namespace

void Model::advance(Pass& pass) const {
  if (!pass.state || pass.batch.tokens.size(1) == 0) return;
  auto& tensors = pass.state->tensors;
  const Tensor seen = tensors.at(kSeen), fresh = at::maximum(seen, std::get<0>((pass.position + 1).max(1)));
  if (pass.document.defined()) tensors[kDocument] = pass.document.select(1, -1).clone();
  if (const Tensor segment = pass.batch.fact("segment"); segment.defined()) {
    const Tensor last = std::get<1>(pass.position.max(1));  // the last valid token has the highest position
    tensors[kSegment] = segment.gather(1, last.unsqueeze(1)).squeeze(1).where(fresh > seen, tensors.at(kSegment));
  }
  tensors[kSeen] = fresh;
  compact(*pass.state);
}

Tensor Model::finish(const Tensor& x) const { return last_norm_ ? last_norm_->forward(x) : x; }

void Model::wrap_head(const std::function<std::shared_ptr<Head>(std::shared_ptr<Head> head)>& wrap) {
  head_ = wrap(head_);
  replace_module("head", head_);
}

Tensor Model::hidden(Pass& pass) {
  prepare(pass);
  Tensor x = mask_invalid(input_->embed(pass), pass);  // [B, L, D]
  if (x.size(1) > 0) {
    for (const auto& layer : layers_) layer->checkpointing = checkpointing;
    const ReadOut read_out = [this, &pass](const Tensor& at) { return head_->read(finish(at), pass); };
    x = depth_->run(x, layers_, read_out, pass, pass.state);
  }
  advance(pass);
  return mask_invalid(finish(x), pass);
}

Tensor Model::forward(Pass& pass) {
  const Tensor x = hidden(pass);
  return mask_invalid(head_->read(x, pass), pass);  // [B, L, V]
}

Tensor Model::score(const Batch& batch, State* state, uint64_t seed, int64_t newest) {
  struct Evaluating {  // back to training however the call ends
    Model& model;
    const bool was = model.is_training();
    explicit Evaluating(Model& m) : model(m) { model.eval(); }
    ~Evaluating() { model.train(was); }
  };
  const at::NoGradGuard guard;
  const Evaluating evaluating(*this);
  Pass pass{batch};
  pass.state = state;
  pass.seed = seed;
  pass.newest = newest;
  return forward(pass);
}

double Model::flops(int64_t length, int64_t from) const {
  return depth_->flops(layers_, length, from) + head_->flops(length);
}

std::vector<std::pair<std::string, Tensor>> Model::weights() const { return trainable(*this); }

int64_t Model::parameter_count() const {
  int64_t sum = 0;
  for (const auto& [name, tensor] : weights()) sum += tensor.numel();
  return sum;
}

}  // namespace kinfolk
