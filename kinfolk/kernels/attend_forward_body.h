// The forward pass of attend_body.h.

/// Keys and values of a group, packed tile by tile when they are first needed.
class Packed {
 public:
  Packed(const Head& head, bool direct) : head_(head), direct_(direct) {}
  void move(int64_t group) {
    group_ = group;
    parts_.resize(head_.sets.size());
    for (size_t s = 0; s < parts_.size(); s++) {
      Part& part = parts_[s];
      const int64_t tiles = static_cast<int64_t>(head_.sets[s].tiles.size());
      part.done.assign(static_cast<size_t>(tiles) * (bands() + 1), 0);
      // Rows of values that lie together are read where they lie.
      part.copies = head_.sets[s].index || head_.a.value_width % 16 != 0 ||
                    (!direct_ && head_.a.sets[s].v.row != head_.value_width);
      if (tiles > part.room) {
        part.room = tiles;
        part.panels.assign(bands(), nullptr);
        for (size_t b = 0; b < bands() && !direct_; b++) {
          if (!head_.a.sets[s].keys[b].k.data) continue;
          part.panels[b] = scratch_.take(tiles * (kAttendColumns / 16) * panel_stride(head_.a.width));
        }
        part.rows = nullptr;
      }
      if (part.copies && !part.rows) part.rows = scratch_.take(part.room * kAttendColumns * head_.value_width);
    }
  }
  void need(size_t s, size_t t, size_t band) {
    Part& part = parts_[s];
    char* done = part.done.data() + t * (bands() + 1);  // keys of each band, then values
    const KeyTile& k = head_.sets[s].tiles[t];
    if (!direct_ && !std::exchange(done[band], 1)) {
      pack_panels(head_.keys(s, band, group_), k.first, k.count, head_.a.width, panel_stride(head_.a.width),
                  part.panels[band] + k.first / 16 * panel_stride(head_.a.width));
    }
    if (part.copies && !std::exchange(done[bands()], 1)) {
      pack_rows(head_.values(s, group_), k.first, k.count, head_.a.value_width, head_.value_width, 1,
                part.rows + k.first * head_.value_width);
    }
  }
  const float* panels(size_t s, size_t band) const { return parts_[s].panels[band]; }
  const float* rows(size_t s, const KeyTile& k) const {
    return parts_[s].copies ? parts_[s].rows + k.first * head_.value_width
                            : head_.values(s, group_).data + k.first * head_.a.sets[s].v.row;
  }
  int64_t stride(size_t s) const { return parts_[s].copies ? head_.value_width : head_.a.sets[s].v.row; }

 private:
  size_t bands() const { return head_.a.bands.size(); }

  struct Part {
    std::vector<float*> panels;
    float* rows = nullptr;
    int64_t room = 0;
    bool copies = false;
    std::vector<char> done;
  };
  const Head& head_;
  const bool direct_;
  int64_t group_ = 0;
  std::vector<Part> parts_;
  Scratch scratch_;
};

struct ForwardTile {
  std::vector<float*> q;  ///< of each band
  float *by, *s, *out, *sum, *bins;
  float highest[kAttendRows];
};

/// Scores of few rows, straight from the keys as they lie.
inline void few_scores(const Tokens& keys, const KeyTile& k, const Strip& strip, int64_t width, const float* q,
                       float* s) {
  for (int64_t c = strip.begin; c < std::min(strip.end, k.count); c++) {
    const float* key = keys.at(k.first + c);
    for (int64_t r = strip.row; r < strip.row + strip.rows; r++) s[r * kStride + c] = dot(q + r * width, key, width);
  }
}

inline void forward_tile(const Head& head, const Packed& packed, bool few, int64_t group, const QueryTile& q,
                         size_t set, size_t band, const KeyTile& k, TileSight& sight, ForwardTile& t) {
  head.complete_mask(q, k, set, sight, t.by);
  Drops drops;
  head.draw(q, k, set, drops);
  for (int n = 0; n < sight.strips; n++) {
    const Strip& strip = sight.strip[n];
    float* s = t.s + strip.row * kStride;
    if (few) {
      few_scores(head.keys(set, band, group), k, strip, head.width, t.q[band], t.s);
    } else {
      panel_product<Into::set>(strip.rows, strip.end - strip.begin, head.a.width, t.q[band] + strip.row * head.width,
                               head.width, packed.panels(set, band), k.first + strip.begin, panel_stride(head.a.width),
                               s + strip.begin, kStride);
    }
    head.scale(q, k, sight, strip, t.s, nullptr);
    if (head.by_panels) head.add_by(q, k, sight, strip, t.by, t.s);
    head.add_spans(q, k, set, sight, strip, t.s);
    for (int64_t r = strip.row; r < strip.row + strip.rows; r++, s += kStride) {
      const RowSight row = head.row(q, k, sight, r);
      if (row.low >= row.high) {
        for (int64_t c = strip.begin; c < strip.end; c += KINFOLK_LANES) store(s + c, Lane{});
        continue;
      }
      float m = 0;
      by_sight(row, strip, [&]<bool table, Part part>() {
        m = softmax_row<table, part>(s, strip.begin, strip.end, row, t.highest[r], t.sum + r * KINFOLK_LANES);
      });
      if (m != t.highest[r] && t.highest[r] != kNever) {
        const Lane shrink = exp2_of(all(t.highest[r] - m));
        float* out = t.out + r * head.value_width;
        for (int64_t i = 0; i < head.value_width; i += KINFOLK_LANES) store(out + i, load(out + i) * shrink);
        for (int64_t b = 0; b < head.a.value_bins; b++) t.bins[r * head.a.value_bins + b] *= shrink[0];
      }
      t.highest[r] = m;
      if (head.a.keep < 1) drop_row(s, strip.begin, strip.end, drops, r);
      if (head.a.value_rows) head.add_bins(q, k, set, sight, strip, r, s, t.bins + r * head.a.value_bins);
    }
    const int64_t depth = std::min(strip.end, k.count) - strip.begin;
    product<Into::add>(strip.rows, head.value_width, depth, t.s + strip.row * kStride + strip.begin, kStride, 1,
                       packed.rows(set, k) + strip.begin * packed.stride(set), packed.stride(set),
                       t.out + strip.row * head.value_width, head.value_width);
  }
}

