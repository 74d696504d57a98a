#include "kinfolk/nn/memory/knn.h"

#include "kinfolk/nn/memory/cache.h"
#include "kinfolk/nn/memory/knn_buckets.h"
#include "kinfolk/nn/memory/newest.h"

namespace kinfolk {
namespace {

constexpr auto kKeys = "k", kValues = "v", kAt = "at", kDocument = "document", kMemoryKeys = "memory_k",
               kMemoryValues = "memory_v", kBegin = "begin", kEntered = "entered", kCode = "code", kCentre = "centre",
               kFitted = "fitted";

Tensor unit(const Tensor& x) { return x / x.norm(2, -1, true).clamp_min(1e-12); }

int64_t& number(Tensor& t, int64_t lane) { return t.mutable_data_ptr<int64_t>()[lane * t.size(1)]; }

/// The tensor itself where nobody else holds its memory, else a copy that takes its place.
Tensor& own(Tensor& t) {
  if (t.use_count() > 1 || t.storage().use_count() > 1 || t.requires_grad()) t = t.detach().clone();
  return t;
}

}  // namespace

/// What the state kept and what the call brought.
struct Knn::Columns {
  Tensor k, v;          ///< [B, G, C + L, d]
  Tensor at, document;  ///< int64 [B, C + L]
  int64_t kept;         ///< columns of the state
  Keys keys(int64_t from, int64_t to, bool documents) const {
    Keys out{k.slice(2, from, to), v.slice(2, from, to), at.slice(1, from, to), {}, {}, {}};
    if (documents) out.document = document.slice(1, from, to);
    return out;
  }
};

Knn::Knn(const Options& options, const Context& context) : options_(options), heads_(context.heads) {
  if (!heads_.causal) {
    fail("[", context.path, "] expected a causal pattern with a memory of neighbours; found one that sees the future");
  }
  capacity_ = std::max<int64_t>(1, options.local + options.segment - 1);
  buckets_ = options.buckets > 0 ? std::min(options.buckets, options.memory)
                                 : std::max<int64_t>(1, std::llround(std::sqrt(static_cast<double>(options.memory))));
  gate = register_parameter("gate", fill_parameter(context, {heads_.count}, options.gate));
  if (options.scale == "learned") {
    // Products of unit vectors are about 1/sqrt(d): scores begin as large as those of plain attention.
    log_scale = register_parameter(
        "log_scale", fill_parameter(context, {heads_.count}, 0.5 * std::log(static_cast<double>(heads_.width))));
  }
}

Traits Knn::traits() const {
  Traits traits;
  traits.bounded = true;
  traits.carries = true;
  return traits;
}

int64_t Knn::reach() const { return options_.local + options_.segment + options_.memory; }

int64_t Knn::seen(int64_t position) const {
  return std::min(position + 1, position % options_.segment + 1 + options_.local);
}

double Knn::flops(int64_t length, int64_t from) const {
  // Products with every key that may be found (of buckets: with centres and the keys of those probed), then the read.
  const auto d = static_cast<double>(heads_.width), most = static_cast<double>(options_.memory);
  const double share = static_cast<double>(options_.probes) / static_cast<double>(buckets_);
  double sum = 0;
  for (int64_t t = from; t < from + length; ++t) {
    const int64_t before = t / options_.segment * options_.segment - options_.local;
    const double held = std::min(most, static_cast<double>(std::max<int64_t>(before, 0)));
    const double met = options_.search == "exact" || held < 2 * static_cast<double>(buckets_)
                           ? held
                           : static_cast<double>(buckets_) + held * std::min(share, 1.0);
    sum += 2 * met * d + 4 * std::min(held, static_cast<double>(options_.neighbours)) * d;
  }
  return sum * static_cast<double>(heads_.count);
}

std::string Knn::explain() const {
  return text("attend_nearest(", options_.neighbours, " of ", options_.memory, " keys",
              options_.search == "exact" ? "" : text(", ", options_.probes, " of ", buckets_, " buckets"), ")");
}

std::string Knn::keeps() const {
  return text("the keys of a segment of ", options_.segment, " tokens and the ", options_.local,
              " before it, and a searched memory of ", options_.memory, " older keys, ", options_.neighbours,
              " of them met at a time");
}

State Knn::start(int64_t batch, at::TensorOptions like) const { return start_with(batch, like, options_.memory); }

State Knn::start_with(int64_t batch, at::TensorOptions like, int64_t slots) const {
  const auto whole = like.dtype(at::kLong);
  State state;
  auto& t = state.tensors;
  t[kKeys] = at::zeros({batch, heads_.groups, capacity_, heads_.width}, like);
  t[kValues] = at::zeros_like(t[kKeys]);
  t[kAt] = at::full({batch, capacity_}, -1, whole);
  t[kDocument] = at::zeros({batch, capacity_}, whole);
  t[kMemoryKeys] = at::zeros({batch, heads_.groups, slots, heads_.width}, like);
  t[kMemoryValues] = at::zeros_like(t[kMemoryKeys]);
  t[kBegin] = at::full({batch, 1}, -1, whole);
  t[kEntered] = at::zeros({batch, 1}, whole);
  if (options_.search == "buckets") {
    t[kCode] = at::zeros({batch, heads_.groups, slots}, like.dtype(at::kInt));
    t[kCentre] = at::zeros({batch, heads_.groups, buckets_, heads_.width}, like);
    t[kFitted] = at::zeros({batch, 1}, whole);
  }
  return state;
}

Read Knn::meet(const Fresh& fresh, const Eyes& eyes, Pass& pass, State* state) {
  State whole;
  const bool carried = state != nullptr;
  if (!carried) state = &whole;
  if (state->tensors.empty()) {
    // What is forgotten after the call holds no more than the call.
    const int64_t slots = carried ? options_.memory : std::max<int64_t>(1, std::min(options_.memory, fresh.q.size(2)));
    *state = start_with(fresh.q.size(0), fresh.k.options(), slots);
  }
  auto& kept = state->tensors;
  const auto kind = kept.at(kKeys).scalar_type();  // not that of fresh keys under autocast

  Tensor q = fresh.q, k = fresh.k, for_memory = q * heads_.scale;
  if (log_scale.defined()) {
    for_memory = unit(q) * log_scale.exp().view({1, -1, 1, 1});
    q = for_memory / heads_.scale;  // the branch multiplies by it
    k = unit(k);
  }
  Columns all;
  all.kept = capacity_;
  all.k = at::cat({kept.at(kKeys), k.to(kind)}, 2);
  all.v = at::cat({kept.at(kValues), fresh.v.to(kind)}, 2);
  all.at = at::cat({kept.at(kAt), valid_positions(pass)}, 1);
  all.document = at::cat({kept.at(kDocument), documents(pass)}, 1);
  Tensor met;
  const Tensor far = read_memory(all, for_memory, *state, met);
  if (carried) {
    const Newest newest(all.at, capacity_, pass.valid.defined() && !pass.valid.all().item<bool>());
    kept[kKeys] = newest.keep(all.k, 2);
    kept[kValues] = newest.keep(all.v, 2);
    kept[kAt] = newest.keep(all.at, 1);
    kept[kDocument] = newest.keep(all.document, 1);
  }
  Read read = read_local(all, q, eyes, pass);
  if (!far.defined()) return read;
  const Tensor share = at::sigmoid(gate).view({1, -1, 1, 1}) * met.to(gate.scalar_type()).unsqueeze(1).unsqueeze(-1);
  read.out = share * far.to(read.out.scalar_type()) + (1 - share) * read.out;  // [B, H, L, d]
  return read;
}

Read Knn::read_local(const Columns& all, const Tensor& q, const Eyes& eyes, const Pass& pass) const {
  const bool documents = pass.document.defined();
  const int64_t columns = all.at.size(1);
  const Tensor begin = pass.position.div(options_.segment, "floor") * options_.segment;  // [B, L] s
  const Tensor from = begin - options_.local;
  /// The first column that holds one of them.
  const auto first = [&](const Tensor& wanted) {
    const Tensor some = wanted.any(0).nonzero();
    return some.numel() == 0 ? columns : std::min(all.kept, some[0].item<int64_t>());
  };
  const auto looked = [&](std::vector<Keys> keys) {
    for (Keys& set : keys) set.k = set.k.to(q.scalar_type()), set.v = set.v.to(q.scalar_type());
    return eyes.look(q, std::move(keys), {});
  };
  const Tensor seen = all.at.ge(from.amin(1, true).clamp_min(0));
  // Not in training, where recomputation must drop the same weights with a graph and without.
  if (!at::GradMode::is_enabled() && !is_training()) {
    Keys keys = all.keys(std::min(first(seen), all.kept), columns, documents);
    keys.from = from;
    return looked({keys});
  }
  const Tensor segment = begin.masked_fill(valid_positions(pass).lt(0), INT64_MAX).amin(1, true);
  Keys live = all.keys(std::min(first(seen.logical_and(all.at.ge(segment))), all.kept), columns, documents);
  live.from = begin;
  const Tensor older = seen.logical_and(all.at.lt(begin.amax(1, true)));
  const Tensor some = older.any(0).nonzero();
  if (some.numel() == 0) return looked({live});
  Keys past = all.keys(some[0].item<int64_t>(), some[-1].item<int64_t>() + 1, documents);
  past.k = past.k.detach(), past.v = past.v.detach();
  past.from = from, past.until = begin;
  return looked({past, live});
}

Tensor Knn::read_memory(const Columns& all, const Tensor& q, State& state, Tensor& met) const {
  const int64_t B = q.size(0), L = q.size(2), N = options_.segment, M = options_.local, C = options_.memory;
  auto& kept = state.tensors;
  const int64_t slots = kept.at(kMemoryKeys).size(2);
  const Tensor at = all.at.narrow(1, all.kept, L).to(at::kCPU).contiguous();
  const Tensor document = all.document.narrow(1, all.kept, L).to(at::kCPU).contiguous();
  const auto *places = at.const_data_ptr<int64_t>(), *numbers = document.const_data_ptr<int64_t>();
  Tensor& begins = kept.at(kBegin);
  begins = begins.clone();
  kept.at(kEntered) = kept.at(kEntered).clone();
  // The document of each lane's last token.
  std::vector<int64_t> last(static_cast<size_t>(B), -1);
  if (all.kept > 0) {
    const Tensor before = all.document.select(1, all.kept - 1).to(at::kCPU).contiguous();
    const Tensor filled = all.at.select(1, all.kept - 1).to(at::kCPU).contiguous();
    for (int64_t b = 0; b < B; ++b)
      if (filled.const_data_ptr<int64_t>()[b] >= 0) last[static_cast<size_t>(b)] = before.const_data_ptr<int64_t>()[b];
  }
  std::vector<Tensor> reads, full;
  bool any = false;
  std::vector<SlotRange> seen(static_cast<size_t>(B));
  for (int64_t from = 0; from < L;) {
    // As far as every lane keeps what it sees: to the end of a segment, and to before a new document.
    int64_t until = from;
    std::vector<int64_t> ends(static_cast<size_t>(B), -1), position(static_cast<size_t>(B), -1);
    for (bool stop = false; until < L && !stop; ++until) {
      for (int64_t b = 0; b < B && !stop; ++b) {
        const int64_t p = places[b * L + until], n = numbers[b * L + until];
        const auto lane = static_cast<size_t>(b);
        stop = p >= 0 && last[lane] >= 0 && n != last[lane] && until > from;
      }
      if (stop) break;
      for (int64_t b = 0; b < B; ++b) {
        const int64_t p = places[b * L + until], n = numbers[b * L + until];
        const auto lane = static_cast<size_t>(b);
        if (p < 0) continue;
        if (last[lane] != n || number(begins, b) < 0) {
          number(begins, b) = p;
          if (kept.count(kFitted)) {
            if (Tensor& fitted = kept.at(kFitted); number(fitted, b) != 0) {
              fitted = fitted.clone();
              number(fitted, b) = 0;
            }
          }
        }
        last[lane] = n;
        if (position[lane] < 0) position[lane] = p;
        if ((p + 1) % N == 0) ends[lane] = p + 1, stop = true;
      }
    }
    Buckets buckets;
    for (int64_t b = 0; b < B; ++b) {
      const auto lane = static_cast<size_t>(b);
      const int64_t high = position[lane] < 0 ? 0 : position[lane] / N * N - M,
                    low = std::max(number(begins, b), high - C);
      seen[lane] = {};
      if (position[lane] >= 0 && high > low) seen[lane] = {low % slots, high - low}, any = true;
      if (kept.count(kFitted)) buckets.ready.push_back(number(kept.at(kFitted), b) > 0);
    }
    const Tensor part = q.narrow(2, from, until - from);
    const bool some = std::any_of(seen.begin(), seen.end(), [](const SlotRange& lane) { return lane.count > 0; });
    if (some) {
      if (kept.count(kCode)) buckets.code = kept.at(kCode), buckets.centre = kept.at(kCentre);
      buckets.probes = options_.probes;
      const NearestRead read = attend_nearest(part, kept.at(kMemoryKeys), kept.at(kMemoryValues), seen,
                                              options_.neighbours, kept.count(kCode) ? &buckets : nullptr);
      reads.push_back(read.out);
    } else {
      reads.push_back(at::zeros({B, q.size(1), until - from, heads_.width}, q.options()));
    }
    buckets = {};
    Tensor holds = at::zeros({B, 1}, at::kBool);
    for (int64_t b = 0; b < B; ++b) holds.mutable_data_ptr<bool>()[b] = seen[static_cast<size_t>(b)].count > 0;
    full.push_back(holds.to(q.device()).expand({B, until - from}));
    for (int64_t b = 0; b < B; ++b)
      if (const int64_t end = ends[static_cast<size_t>(b)]; end >= 0) enter(all, state, b, end, number(begins, b));
    from = until;
  }
  if (!any) return {};
  met = at::cat(full, 1);    // [B, L]
  return at::cat(reads, 2);  // [B, H, L, d]
}

void Knn::enter(const Columns& all, State& state, int64_t lane, int64_t end, int64_t begin) const {
  const at::NoGradGuard guard;
  auto& kept = state.tensors;
  const int64_t C = options_.memory, turn = kept.at(kMemoryKeys).size(2), high = end - options_.local;
  const int64_t low = std::max({number(kept.at(kEntered), lane), begin, high - C});
  if (high <= low) return;
  number(kept.at(kEntered), lane) = high;
  const Tensor at = all.at[lane];
  const Tensor columns = at.ge(low).logical_and(at.lt(high)).nonzero().squeeze(1);  // of `all`, oldest first
  const Tensor slots = at.index_select(0, columns).remainder(turn);
  const Tensor k = all.k[lane].detach().index_select(1, columns);  // [G, n, d]
  own(kept.at(kMemoryKeys))[lane].index_copy_(1, slots, k);
  own(kept.at(kMemoryValues))[lane].index_copy_(1, slots, all.v[lane].detach().index_select(1, columns));
  if (!kept.count(kCode)) return;

  Tensor& fitted = kept.at(kFitted);
  const int64_t entered = high - begin;
  Tensor& centre = kept.at(kCentre);
  if (fit_is_due(entered, number(fitted, lane), C, buckets_)) {
    const int64_t held = std::min(entered, C);
    const Tensor places = (at::arange(held, slots.options()) + (high - held)).remainder(turn);
    const Tensor keys = kept.at(kMemoryKeys)[lane].index_select(1, places);
    const Tensor made = fit_centres(keys, buckets_, number(fitted, lane) > 0 ? centre[lane].clone() : Tensor());
    own(centre)[lane].copy_(made);
    own(kept.at(kCode))[lane].index_copy_(1, places, nearest_bucket(keys, made));
    fitted = fitted.clone();
    number(fitted, lane) = entered;
  } else if (number(fitted, lane) > 0) {
    own(kept.at(kCode))[lane].index_copy_(1, slots, nearest_bucket(k, centre[lane]));
  }
}

}  // namespace kinfolk
