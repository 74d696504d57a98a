#include "kinfolk/nn/memory/compressive_slots.h"

namespace kinfolk {

Compressive::Made Compressive::make_slots(const Rows& rows, const Tensor& fresh_at) const {
  const int64_t n = options_.segment, c = options_.rate, batch = rows.at.size(0);
  const auto whole = rows.at.options();
  Made made;
  // The tokens of each lane before this call and after it.
  const Tensor newest = rows.compact_at.select(1, -1), after = newest + 1;                    // [B]
  const Tensor oldest = std::get<0>(fresh_at.masked_fill(fresh_at.lt(0), INT64_MAX).min(1));  // of this call
  const Tensor begun = at::minimum(oldest, after).div(n, "floor"), ended = after.div(n, "floor");
  const int64_t events = (ended - begun).max().item<int64_t>();
  if (events == 0) return made;
  made.end = (begun.unsqueeze(1) + at::arange(1, events + 1, whole)) * n;  // [B, E]
  const Tensor from = left(made.end - n);
  const Tensor count = (left(made.end) - from).masked_fill(made.end.gt(after.unsqueeze(1)), 0);  // [B, E]
  const int64_t most = count.max().item<int64_t>();
  if (most == 0) return made;

  const Tensor place = at::arange(most, whole);
  const auto [column, found] = rows.find(from.unsqueeze(-1) + place);  // [B, E, P]
  const Tensor there = found.logical_and(place.lt(count.unsqueeze(-1)));
  Leaving& leaving = made.leaving;
  leaving.rows = rows_at(rows.compact_x, column).masked_fill(there.logical_not().unsqueeze(-1), 0).flatten(0, 1);
  leaving.count = count.flatten();
  leaving.document = rows_at(rows.compact_document, column).masked_fill(there.logical_not(), -1).flatten(0, 1);
  if (compression->wants_usage()) leaving.usage = rows_at(rows.compact_usage, column).flatten(0, 1);

  const Slots slots = compression->compress(leaving);  // [B E, P / c, D]
  made.slots = slots.rows;
  const Tensor is = (at::arange(most / c, whole) * c).lt(leaving.count.unsqueeze(1));  // [B E, P / c]
  const Tensor present = is.logical_and(there.flatten(0, 1).gather(1, slots.last));
  const Tensor first = leaving.document.gather(1, slots.first), last = leaving.document.gather(1, slots.last);
  made.slot_document = last.masked_fill(first.ne(last).logical_or(present.logical_not()), -1);
  const auto positions = [&](const Tensor& in) {
    const Tensor at = (in + from.flatten().unsqueeze(1)).masked_fill(present.logical_not(), -1);
    return at.view({batch, -1});
  };
  made.rows = slots.rows.detach().view({batch, -1, width_});
  made.at = positions(slots.at), made.first = positions(slots.first), made.last = positions(slots.last);
  made.document = made.slot_document.view({batch, -1});
  return made;
}

Tensor Compressive::loss_of(const Made& made, const Rows& rows, const Eyes& eyes, bool documents) const {
  const Leaving& leaving = made.leaving;
  const int64_t n = options_.segment, c = options_.rate;
  Tensor d;
  if (options_.loss == "autoencoding") {
    const Tensor absent = at::arange(leaving.rows.size(1), leaving.count.options()).ge(leaving.count.unsqueeze(1));
    d = leaving.rows - decoder->forward(made.slots).masked_fill(absent.unsqueeze(-1), 0);
  } else {
    const auto whole = made.end.options();
    const auto [column, there] = rows.find(made.end.unsqueeze(-1) + at::arange(-n, 0, whole));  // [B, E, N]
    const Eyes::Constant asked = eyes.project_constant(rows_at(rows.compact_x, column).flatten(0, 1));
    const Eyes::Constant old = eyes.project_constant(leaving.rows), slot = eyes.project_constant(made.slots);
    const Tensor asking = rows_at(rows.compact_document, column).masked_fill(there.logical_not(), -2).flatten(0, 1);
    const auto hidden = [&](const Tensor& document, int64_t each) {
      const Tensor absent =
          (at::arange(document.size(1), whole) * each).ge(leaving.count.unsqueeze(1)).unsqueeze(1);  // [M, 1, P]
      const Tensor mask =
          documents ? absent.logical_or(document.unsqueeze(1).ne(asking.unsqueeze(2))) : absent;  // [M, N or 1, P]
      return mask.any().item<bool>() ? mask.unsqueeze(1) : Tensor();
    };
    d = read_by_content(asked.q, old.k, old.v, hidden(leaving.document, 1), heads_.scale) -
        read_by_content(asked.q, slot.k, slot.v, hidden(made.slot_document, c), heads_.scale);  // [M, H, N, d]
  }
  Tensor size = size_of_difference(d, options_.measure);
  if (options_.loss == "autoencoding" && options_.measure == "mean_square") {  // rows that are not there do not count
    size = size * static_cast<double>(leaving.rows.size(1)) / leaving.count.clamp_min(1);
  }
  return size.masked_fill(leaving.count.eq(0), 0).sum() * static_cast<double>(n);
}

std::vector<Keys> Compressive::slot_keys(const Tensor& slots, const Tensor& at, const Tensor& document,
                                         const Tensor& tokens, const Tensor& begin, const Eyes& eyes) const {
  const int64_t n = options_.segment, c = options_.rate, count = at.size(1);
  const auto whole = at.options();
  const auto made = [&](const Tensor& s) { return left(s).div(c, "floor"); };  // slots when a segment begins
  // The number of each slot, counted from the newest one, which is of the tokens that left last.
  const Tensor number =
      (at::arange(count, whole) - count + made(tokens.div(n, "floor") * n).unsqueeze(1)).masked_fill(at.lt(0), -1);
  const Tensor asks = begin.ge(0);  // [B, L]
  const Tensor latest = begin.amax(1).clamp_min(0);
  const Tensor earliest = at::minimum(begin.masked_fill(asks.logical_not(), INT64_MAX).amin(1), latest);  // [B]
  const auto within = [&](const Tensor& low, const Tensor& high) {
    return number.ge((made(low) - options_.slots).clamp_min(0).unsqueeze(1))
        .logical_and(number.lt(made(high).unsqueeze(1)));
  };
  const auto [first, last] = filled_columns(within(earliest, latest));
  if (first == last) return {};
  const Eyes::KeyValue old = eyes.project(slots.slice(1, first, last));
  const auto columns = [&, from = first](int64_t low, int64_t high, const Tensor& places) {
    Keys keys{old.k.slice(2, low - from, high - from),
              old.v.slice(2, low - from, high - from),
              places.slice(1, low, high),
              document.slice(1, low, high),
              {},
              {}};
    return keys;
  };
  if (options_.places == "text") {
    Keys keys = columns(first, last, at);
    const Tensor oldest =
        count - made(tokens.div(n, "floor") * n).unsqueeze(1) + made(begin) - options_.slots;  // [B, L]
    keys.from = rows_at(at, oldest.clamp(0, count - 1)).masked_fill(oldest.lt(0), 0);
    keys.until = left(begin);
    return {keys};
  }
  std::vector<Keys> sets;
  const int64_t segments = (latest - earliest).max().item<int64_t>() / n + 1;
  for (int64_t e = 0; e < segments; ++e) {
    const Tensor s = earliest + e * n;
    const Tensor seen = within(s, s);
    const auto [from, to] = filled_columns(seen);
    if (from == to) continue;
    Keys keys = columns(from, to, (number + (left(s) - made(s)).unsqueeze(1)).masked_fill(seen.logical_not(), -1));
    if (segments > 1) {
      keys.from = at::zeros_like(begin).masked_fill(begin.ne(s.unsqueeze(1)), INT64_MAX);
    }
    sets.push_back(std::move(keys));
  }
  return sets;
}

}  // namespace kinfolk
