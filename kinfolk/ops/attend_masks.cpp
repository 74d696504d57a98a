#include "kinfolk/ops/attend_masks.h"

#include "kinfolk/core/parallel.h"
#include "kinfolk/kernels/attend_mask.h"

namespace kinfolk {

const Mask& Masks::of(const Piece& piece) {
  if (!piece.masked) return nothing_;
  const auto key = sliding_key(piece);
  if (!key.empty() && key == key_) return mask_;
  key_ = key;
  if (type_ == at::kDouble) {
    build<double>(piece);
  } else {
    build<float>(piece);
  }
  return mask_;
}

/// Where all positions are consecutive and alike, what the mask depends on; else empty.
std::vector<int64_t> Masks::sliding_key(const Piece& piece) const {
  const Layout& layout = call_.layout;
  if (!layout.alike() || layout.lanes() == 0 || layout.q_document().defined()) return {};
  const int64_t* q_at = layout.q_at().row(0) + piece.begin;
  if (!consecutive(q_at, piece.length)) return {};
  std::vector<int64_t> key = {piece.length};
  for (size_t s = 0; s < piece.keys.size(); ++s) {
    const auto [first, count] = piece.keys[s];
    if (layout.set(s).from.defined() || layout.set(s).until.defined()) return {};
    if (count == 0) {
      key.insert(key.end(), {0, 0});
      continue;
    }
    const int64_t* k_at = layout.set(s).at.row(0) + first;
    if (!consecutive(k_at, count)) return {};
    key.insert(key.end(), {q_at[0] - k_at[0], count});
  }
  return key;
}

template <class T>
void Masks::build(const Piece& piece) {
  const Layout& layout = call_.layout;
  const int64_t lanes = layout.lanes(), heads = call_.table.defined() ? call_.table.size(0) : 1;
  mask_.values = at::empty({lanes, heads, piece.length, piece.columns}, type_);
  std::vector<uint8_t> seen(static_cast<size_t>(lanes * piece.length), 0);
  const auto row = [](const HostRows& rows, int64_t lane, int64_t first) {
    return rows.defined() ? rows.row(lane) + first : nullptr;
  };
  T* out = mask_.values.data_ptr<T>();
  const int64_t size = piece.length * piece.columns, grain = std::max<int64_t>(1, (int64_t{1} << 16) / size);
  parallel_for(0, lanes * heads, grain, [&](int64_t begin, int64_t end) {
    std::vector<uint8_t> spare(static_cast<size_t>(piece.length));
    AttendMask<T> mask;
    mask.rows = piece.length;
    mask.nearest = call_.nearest, mask.farthest = call_.farthest;
    mask.lowest = call_.lowest;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t lane = item / heads, head = item % heads;
      mask.table = call_.table.defined() ? call_.table.const_data_ptr<T>() + head * call_.table.size(1) : nullptr;
      uint8_t* mine = head == 0 ? seen.data() + lane * piece.length : spare.data();  // heads see the same
      int64_t column = 0;
      for (size_t s = 0; s < piece.keys.size(); ++s) {
        const auto [first, count] = piece.keys[s];
        if (count == 0) continue;
        const Layout::Set& set = layout.set(s);
        mask.q_at = row(layout.q_at(), lane, piece.begin), mask.k_at = row(set.at, lane, first);
        mask.q_document = set.document.defined() ? row(layout.q_document(), lane, piece.begin) : nullptr;
        mask.k_document = row(set.document, lane, first);
        mask.from = row(set.from, lane, piece.begin), mask.until = row(set.until, lane, piece.begin);
        mask.columns = count;
        fill_attend_mask(mask, out + item * size + column, piece.columns, mine);
        column += count;
      }
    }
  });
  mask_.empty = Tensor();
  if (std::find(seen.begin(), seen.end(), 0) != seen.end()) {
    mask_.empty = at::empty({lanes, 1, piece.length}, at::kBool);
    bool* empty = mask_.empty.data_ptr<bool>();
    for (size_t i = 0; i < seen.size(); ++i) empty[i] = !seen[i];
  }
}

void make_pieces(AttendCall& call) {
  const Layout& layout = call.layout;
  const Meeting all = layout.all();
  const bool ranged = call.bands[0].nearest > all.nearest || call.bands[0].farthest < all.farthest;
  const bool plain = !all.pattern && !all.validity && !all.document && !all.limits && !ranged && !call.table.defined();
  if (all.any && plain) {  // every pair is seen
    Piece piece;
    piece.length = call.length, piece.masked = false;
    for (size_t s = 0; s < call.keys.size(); ++s) {
      piece.keys.emplace_back(0, layout.set(s).length);
      piece.columns += layout.set(s).length;
    }
    call.pieces = {piece};
    return;
  }
  // The triangle: one set whose keys stand where the queries do, one after the other.
  const int64_t length = call.length;
  if (all.any && call.keys.size() == 1 && layout.alike() && !all.validity && !all.document && !all.limits &&
      !call.table.defined() && call.nearest == 0 && call.farthest >= length - 1 && layout.set(0).length == length &&
      consecutive(layout.q_at().row(0), length) &&
      std::equal(layout.q_at().row(0), layout.q_at().row(0) + length, layout.set(0).at.row(0))) {
    Piece piece;
    piece.length = piece.columns = length, piece.masked = false, piece.causal = true;
    piece.keys = {{0, length}};
    call.pieces = {piece};
    return;
  }
  for (int64_t block = 0; block < layout.query_blocks(); ++block) {
    Piece piece;
    piece.begin = block * call.query_tile;
    piece.length = std::min(call.query_tile, length - piece.begin);
    for (size_t s = 0; s < call.keys.size(); ++s) {
      int64_t first = -1, last = -1;
      for (int64_t b = 0; b < layout.key_blocks(s); ++b)
        if (layout.meet(block, s, b).any) {
          if (first < 0) first = b;
          last = b;
        }
      const int64_t begin = std::max<int64_t>(first, 0) * kPieceKeys;
      const int64_t end = first < 0 ? begin : std::min(layout.set(s).length, (last + 1) * kPieceKeys);
      piece.keys.emplace_back(begin, end - begin);
      piece.columns += end - begin;
    }
    call.pieces.push_back(std::move(piece));
  }
}

}  // namespace kinfolk