inline void finish_tile(const Head& head, const QueryTile& q, const ForwardTile& t) {
  const Attend& a = head.a;
  if (a.value_rows) {
    product<Into::add>(q.count, head.value_width, a.value_bins, t.bins, a.value_bins, 1, a.value_rows, head.value_width,
                       t.out, head.value_width);
  }
  float* lse = a.lse + (head.lane * a.heads + head.head) * a.length + q.first;
  for (int64_t r = 0; r < q.count; r++) {
    const bool empty = t.highest[r] == kNever;
    const float sum = empty ? 0 : total(load(t.sum + r * KINFOLK_LANES));
    write_row(t.out + r * head.value_width, a.value_width, empty ? 0 : 1 / (sum * a.keep), false,
              a.out.at(head.lane, head.head) + (q.first + r) * a.out.row);
    lse[r] = empty ? kNever : (t.highest[r] + std::log2(sum)) * kLn2;
  }
}

/// Items: lanes, then heads (groups where the queries are few), then tiles of queries.
void forward(const Attend& a, int64_t begin, int64_t end) {
  const bool few = attend_few(a);
  const int64_t tiles = (a.length + kAttendRows - 1) / kAttendRows, shared = a.heads / a.groups;
  const int64_t parts = few ? a.groups : a.heads, together = few ? shared : 1;
  Head head(a);
  Packed packed(head, few);
  TileSight sight;
  Scratch scratch;
  float* scores = scratch.take(kTileFloats, true) + 32;
  const int64_t rows = few ? a.length : std::min(kAttendRows, a.length);
  std::vector<ForwardTile> states(static_cast<size_t>(together));
  for (ForwardTile& t : states) {
    for (size_t b = 0; b < a.bands.size(); b++) t.q.push_back(scratch.take(rows * head.width));
    t.out = scratch.take(rows * head.value_width);
    t.by = a.by_panels ? scratch.take(rows * head.by_width) : nullptr;
    t.bins = a.value_rows ? scratch.take(rows * a.value_bins) : nullptr;
    t.sum = scratch.take(rows * KINFOLK_LANES), t.s = scores;
  }
  int64_t group = -1;
  for (int64_t item = begin; item < end; item++) {
    const int64_t lane = item / (parts * tiles), part = item / tiles % parts, first = item % tiles * kAttendRows;
    const int64_t h0 = part * together, to = h0 / shared;
    if (head.move(lane, h0) || to != group) packed.move(group = to);
    const QueryTile q = query_tile(a, lane, first);
    for (int64_t n = 0; n < together; n++) {
      ForwardTile& t = states[static_cast<size_t>(n)];
      const auto rows_of = [&](const Strided<const float>& x) { return Tokens{x.at(lane, h0 + n), x.row, nullptr}; };
      for (size_t b = 0; b < a.bands.size(); b++) {
        pack_rows(rows_of(a.bands[b].q), first, q.count, a.width, head.width, a.bands[b].scale * kLog2e, t.q[b]);
      }
      if (t.by) pack_rows(rows_of(a.by), first, q.count, a.by_width, head.by_width, a.by_scale * kLog2e, t.by);
      std::memset(t.out, 0, static_cast<size_t>(q.count * head.value_width) * 4);
      std::memset(t.sum, 0, static_cast<size_t>(q.count) * KINFOLK_LANES * 4);
      std::fill_n(t.highest, q.count, kNever);
      if (t.bins) std::fill_n(t.bins, q.count * a.value_bins, 0.f);
    }
    for (size_t s = 0; s < head.sets.size(); s++) {
      for (size_t k = 0; k < head.sets[s].tiles.size(); k++) {
        const KeyTile& keys = head.sets[s].tiles[k];
        for (size_t b = 0; b < a.bands.size(); b++) {  // a tile that bands share is met once a band
          if (!meet(a, lane, b, q, s, head.sets[s], keys, sight)) continue;
          packed.need(s, k, b);
          for (int64_t n = 0; n < together; n++) {
            head.move(lane, h0 + n);
            if (n > 0 && !sight.affine) meet(a, lane, b, q, s, head.sets[s], keys, sight);
            forward_tile(head, packed, few, group, q, s, b, keys, sight, states[static_cast<size_t>(n)]);
          }
        }
      }
    }
    for (int64_t n = 0; n < together; n++) {
      head.move(lane, h0 + n);
      finish_tile(head, q, states[static_cast<size_t>(n)]);
    }
  }
}
