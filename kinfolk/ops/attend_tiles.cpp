#include "kinfolk/ops/attend_tiles.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/kernels/attend_drop.h"

namespace kinfolk {
namespace {

Tensor within(const Tensor& distance, int64_t nearest, int64_t farthest) {
  return distance.ge(nearest).logical_and_(distance.le(farthest));
}

}  // namespace

std::vector<TileAt> Tiles::of_block(int64_t block) const {
  std::vector<TileAt> out;
  const int64_t row = block * call_.query_tile, rows = std::min(call_.query_tile, call_.length - row);
  for (size_t set = 0; set < call_.keys.size(); ++set)
    for (int64_t b = 0; b < call_.layout.key_blocks(set); ++b) {
      const Meeting meeting = call_.layout.meet(block, set, b);
      const int64_t column = b * call_.key_tile;
      if (meeting.any && !bands_of(set, meeting).empty()) {
        out.push_back(
            {row, rows, set, column, std::min(call_.key_tile, call_.layout.set(set).length - column), meeting});
      }
    }
  return out;
}

Tiles::Scores Tiles::scores(const TileAt& t, const std::vector<Tensor>& q) const {
  Scores out;
  const auto bands = bands_of(t.set, t.meeting);
  const bool one = bands.size() == 1 && call_.bands[bands[0]].nearest <= t.meeting.nearest &&
                   call_.bands[bands[0]].farthest >= t.meeting.farthest;
  const Keys& keys = call_.keys[t.set];
  const Tensor i = lanes(call_.q_at).narrow(1, t.row, t.rows).unsqueeze(1).unsqueeze(3);
  const Tensor j = lanes(keys.at).narrow(1, t.column, t.columns).unsqueeze(1).unsqueeze(2);
  if (!one || !call_.score.empty() || (t.meeting.pattern && call_.pattern->interval())) out.distance = i - j;
  see(out, t, i, j);
  Tensor covered;
  for (const size_t band : bands) {
    const Tensor k = columns(inputs_[places_.k(t.set, band)], t);
    const Tensor product = at::matmul(q[band], k.transpose(2, 3))
                               .mul_(call_.bands[band].scale)
                               .view({call_.batch, call_.heads, t.rows, t.columns});
    if (one) {
      out.raw = product;
      out.bands.emplace_back(band, Tensor());
      break;
    }
    const Tensor inside = within(out.distance, call_.bands[band].nearest, call_.bands[band].farthest);
    out.raw = out.raw.defined() ? at::where(inside, product, out.raw) : product.masked_fill(inside.logical_not(), 0);
    covered = covered.defined() ? covered.logical_or(inside) : inside;
    out.bands.emplace_back(band, inside);
  }
  if (covered.defined()) out.visible = out.visible.defined() ? out.visible.logical_and(covered) : covered;
  return out;
}

Tensor Tiles::steps(Tensor scores, const Tensor& q_raw, const Tensor& distance, const TileAt& t,
                    const std::vector<Tensor>& prepared) const {
  if (call_.score.empty()) return scores;
  const Tensor near = distance.clamp(t.meeting.nearest, t.meeting.farthest);
  size_t first = 0;
  for (size_t s = 0; s < call_.score.size(); ++s) {
    const std::vector<Tensor> own(prepared.begin() + static_cast<int64_t>(first),
                                  prepared.begin() + static_cast<int64_t>(first + call_.prepared[s]));
    first += call_.prepared[s];
    const Tensor changed = call_.score[s]->apply({scores, q_raw, near, t.meeting.nearest, t.meeting.farthest}, own);
    if (!changed.defined() || changed.sizes() != scores.sizes()) {
      fail("[attend] expected a score step to return scores ", scores.sizes(), "; found ",
           changed.defined() ? changed.sizes() : at::IntArrayRef{});
    }
    scores = changed;
  }
  return scores;
}

Tensor Tiles::value_rows(const TileAt& t) const {
  if (!call_.values_input) return {};
  const Tensor i = lanes(call_.q_at).narrow(1, t.row, t.rows).unsqueeze(1).unsqueeze(3);
  const Tensor j = lanes(call_.keys[t.set].at).narrow(1, t.column, t.columns).unsqueeze(1).unsqueeze(2);
  return (i - j - call_.values_lowest).clamp_(0, inputs_[call_.values_input].size(0) - 1);
}

Tensor Tiles::kept(const TileAt& t, const Tensor& like) const {
  if (call_.dropout == 0) return {};
  const auto host = [](const Tensor& x, int64_t first, int64_t count) {
    return x.narrow(1, first, count).to(at::kCPU).contiguous();
  };
  const Tensor queries = host(call_.names.query, t.row, t.rows);
  const Tensor keys = host(call_.keys[t.set].name, t.column, t.columns);
  const Tensor out = at::empty({call_.batch, call_.heads, t.rows, t.columns}, at::kFloat);
  auto* to = out.data_ptr<float>();
  const int32_t limit = kernels::drop_limit(call_.dropout);
  std::vector<kernels::DropWords> words(static_cast<size_t>(t.columns));
  for (int64_t b = 0; b < call_.batch; ++b) {
    const int64_t* query = queries.const_data_ptr<int64_t>() + b * t.rows;
    const int64_t* key = keys.const_data_ptr<int64_t>() + b * t.columns;
    for (int64_t c = 0; c < t.columns; ++c) words[static_cast<size_t>(c)] = kernels::drop_key(key[c]);
    for (int64_t h = 0; h < call_.heads; ++h) {
      const auto& names = call_.names.head;
      const uint64_t head = kernels::drop_head(call_.seed, names.empty() ? h : names[static_cast<size_t>(h)]);
      for (int64_t r = 0; r < t.rows; ++r, to += t.columns) {
        const auto mine = kernels::drop_query(head, query[r]);
        for (int64_t c = 0; c < t.columns; ++c) {
          to[c] = kernels::dropped(mine, words[static_cast<size_t>(c)], limit) ? 0.f : 1.f;
        }
      }
    }
  }
  return out.to(like.options()).div_(1 - call_.dropout);
}

std::vector<size_t> Tiles::bands_of(size_t set, const Meeting& meeting) const {
  std::vector<size_t> out;
  for (size_t b = 0; b < call_.bands.size(); ++b)
    if (inputs_[places_.k(set, b)].defined() && call_.bands[b].nearest <= meeting.farthest &&
        call_.bands[b].farthest >= meeting.nearest) {
      out.push_back(b);
    }
  return out;
}

void Tiles::see(Scores& out, const TileAt& t, const Tensor& i, const Tensor& j) const {
  const auto add = [&](const Tensor& mask) {
    out.visible = out.visible.defined() ? out.visible.logical_and(mask) : mask;
  };
  const Keys& keys = call_.keys[t.set];
  const auto row = [&](const Tensor& x) { return lanes(x).narrow(1, t.row, t.rows).unsqueeze(1).unsqueeze(3); };
  const auto column = [&](const Tensor& x) {
    return lanes(x).narrow(1, t.column, t.columns).unsqueeze(1).unsqueeze(2);
  };
  if (t.meeting.pattern) {
    add(call_.pattern->interval() ? within(out.distance, call_.pattern->nearest(), call_.pattern->farthest())
                                  : call_.pattern->sees(i, j));
  }
  if (t.meeting.validity) add(i.ge(0).logical_and(j.ge(0)));
  if (t.meeting.document) add(row(call_.q_document).eq(column(keys.document)));
  if (t.meeting.limits && keys.from.defined()) add(j.ge(row(keys.from)));
  if (t.meeting.limits && keys.until.defined()) add(j.lt(row(keys.until)));
}

}  // namespace kinfolk
